"""The built book in a real browser, at the width of a laptop and of a phone."""

import json
import os
import re
import urllib.request

import pytest
from pypdf import PdfReader

from lib import printing
from lib.execution import ROOT
from lib.printing import HTML

WIDTHS = (1280, 390)

PAGES = [
    path.relative_to(HTML).as_posix()
    for pattern in ("book/*.html", "notebooks/*.html", "genindex.html", "search.html")
    for path in sorted(HTML.glob(pattern))
]

#: What is left of TeX if it is not rendered, outside of code.
RAW_TEX = re.compile(r"\$[^$\n]+\$|\\\(|\\\[|\\begin\{")

VISIBLE_TEXT = """() => {
  const article = document.querySelector("article") ?? document.body;
  const copy = article.cloneNode(true);
  copy.querySelectorAll("pre, code, script, style, mjx-container").forEach(n => n.remove());
  return copy.textContent;
}"""


@pytest.fixture(scope="module")
def site():
    assert HTML.exists(), "the book is not built: run make book"
    with printing.serving(HTML) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    try:
        with printing.chromium() as browser:
            yield browser
    except printing.NoBrowserError as error:
        pytest.fail(str(error)) if os.environ.get("CI") else pytest.skip(str(error))


@pytest.fixture
def open_page(browser, site):
    """Opens a page of the book; afterwards its complaints and its requests are looked at."""
    contexts, complaints, strangers = [], [], []

    def record(request):
        if not request.url.startswith((site, "data:", "blob:")):
            strangers.append(request.url)

    def open_(path, width=WIDTHS[0]):
        contexts.append(context := browser.new_context(viewport={"width": width, "height": 900}))
        page = context.new_page()
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", record)
        page.goto(f"{site}/{path}")
        printing.wait_for_formulas(page)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
    assert strangers == []


def test_the_expected_pages_are_there():
    chapters = {f"notebooks/{p.stem}.html" for p in (ROOT / "notebooks").glob("*.md")}
    pages = {f"book/{p.stem}.html" for p in (ROOT / "book").glob("*.md")}
    assert chapters | pages <= set(PAGES)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_whole_at_every_width(open_page, path, width):
    page = open_page(path, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("img:not([alt]), img[alt='']").count() == 0
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    equations = page.locator("article .math").count()
    assert page.locator("article .math mjx-container").count() >= equations
    assert page.locator("mjx-merror").count() == 0
    assert RAW_TEX.findall(page.evaluate(VISIBLE_TEXT)) == []


def test_equations_are_rendered_somewhere(open_page):
    assert open_page("notebooks/07_sketched_k2_margins.html").locator("mjx-container").count() > 50


def test_search_finds_a_word_of_a_chapter(open_page):
    page = open_page("search.html?q=whitening")
    page.wait_for_selector("#search-results li a")
    hrefs = page.eval_on_selector_all("#search-results li a", "links => links.map(a => a.href)")
    assert any("notebooks/" in href for href in hrefs)


def test_the_sidebar_leads_to_every_page(open_page):
    page = open_page("book/index.html")
    hrefs = page.eval_on_selector_all(".bd-sidebar-primary a", "links => links.map(a => a.href)")
    for path in PAGES[:-2]:
        if path != "book/index.html":
            assert any(href.endswith(path) for href in hrefs), path


def test_the_notebook_can_be_downloaded(open_page):
    page = open_page("notebooks/07_sketched_k2_margins.html")
    href = page.locator("a.btn-download-source-button").first.evaluate("a => a.href")
    assert href.endswith(".ipynb")
    with urllib.request.urlopen(href) as answer:
        assert json.load(answer)["nbformat"] == 4
    assert page.locator("a[href*='mybinder'], a[href*='colab']").count() == 0


def test_the_slider_moves_the_curves(open_page):
    page = open_page("notebooks/04_tam_scalar_equations.html")
    figure = page.locator(".slider-figure")
    curve, says = figure.locator("polyline").first, figure.locator("output")
    before = curve.get_attribute("points"), says.inner_text()
    figure.locator("input").focus()
    page.keyboard.press("ArrowLeft")
    assert curve.get_attribute("points") != before[0]
    assert says.inner_text() != before[1]


def test_the_ledger_shows_the_rows_that_a_reader_chooses(open_page):
    page = open_page("notebooks/17_ledger.html")
    choose = page.locator("select")
    rows = page.locator("table.claims").first.locator("tbody tr")
    assert rows.locator("visible=true").count() == rows.count()
    choose.nth(0).select_option("Barnfield et al.")
    choose.nth(1).select_option("holds in part")
    shown = rows.locator("visible=true").all_inner_texts()
    assert 0 < len(shown) < rows.count()
    assert all("holds in part" in text and "Barnfield et al." in text for text in shown)
    assert page.locator("output").inner_text() == f"{len(shown)} of {rows.count()} entries"


def test_the_ledger_is_a_plain_table_without_scripts(browser, site):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site}/notebooks/17_ledger.html")
    rows = page.locator("table.claims").first.locator("tbody tr")
    assert rows.count() > 100
    assert rows.last.is_visible()
    assert not page.locator("select").first.is_visible()
    context.close()


