"""Execute chapters: the committed twins of the book, and a reader's own runs.

python -m lib.execution execute [07 ...]
python -m lib.execution run 07 [--preset paper] [-p NAME VALUE]...
"""

import argparse
import base64
import json
import keyword
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import papermill
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
        raise ChapterError(f"no preset {name!r} for {source.stem}; there are {', '.join(presets)}")
    return read_yaml_file(str(presets[name])) or {}


def execute(source: Path, parameters: dict[str, Any]) -> NotebookNode:
    """Run a chapter in a fresh kernel and return it with its outputs, normalised.

    Raises:
        ChapterError: a cell failed; the message names it and says why.
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
                progress_bar={"desc": source.stem} if sys.stderr.isatty() else False,
            )
        except DeadKernelError:
            raise ChapterError(
                f"{source.stem}: the kernel died; was there enough memory?"
            ) from None
        except PapermillExecutionError as error:
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


def main(arguments: list[str] | None = None) -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m lib.execution", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    committed = commands.add_parser("execute", help="re-execute chapters at their defaults")
    committed.add_argument("chapters", nargs="*", help="numbers; all if none is given")
    run = commands.add_parser("run", help="execute a copy under _runs/")
    run.add_argument("chapter", help="number")
    run.add_argument("--preset", help="parameters from notebooks/presets/PRESET/")
    run.add_argument(
        "-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), dest="parameters"
    )
    options = parser.parse_args(arguments)
    try:
        if options.command == "execute":
            for source in [find_chapter(c) for c in options.chapters] or chapters():
                notebook = execute(source, {})
                for path, content in landing_files(notebook).items():
                    path.write_bytes(content)
                write(notebook, target := source.with_suffix(".ipynb"))
                print(f"wrote {target.relative_to(ROOT)}")
        else:
            source = find_chapter(options.chapter)
            parameters = {} if options.preset is None else load_preset(options.preset, source)
            for name, value in options.parameters:
                if not name.isidentifier() or keyword.iskeyword(name):
                    raise ChapterError(f"{name!r} cannot be the name of a parameter")
                parameters[name] = _literal(value)
            notebook = execute(source, parameters)
            write(notebook, target := RUNS / (options.preset or "custom") / f"{source.stem}.ipynb")
            print(f"wrote {target.relative_to(ROOT)}")
            for record in recorded_claims(notebook):
                print(f"{record['verdict']:30s} {record['id']}")
    except ChapterError as error:
        sys.exit(str(error))


def _literal(value: str) -> Any:
    """A value as JSON reads it (3, 0.5, true, [1, 2]), else the string itself."""
    try:
        return json.loads(value)
    except ValueError:
        return value


if __name__ == "__main__":
    main()
