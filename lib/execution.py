"""Execute chapters, and write the committed twins of the book.

python -m lib.execution [07 ...] [--jobs 2]
"""

import argparse
import base64
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import papermill
from joblib import Parallel, delayed
from jupyter_client.kernelspec import NoSuchKernel
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import read_yaml_file
from traitlets.config import Config

from lib import claims
from lib.files import replacing

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
RUNS = ROOT / "_runs"

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}

#: Talk to kernels over local sockets, not TCP: no port is opened, and ipykernel does not warn.
KERNEL_TRANSPORT = Config(KernelManager={"transport": "ipc"})

#: Kernels keep quiet: cells report their errors, and an interruption is no error.
KERNEL_ARGUMENTS = ["--log-level=CRITICAL"]

#: papermill warns of an unknown parameter that the chapter's own check refuses.
logging.getLogger("papermill").setLevel(logging.ERROR)

#: How the cell begins that checks a chapter's parameters.
VALIDATION = "from lib.chapter import"

#: The chapter that reads all others.
LEDGER = "17_ledger"

#: What cells with these tags show is on the landing page, too: its type and the page's file.
LANDING = {
    "landing-figure": ("image/png", ROOT / "book" / "landing.png"),
    "landing-counts": ("text/markdown", ROOT / "book" / "verdicts.txt"),
}

#: Cell metadata that papermill and the kernel write, different in every run.
VOLATILE = ("papermill", "execution", "collapsed")


class ChapterError(Exception):
    """A chapter could not be found or executed; the message is for the reader."""


def chapters() -> list[Path]:
    """The chapters' MyST sources, in order."""
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.md"))


def find_chapter(number: str) -> Path:
    """The source of the chapter with this number (``07`` or ``7``) or name."""
    for source in chapters():
        if source.stem == Path(number).stem or source.stem[:2] == number.zfill(2):
            return source
    known = ", ".join(source.stem for source in chapters())
    raise ChapterError(f"no chapter {number!r}; there are {known}")


def load_preset(name: str, source: Path) -> dict[str, Any]:
    """The parameters of a preset for a chapter."""
    presets = {p.parent.name: p for p in sorted(NOTEBOOKS.glob(f"presets/*/{source.stem}.yml"))}
    if name not in presets:
        raise ChapterError(
            f"no preset {name!r} for {source.stem}; there are {', '.join(presets)}, "
            "and without a name the values in the notebook"
        )
    return read_yaml_file(str(presets[name])) or {}


def execute(source: Path, parameters: dict[str, Any]) -> NotebookNode:
    """Run a chapter in a fresh kernel and return it with its outputs, normalised.

    Raises:
        ChapterError: a cell failed, or there is no kernel; the message says which and why. A
            parameter that is not allowed is one line, several are one each.
    """
    notebook = jupytext.read(source)
    notebook.metadata["kernelspec"] = KERNEL
    with tempfile.TemporaryDirectory() as folder:
        given, executed = Path(folder, "given.ipynb"), Path(folder, "executed.ipynb")
        nbformat.write(notebook, given)
        try:
            papermill.execute_notebook(
                given,
                executed,
                parameters,
                cwd=folder,
                config=KERNEL_TRANSPORT,
                extra_arguments=KERNEL_ARGUMENTS,
                progress_bar={"desc": source.stem} if sys.stderr.isatty() else False,
            )
        except DeadKernelError:
            raise ChapterError(
                f"{source.stem}: the kernel died; was there enough memory?"
            ) from None
        except NoSuchKernel as error:
            raise ChapterError(
                f"no kernel {error.name!r}; remove .venv, and the next make installs it"
            ) from None
        except PapermillExecutionError as error:
            if error.source.lstrip().startswith(VALIDATION):
                head, *problems = map(str.strip, error.evalue.splitlines())
                apart = "\n  " if len(problems) > 1 else " "
                raise ChapterError(apart.join([f"{source.stem}: {head}", *problems])) from None
            raise ChapterError(
                f"{error.source}\n\n"
                f"{source.stem}: cell {error.cell_index} failed: {error.ename}: {error.evalue}"
            ) from error
        return normalise(nbformat.read(executed, as_version=4))


def normalise(notebook: NotebookNode) -> NotebookNode:
    """Drop what differs between two runs of the same notebook: times, paths, random ids."""
    notebook.metadata = NotebookNode(kernelspec=KERNEL, language_info={"name": "python"})
    notebook.nbformat_minor = 5
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
        for name in VOLATILE:
            cell.metadata.pop(name, None)
        if not cell.metadata.get("tags", True):
            del cell.metadata["tags"]
    return notebook


def write(notebook: NotebookNode, path: Path) -> None:
    """Write a notebook so that the file is there complete, or as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        nbformat.write(notebook, partial)


@contextmanager
def ending_in_words(folder: Path) -> Iterator[None]:
    """End a command that cannot go on with a message for the reader, and no traceback.

    A failed write without a file's name was in the folder, or in the temporary one.
    """
    try:
        yield
    except ChapterError as error:
        sys.exit(str(error))
    except OSError as error:
        place = error.filename or f"{folder} or {tempfile.gettempdir()}"
        sys.exit(f"{place}: {error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; what was under way is not written")


def recorded_claims(notebook: NotebookNode) -> list[dict]:
    """The claims that an executed notebook carries in its outputs."""
    return [
        record
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        for record in output.get("data", {}).get(claims.MIME, [])
    ]


def landing_files(notebook: NotebookNode) -> dict[Path, bytes]:
    """The files of the landing page that a notebook provides, and their contents."""
    return {
        path: base64.b64decode(content) if kind.startswith("image/") else content.encode()
        for tag, (kind, path) in LANDING.items()
        for cell in notebook.cells
        if tag in cell.metadata.get("tags", [])
        for output in cell.outputs
        if (content := output.get("data", {}).get(kind))
    }


def execute_in_place(sources: list[Path], *, jobs: int = 1) -> Iterator[Path]:
    """Execute chapters with their defaults and write their twins, as they finish.

    The ledger comes last, since it reads the others.

    Raises:
        ChapterError: as :func:`execute`; twins that are written stay.
    """
    first = [source for source in sources if source.stem != LEDGER]
    run = Parallel(n_jobs=jobs, return_as="generator_unordered")
    for groups in (first, [source for source in sources if source.stem == LEDGER]):
        for source, notebook in run(delayed(_with_source)(source) for source in groups):
            for path, content in landing_files(notebook).items():
                with replacing(path) as partial:
                    partial.write_bytes(content)
            write(notebook, target := source.with_suffix(".ipynb"))
            yield target


def _with_source(source: Path) -> tuple[Path, NotebookNode]:
    return source, execute(source, {})


def main(arguments: list[str] | None = None) -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m lib.execution", description=__doc__)
    parser.add_argument("chapters", nargs="*", help="numbers; all if none is given")
    parser.add_argument("--jobs", type=int, default=1, help="chapters at a time")
    options = parser.parse_args(arguments)
    with ending_in_words(NOTEBOOKS):
        sources = [find_chapter(c) for c in options.chapters] or chapters()
        for target in execute_in_place(sources, jobs=options.jobs):
            print(f"wrote {target.relative_to(ROOT)}", flush=True)


if __name__ == "__main__":
    main()