def test_links_of_the_ledger_lead_to_claims_of_chapters():
    pages = (HTML / "notebooks" / "17_ledger.html").read_text(encoding="utf-8")
    links = set(re.findall(r'<a href="(\d\d_\w+\.html)#claims">', pages))
    assert links
    for link in links:
        assert 'id="claims"' in (HTML / "notebooks" / link).read_text(encoding="utf-8")


CONTRAST = """selector => {
  const luminance = c => c.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const parts = c => [...c.match(/[\\d.]+/g).map(Number), 1];  // opaque if nothing else is said
  const element = document.querySelector(selector);
  const grounds = [];
  for (let e = element; e; e = e.parentElement)
    grounds.unshift(parts(getComputedStyle(e).backgroundColor));
  const page = luminance(grounds.reduce(
    (under, over) => under.map((v, i) => v * (1 - over[3]) + over[i] * over[3]), [255, 255, 255]));
  const drawn = {polyline: "stroke", text: "fill"}[element.localName] ?? "color";
  const ink = luminance(parts(getComputedStyle(element)[drawn]));
  return (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05);
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("chapter", "selectors", "least"),  # WCAG 2.1, level AA: 4.5 for text, 3 for graphics
    [
        (
            "05_facts_and_margins",
            ("article p", "figcaption .caption-text", "article p a", "table.claims td"),
            4.5,
        ),
        (
            "03_tail_average_margin",
            ("div.proof a", "div.proof a.reference", "table.claims code", "summary"),
            4.5,
        ),
        ("04_tam_scalar_equations", (".slider-figure text", ".slider-figure output"), 4.5),
        ("04_tam_scalar_equations", (".slider-figure polyline", "polyline ~ polyline"), 3),
    ],
)
def test_the_page_is_legible_in_both_themes(open_page, theme, chapter, selectors, least):
    page = open_page(f"notebooks/{chapter}.html")
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    for selector in selectors:
        assert page.evaluate(CONTRAST, selector) >= least, selector


def test_the_keyboard_shows_where_it_is_and_skips_formulas(open_page):
    page = open_page("notebooks/04_tam_scalar_equations.html")
    sign = """() => {
      const {outlineStyle, outlineWidth, boxShadow} = getComputedStyle(document.activeElement);
      return [document.activeElement.outerHTML.slice(0, 90), outlineStyle, outlineWidth, boxShadow];
    }"""
    for stop in range(40):
        page.keyboard.press("Tab")
        element, style, width, shadow = page.evaluate(sign)
        if stop == 0:
            assert 'href="#main-content"' in element
        assert not element.startswith("<mjx-container")
        assert (style != "none" and width != "0px") or "0px 0px 0px 3px" in shadow, element
    assert page.locator("article").evaluate("a => a.contains(document.activeElement)")


def test_a_toggle_is_called_what_it_shows(open_page):
    page = open_page("notebooks/05_facts_and_margins.html")
    toggle = page.get_by_role("article").locator("summary").first
    assert toggle.get_attribute("aria-label") is None
    toggle.focus()
    page.keyboard.press("Enter")
    assert toggle.locator("..").evaluate("details => details.open")


def test_paper_is_light(open_page):
    page = open_page("book/rerun.html")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.evaluate("""addEventListener("beforeprint",
      () => window.printed = document.documentElement.dataset.theme)""")
    page.pdf()
    assert page.evaluate("window.printed") == "light"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_printed_book_leads_from_page_to_page(browser, tmp_path):
    chapter = "notebooks/09_welch_bound.html"
    chosen = ("book/index.html", chapter, "book/bibliography.html")
    file = PdfReader(printing.print_book(browser, chosen, tmp_path / "book.pdf"))
    links = [
        link
        for sheet in file.pages
        for annotation in sheet.get("/Annots", ())
        if (link := annotation.get_object())["/Subtype"] == "/Link"
    ]
    outside = [link["/A"]["/URI"] for link in links if "/A" in link]
    assert any("arxiv.org" in address for address in outside)
    assert not any("127.0.0.1" in address for address in outside)
    assert any(
        link["/Dest"][0] == file.pages[-1].indirect_reference for link in links if "/Dest" in link
    )
    for number, sheet in enumerate(file.pages, 1):
        words = sheet.extract_text().split()
        assert words[0] == str(number)
        assert len(words) > 1  # no empty sheet
    landing, _, first, sections, last = file.outline[:5]
    titles = [landing.title, first.title, last.title]
    assert titles == ["How matrices and MLPs store facts", "9. The Welch bound", "Bibliography"]
    assert sections[-1].title == "Claims"
    assert "Claims" in file.pages[file.get_destination_page_number(sections[-1])].extract_text()
