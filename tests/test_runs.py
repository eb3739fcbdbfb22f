import errno
import shutil
from pathlib import Path

import nbformat
import pytest

from lib import claims, execution, runs
from lib.claims import MIME

CHAPTER = execution.find_chapter("05")


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """A project of its own with one chapter and its committed twin."""
    notebooks = tmp_path / "notebooks"
    shutil.copytree(execution.NOTEBOOKS / "presets", notebooks / "presets")
    shutil.copy(CHAPTER, notebooks)
    shutil.copy(CHAPTER.with_suffix(".ipynb"), notebooks)
    monkeypatch.setattr(execution, "ROOT", tmp_path)
    monkeypatch.setattr(execution, "NOTEBOOKS", notebooks)
    monkeypatch.setattr(execution, "RUNS", tmp_path / "_runs")
    costs = tmp_path / "chapters.csv"
    costs.write_text("chapter,preset,seconds,GiB\n5,defaults,12.3,0.46\n")
    monkeypatch.setattr(runs, "COSTS", costs)
    return tmp_path


def files(folder):
    found = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return [name for name in found if name.startswith("_runs")]


def fake(monkeypatch, measured):
    """Execution that only returns claims; ``measured`` makes them from the parameters."""

    def execute(source, parameters):
        record = claims.Claim(
            "a/b", "A", "s", "p", measured(parameters), claims.at_least(1.0), "scale"
        ).record()
        output = nbformat.v4.new_output("display_data", {MIME: [record]})
        return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(outputs=[output])])

    monkeypatch.setattr(execution, "execute", execute)


def test_a_run_says_what_it_runs_what_came_out_and_where_it_is(workshop, capsys):
    runs.main(["run", "5", "--preset", "smoke", "-p", "seed", "3"])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{CHAPTER.stem} with ") and "seed = 3" in said[0]
    assert said[1:3] == [
        "  not measured with smoke",
        "  measured with defaults: 12 s of one core, 0.5 GiB",
    ]
    assert any(line.startswith("reproduced ") for line in said)
    assert said[-2].endswith("verdicts differ from the committed ones")
    assert said[-1] == f"wrote _runs/smoke/{CHAPTER.stem}.ipynb"
    assert files(workshop) == [f"_runs/smoke/{CHAPTER.stem}.ipynb"]
    notebook = nbformat.read(workshop / files(workshop)[0], as_version=4)
    assert "seed = 3" in notebook.cells[2].source


def test_verdicts_are_compared_with_the_committed_ones():
    now = [{"id": "a/b", "verdict": "reproduced"}, {"id": "a/c", "verdict": "not run"}]
    before = [{"id": "a/b", "verdict": "holds in part"}, {"id": "a/c", "verdict": "not run"}]
    assert runs.comparison(now, before) == [
        "reproduced                     a/b  (committed: holds in part)",
        "not run                        a/c",
        "1 of 2 verdicts differ from the committed ones",
    ]
    assert "(committed: not there)" in runs.comparison(now, [])[0]


def test_a_bad_parameter_is_one_line_and_leaves_nothing(workshop):
    with pytest.raises(SystemExit) as caught:
        runs.main(["run", "5", "-p", "d", "-3"])
    assert str(caught.value).startswith(f"{CHAPTER.stem}: parameters of this chapter: d = -3 (int)")
    assert "\n" not in str(caught.value) and files(workshop) == []


def test_several_bad_parameters_are_one_line_each_and_nothing_else(workshop, capfd):
    with pytest.raises(SystemExit) as caught:
        runs.main(["run", "5", "-p", "d", "-3", "-p", "dd", "8"])
    first, *problems = str(caught.value).split("\n  ")
    assert first == f"{CHAPTER.stem}: parameters of this chapter:"
    assert problems[0].startswith("dd is not a parameter of this chapter; it has ")
    assert problems[1].startswith("d = -3 (int); allowed: ") and len(problems) == 2
    assert capfd.readouterr().err == "" and files(workshop) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "98"], "no chapter '98'; there are 05_facts_and_margins"),
        (["run", "05", "--preset", "../presets/smoke"], "no preset '../presets/smoke'"),
        (["run", "05", "--preset", ""], "no preset ''"),
        (["run", "05", "-p", "d-v", "3"], "'d-v' cannot be the name of a parameter"),
        (
            ["run", "05", "--preset", "big"],
            "no preset 'big' for 05_facts_and_margins; there are paper, smoke",
        ),
        (["sweep", "05", "d", "8", "8"], "values of d must be distinct; got 8, 8"),
    ],
)
def test_what_does_not_exist_is_named_with_what_does(workshop, arguments, message):
    with pytest.raises(SystemExit, match=message):
        runs.main(arguments)


def test_a_full_disk_and_an_interruption_are_one_line_and_leave_nothing(workshop, monkeypatch):
    fake(monkeypatch, lambda parameters: {"x": 1.0})

    def full(notebook, path):
        Path(path).write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(nbformat, "write", full)
        with pytest.raises(SystemExit, match=r"05_facts_and_margins.*: No space left on device"):
            runs.main(["run", "5"])
    assert files(workshop) == []

    def nowhere(source, parameters):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(execution, "execute", nowhere)
        with pytest.raises(SystemExit, match=r"_runs or /.*: No space left on device"):
            runs.main(["run", "5"])

    def interrupted(source, parameters):
        raise KeyboardInterrupt

    monkeypatch.setattr(execution, "execute", interrupted)
    with pytest.raises(SystemExit, match="interrupted"):
        runs.main(["run", "5"])
    assert files(workshop) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("0.5", 0.5), ("[1, 2]", [1, 2]), ("true", True), ("silu", "silu")],
)
def test_values_are_read_as_json_or_as_text(text, value):
    assert runs.literal(text) == value


def test_a_sweep_writes_copies_and_draws_the_claims(workshop, monkeypatch, capsys):
    fake(monkeypatch, lambda parameters: {"x": parameters["d"] / 20, "y": 2.0})
    runs.main(["sweep", "5", "d", "16", "32", "--preset", "smoke", "--jobs", "1"])
    assert files(workshop) == [
        f"_runs/sweep_d/{CHAPTER.stem}.png",
        f"_runs/sweep_d/16/{CHAPTER.stem}.ipynb",
        f"_runs/sweep_d/32/{CHAPTER.stem}.ipynb",
    ]
    said = capsys.readouterr().out
    assert "and 1 more, for d = 32" in said and f"wrote _runs/sweep_d/{CHAPTER.stem}.png" in said


def test_open_marks_are_what_is_not_reproduced(workshop, monkeypatch):
    drawn = []
    monkeypatch.setattr(runs, "_draw_claim", lambda ax, claim, found: drawn.append(ax))
    record = {"id": "a/b", "verdict": claims.REPRODUCED, "measured": {"x": 1.0}}
    other = record | {"verdict": claims.NOT_REPRODUCED}
    path = workshop / "figure.png"
    found = {"8": [record], "16": [other]}
    runs.draw("d", found, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    monkeypatch.undo()
    (ax,) = drawn
    runs._draw_claim(ax, "a/b", found)
    line, first, second = ax.lines
    assert line.get_xdata().tolist() == [8, 16]
    assert first.get_markerfacecolor() != "white" and second.get_markerfacecolor() == "white"
