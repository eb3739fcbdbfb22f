"""The built book in a real browser: served, opened, and printed as one PDF.

python -m lib.printing
"""

import functools
import http.server
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from papermill.iorw import read_yaml_file
from playwright.sync_api import Browser, Page, sync_playwright
from pypdf import PdfWriter
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

MARGINS = {"top": "18mm", "bottom": "18mm", "left": "16mm", "right": "16mm"}


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


def print_book(target: Path = PDF) -> Path:
    """All pages in one file, with an outline.

    Raises:
        NoBrowserError: there is no browser to print with.
    """
    with (
        serving(HTML) as site,
        chromium() as browser,
        tempfile.TemporaryDirectory() as folder,
        PdfWriter() as book,
    ):
        page = browser.new_page()
        for number, path in enumerate(tqdm(pages(), disable=None, desc="printing")):
            page.goto(f"{site}/{path}")
            wait_for_formulas(page)
            title = page.locator("article h1").first.text_content().strip(" #\n")
            page.pdf(
                path=(part := Path(folder, f"{number:02d}.pdf")),
                format="A4",
                margin=MARGINS,
                print_background=True,
            )
            book.append(part, outline_item=title)
        with replacing(target) as partial:
            book.write(partial)
    return target


def main() -> None:
    """The command line; see the module's docstring."""
    if not HTML.exists():
        sys.exit("the book is not built: run make book")
    try:
        print(f"wrote {print_book().relative_to(ROOT)}")
    except NoBrowserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
