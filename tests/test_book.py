"""The built book in a real browser, at the width of a laptop and of a phone."""

import json
import os
import re
import urllib.request

import pytest

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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_captions_are_legible_in_both_themes(open_page, theme):
    page = open_page("notebooks/05_facts_and_margins.html")
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    contrast = """selector => {
      const luminance = c => c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
        .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
      const element = document.querySelector(selector);
      let ground = element;
      while (getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)")
        ground = ground.parentElement;
      const text = luminance(getComputedStyle(element).color);
      const page = luminance(getComputedStyle(ground).backgroundColor);
      return (Math.max(text, page) + 0.05) / (Math.min(text, page) + 0.05);
    }"""
    claims = ("table.claims td", "table.claims code")
    for selector in ("article p", "figcaption .caption-text", "article p a", *claims):
        assert page.evaluate(contrast, selector) >= 4.5, selector  # WCAG 2.1, level AA
