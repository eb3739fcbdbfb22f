import base64
import errno
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from lib import execution
from lib.claims import MIME

CHAPTER = execution.find_chapter("05")

BROKEN = """---
kernelspec: {display_name: Python 3, language: python, name: python3}
---

# Broken

```{code-cell} ipython3
:tags: [parameters]

d = 1  # a number, integer 1..2
```

```{code-cell} ipython3
raise RuntimeError("the well is dry")
```
"""


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """A project of its own, with one good and one broken chapter."""
    notebooks = tmp_path / "notebooks"
    shutil.copytree(execution.NOTEBOOKS / "presets", notebooks / "presets")
    shutil.copy(CHAPTER, notebooks)
    (notebooks / "99_broken.md").write_text(BROKEN)
    monkeypatch.setattr(execution, "ROOT", tmp_path)
    monkeypatch.setattr(execution, "NOTEBOOKS", notebooks)
    monkeypatch.setattr(execution, "RUNS", tmp_path / "_runs")
    return tmp_path


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.ipynb"))


def test_two_executions_give_the_same_bytes(workshop, capsys):
    contents = []
    for _ in range(2):
        execution.main(["05"])
        contents.append(Path(workshop, "notebooks", f"{CHAPTER.stem}.ipynb").read_bytes())
    assert contents[0] == contents[1]
    assert f"wrote notebooks/{CHAPTER.stem}.ipynb" in capsys.readouterr().out
    nbformat.validate(nbformat.reads(contents[0].decode(), as_version=4))


def test_a_failing_chapter_names_its_cell_and_leaves_nothing(workshop):
    with pytest.raises(SystemExit) as caught:
        execution.main(["99"])
    assert "99_broken: cell 2 failed: RuntimeError: the well is dry" in str(caught.value)
    assert files(workshop) == []


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "chapter.ipynb"
    path.write_text("old")

    def broken(notebook, partial):
        Path(partial).write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(nbformat, "write", broken)
    with pytest.raises(OSError, match="disk full"):
        execution.write(nbformat.v4.new_notebook(), path)
    assert [p.name for p in tmp_path.iterdir()] == ["chapter.ipynb"]
    assert path.read_text() == "old"


def test_a_full_disk_is_one_line_and_leaves_the_landing_page(workshop, monkeypatch):
    page = workshop / "landing.png"
    page.write_bytes(b"old")
    cell = nbformat.v4.new_code_cell(
        outputs=[nbformat.v4.new_output("display_data", {"image/png": "bmV3"})],
        metadata={"tags": ["landing-figure"]},
    )
    notebook = nbformat.v4.new_notebook(cells=[cell])
    monkeypatch.setattr(execution, "execute", lambda source, parameters: notebook)
    monkeypatch.setattr(execution, "LANDING", {"landing-figure": ("image/png", page)})

    def full(path, content):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(SystemExit, match=r"landing\.png.*: No space left on device"):
            execution.main(["05"])
    assert page.read_bytes() == b"old" and files(workshop) == []
    execution.main(["05"])
    assert page.read_bytes() == b"new"
    assert [p.name for p in workshop.iterdir() if p.is_file()] == ["landing.png"]


def test_normalising_drops_what_differs_between_runs():
    cell = nbformat.v4.new_code_cell(
        "1",
        metadata={
            "papermill": {"duration": 1},
            "execution": {"iopub.status.idle": "now"},
            "tags": [],
        },
    )
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"papermill": {"end": "now"}})
    once = execution.normalise(notebook)
    assert once.cells[0].id == "cell-00"
    assert once.cells[0].metadata == {}
    assert set(once.metadata) == {"kernelspec", "language_info"}


def test_what_does_not_exist_is_named_with_what_does():
    with pytest.raises(SystemExit, match="no chapter '98'; there are 01_linear_memory, "):
        execution.main(["98"])


def test_a_missing_kernel_is_one_line(workshop, monkeypatch):
    monkeypatch.setattr(execution, "KERNEL", execution.KERNEL | {"name": "nowhere"})
    with pytest.raises(SystemExit, match=r"^no kernel 'nowhere'; remove .venv"):
        execution.main(["05"])


def test_recorded_claims_are_read_from_outputs():
    output = nbformat.v4.new_output("display_data", {MIME: [{"id": "a/b"}]})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(outputs=[output])])
    assert execution.recorded_claims(notebook) == [{"id": "a/b"}]


def test_the_landing_page_gets_pictures_and_text_of_tagged_cells():
    def cell(tag, **data):
        output = nbformat.v4.new_output("display_data", data)
        return nbformat.v4.new_code_cell(outputs=[output], metadata={"tags": [tag]})

    picture = {"image/png": base64.b64encode(b"picture").decode(), "text/plain": "<Figure>"}
    cells = [
        cell("landing-figure", **picture),
        cell("landing-counts", **{"text/markdown": "three ≥ two"}),
        cell("hide-input", **picture),
    ]
    files = execution.landing_files(nbformat.v4.new_notebook(cells=cells))
    assert {path.name: content for path, content in files.items()} == {
        "landing.png": b"picture",
        "verdicts.txt": "three ≥ two".encode(),
    }


# --- plain papermill, from any directory -------------------------------------------------------


def papermill(tmp_path, *arguments):
    notebook = execution.find_chapter("07").with_suffix(".ipynb")
    command = [sys.executable, "-m", "papermill", str(notebook), "out.ipynb", *arguments]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "d", "0"], "d = 0 (int); allowed: integer 8..512"),
        (["-p", "d", "64.5"], "d = 64.5 (float); allowed: integer 8..512"),
        (["-p", "dd", "64"], "dd is not a parameter of this chapter; it has d, facts,"),
        (["-p", "widths", "[]"], "widths = '[]' (str); allowed: [smallest, largest], each integer"),
        (["-y", "widths: []"], "widths = [] (list); allowed: [smallest, largest], each integer"),
    ],
)
def test_papermill_stops_at_a_bad_parameter_before_any_computation(tmp_path, arguments, message):
    run = papermill(tmp_path, *arguments)
    assert run.returncode != 0
    assert message in run.stderr
    notebook = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    executed = [c for c in notebook.cells if c.cell_type == "code" and c.execution_count]
    assert len(executed) == 3  # the parameters, those injected, and their validation
    assert "validate(" in executed[-1].source


def test_papermill_runs_a_chapter_from_another_directory(tmp_path):
    run = papermill(tmp_path, "-p", "d", "48", "-p", "seeds", "2")
    assert run.returncode == 0, run.stderr
    notebook = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    assert any("d = 48" in record["scale"] for record in execution.recorded_claims(notebook))
