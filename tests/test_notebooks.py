"""The contract of a chapter: what every notebook has, so that readers and tools can rely on it."""

import ast
import re
from pathlib import Path

import jupytext
import nbformat
import pytest

from lib import chapter, claims, execution

CHAPTERS = execution.chapters()
PRESETS = ("smoke", "paper")

#: Longest line of code in a cell that a reader sees, the width of the rendered column.
COLUMNS = 80

#: Longest function in a chapter; longer ones belong in lib.
FUNCTION_LINES = 12

pytestmark = pytest.mark.parametrize("source", CHAPTERS, ids=lambda p: p.stem)


def twin(source):
    return nbformat.read(source.with_suffix(".ipynb"), as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell):
    return cell.metadata.get("tags", [])


def slug(source):
    return source.stem[3:].replace("_", "-")


def test_the_executed_twin_has_the_same_cells(source):
    def essence(notebook):
        return [(c.cell_type, c.source, tags(c), c.metadata.get("mystnb")) for c in notebook.cells]

    assert essence(twin(source)) == essence(jupytext.read(source))


def test_every_code_cell_was_executed_once_in_order_without_complaint(source):
    cells = code_cells(twin(source))
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    outputs = [output for c in cells for output in c.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]


def test_the_twin_is_normalised(source, tmp_path):
    nbformat.write(execution.normalise(twin(source)), tmp_path / "again.ipynb")
    assert (tmp_path / "again.ipynb").read_bytes() == source.with_suffix(".ipynb").read_bytes()


def parameters_of(source):
    """Names, values and comments of the parameters cell, which must hold literals only."""
    cells = code_cells(twin(source))
    assert [i for i, c in enumerate(cells) if "parameters" in tags(c)] == [0]
    values, comments = {}, {}
    lines = cells[0].source.splitlines()
    for statement in ast.parse(cells[0].source).body:
        assert isinstance(statement, ast.Assign), "only assignments"
        (target,) = statement.targets
        values[target.id] = ast.literal_eval(statement.value)
        comments[target.id] = lines[statement.lineno - 1].partition("#")[2].strip()
    return values, comments


def validation_of(source, monkeypatch):
    """The rules and parameters that the chapter hands to validate, in its second code cell."""
    captured = {}

    def capture(namespace, *rules, **parameters):
        captured.update(rules=rules, parameters=parameters)

    monkeypatch.setattr(chapter, "validate", capture)
    exec(code_cells(twin(source))[1].source, {})
    monkeypatch.undo()
    return captured["rules"], captured["parameters"]


def test_each_parameter_is_explained_with_the_range_that_is_enforced(source, monkeypatch):
    values, comments = parameters_of(source)
    _, parameters = validation_of(source, monkeypatch)
    assert set(values) == set(parameters)
    for name, allowed in parameters.items():
        meaning, _, written = comments[name].partition(str(allowed))
        assert meaning, f"{name}: the comment must end in {str(allowed)!r}; got {comments[name]!r}"
        assert not written, f"{name}: the range must come last in {comments[name]!r}"


def test_defaults_and_presets_are_valid(source, monkeypatch):
    values, _ = parameters_of(source)
    rules, parameters = validation_of(source, monkeypatch)
    chapter.validate(values, *rules, **parameters)
    for preset in PRESETS:
        given = execution.load_preset(preset, source)
        assert set(given) <= set(values)
        chapter.validate(values | given, *rules, **parameters)


def test_every_figure_has_a_name_a_caption_and_alt_text(source):
    shown = [
        c
        for c in code_cells(twin(source))
        if any("image/png" in o.get("data", {}) for o in c.outputs)
    ]
    assert shown
    for cell in shown:
        mystnb = cell.metadata["mystnb"]
        assert mystnb["figure"]["name"].startswith(f"{slug(source)}-fig-")
        assert len(mystnb["figure"]["caption"]) > 40
        assert len(mystnb["image"]["alt"]) > 20
        assert cell.source.rstrip().endswith("plt.show()")


def test_labels_carry_the_name_of_the_chapter(source):
    text = source.read_text(encoding="utf-8")
    labels = re.findall(r"^:label: (\S+)", text, re.M) + re.findall(r"^\$\$ \((\S+)\)", text, re.M)
    assert labels
    assert [label for label in labels if not label.startswith(f"{slug(source)}-")] == []


def test_code_fits_the_column_and_functions_are_short(source):
    for cell in code_cells(twin(source)):
        if "hide-input" not in tags(cell):
            assert [line for line in cell.source.splitlines() if len(line) > COLUMNS] == []
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < FUNCTION_LINES, node.name


def test_claims_close_the_chapter_and_their_ids_are_unique_in_the_book(source):
    cells = code_cells(twin(source))
    assert any(claims.MIME in o.get("data", {}) for o in cells[-2].outputs)
    assert "environment()" in cells[-1].source
    ids = [r["id"] for s in CHAPTERS for r in execution.recorded_claims(twin(s))]
    assert len(ids) == len(set(ids))


def test_the_landing_page_shows_what_was_executed(source):
    files = execution.landing_files(twin(source))
    assert {path: path.read_bytes() for path in files} == files
    provided = [path for s in CHAPTERS for path in execution.landing_files(twin(s))]
    assert sorted(provided) == sorted(path for _, path in execution.LANDING.values())


def test_the_skeleton_is_complete(source):
    headings = re.findall(r"^#+ (.*)", source.read_text(encoding="utf-8"), re.M)
    assert headings[0].startswith(f"{int(source.stem[:2])}. ")
    assert "What to remember" in headings
    assert headings[-1] == "Claims"
    assert "{admonition} Try it" in source.read_text(encoding="utf-8")


def test_it_is_in_the_table_of_contents(source):
    assert f"file: notebooks/{source.stem}" in Path(execution.ROOT, "_toc.yml").read_text()


def test_it_runs_at_the_smoke_preset(source):
    notebook = execution.execute(source, execution.load_preset("smoke", source))
    assert execution.recorded_claims(notebook)
