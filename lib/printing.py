"""The built book in a real browser: served, opened, and printed as one PDF.

python -m lib.printing
"""

import functools
import http.server
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from papermill.iorw import read_yaml_file
from playwright.sync_api import Browser, Page, sync_playwright
from pypdf import PdfReader, PdfWriter
from pypdf.generic import ArrayObject, Destination, Fit, NameObject
from tqdm import tqdm

from lib.execution import ROOT
from lib.files import replacing

HTML = ROOT / "_build" / "html"
PDF = ROOT / "_build" / "book.pdf"

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# As root, and in a container, Chromium needs the first two; the others keep it off the network.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

#: The sheet; the book counts its pages through, so every part begins with those before it.
SHEET = """@page {{ size: A4; margin: 18mm 16mm;
  @bottom-center {{ content: counter(page); font: 9pt sans-serif; }} }}
html {{ counter-reset: page {before}; }}"""

#: Headings of a page as [anchor, words], without the sign for their links.
SECTIONS = """() => [...document.querySelectorAll("article section:has(> h2)")].map(section => {
  const heading = section.querySelector("h2").cloneNode(true);
  heading.querySelectorAll("a.headerlink").forEach(link => link.remove());
  return [section.id, heading.textContent.trim()];
})"""

#: Chromium names places in a PDF only where a link of the same page leads.
NAME_PLACES = """() => document.querySelectorAll("article [id]").forEach(element => {
  const link = document.createElement("a");
  link.href = "#" + element.id;
  link.hidden = true;
  document.querySelector("article").append(link);
})"""


class NoBrowserError(Exception):
    """No Chromium is installed."""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address at which a folder is served on this machine."""
    handler = functools.partial(_Quiet, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium, the one of the system.

    Raises:
        NoBrowserError: there is none.
    """
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise NoBrowserError(
            f"no browser: install one of {', '.join(BROWSERS)} (Debian: apt install chromium)"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


def wait_for_formulas(page: Page) -> None:
    """Return when a page is loaded and its formulas are set."""
    page.wait_for_load_state("networkidle")
    page.wait_for_function("!window.MathJax || MathJax.startup?.promise !== undefined")
    page.evaluate("window.MathJax && MathJax.startup.promise")


def pages() -> list[str]:
    """The addresses of all pages, in the order of the table of contents."""
    contents = read_yaml_file(str(ROOT / "_toc.yml"))
    chapters = [chapter for part in contents["parts"] for chapter in part["chapters"]]
    return [f"{name}.html" for name in [contents["root"], *(c["file"] for c in chapters)]]


def print_book(browser: Browser, chosen: Sequence[str], target: Path = PDF) -> Path:
    """Pages in one file, with an outline, page numbers, and links from page to page.

    Args:
        browser: what prints.
        chosen: addresses of pages of the built book; links to others are dropped.
        target: the file.
    """
    with (
        serving(HTML) as site,
        tempfile.TemporaryDirectory() as folder,
        PdfWriter() as book,
    ):
        page = browser.new_page()
        places: dict[str, tuple[int, float]] = {}
        for number, path in enumerate(tqdm(chosen, disable=None, desc="printing")):
            page.goto(f"{site}/{path}")
            wait_for_formulas(page)
            title = page.locator("article h1").first.text_content().strip(" #\n")
            sections = page.evaluate(SECTIONS)
            page.evaluate(NAME_PLACES)
            before = len(book.pages)
            page.add_style_tag(content=SHEET.format(before=before))
            page.pdf(path=(part := Path(folder, f"{number:02d}.pdf")), print_background=True)
            reader = PdfReader(part)
            places |= _places(reader, f"{site}/{path}", before)
            book.append(reader, import_outline=False)
            chapter = book.add_outline_item(title=title, page_number=before)
            for anchor, words in sections:
                sheet, top = places[f"{site}/{path}#{anchor}"]
                book.add_outline_item(
                    title=words, page_number=sheet, parent=chapter, fit=Fit.xyz(top=top)
                )
        _link(book, site, places)
        book.add_metadata({"/Title": read_yaml_file(str(ROOT / "_config.yml"))["title"]})
        with replacing(target) as partial:
            book.write(partial)
    return target


def _places(part: PdfReader, address: str, before: int) -> dict[str, tuple[int, float]]:
    """Sheet and height of a page and of every place in it, by address."""
    return {address: (before, float(part.pages[0].mediabox.top))} | {
        f"{address}#{unquote(name.removeprefix('/'))}": (
            before + part.get_destination_page_number(place),
            float(place.top),
        )
        for name, place in part.named_destinations.items()
    }


def _link(book: PdfWriter, site: str, places: Mapping[str, tuple[int, float]]) -> None:
    """Let links to the book's pages lead into the file, and drop those to anything else of it."""
    for page in book.pages:
        kept = ArrayObject()
        for annotation in page.get("/Annots", ()):
            link = annotation.get_object()
            address = unquote(link.get("/A", {}).get("/URI", ""))
            if address.startswith(site):
                sheet, top = places.get(address) or places.get(address.partition("#")[0], (None, 0))
                if sheet is None:
                    continue
                del link["/A"]
                link[NameObject("/Dest")] = Destination(
                    "", book.pages[sheet].indirect_reference, Fit.xyz(top=top)
                ).dest_array
            kept.append(annotation)
        if "/Annots" in page:
            page[NameObject("/Annots")] = kept


def main() -> None:
    """The command line; see the module's docstring."""
    if not HTML.exists():
        sys.exit("the book is not built: run make book")
    try:
        with chromium() as browser:
            print(f"wrote {print_book(browser, pages()).relative_to(ROOT)}")
    except NoBrowserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
