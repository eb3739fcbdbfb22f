"""README: its worked example, held to the contract of a chapter, and what it says of the book."""

import inspect
import re
import shutil
from pathlib import Path

import pytest
import test_notebooks

from lib import execution

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "tests" / "example"
README = Path(ROOT, "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project of which the example is the only chapter, made by the commands in README."""
    root = tmp_path_factory.mktemp("project")
    for preset in ("smoke", "paper"):
        (root / "notebooks" / "presets" / preset).mkdir(parents=True)
        target = f"notebooks/presets/{preset}/98_example.yml"
        assert f"cp tests/example/{preset}.yml {target}" in README
        shutil.copy(EXAMPLE / f"{preset}.yml", root / target)
    assert "cp tests/example/98_example.md notebooks/" in README
    shutil.copy(EXAMPLE / "98_example.md", root / "notebooks")
    line = "      - file: notebooks/98_example"
    assert line.strip() in README
    (root / "_toc.yml").write_text(line)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(execution, "ROOT", root)
        patched.setattr(execution, "NOTEBOOKS", root / "notebooks")
        assert "make execute CHAPTER=98" in README
        execution.main(["98"])
        yield root


CONTRACT = [
    test
    for name, test in inspect.getmembers(test_notebooks, inspect.isfunction)
    if name.startswith("test_") and "landing" not in name
]


@pytest.mark.parametrize("test", CONTRACT, ids=lambda test: test.__name__)
def test_the_example_keeps_the_contract(project, test, monkeypatch, tmp_path):
    fixtures = {"monkeypatch": monkeypatch, "tmp_path": tmp_path}
    wanted = inspect.signature(test).parameters
    monkeypatch.setattr(execution, "ROOT", project)
    monkeypatch.setattr(execution, "NOTEBOOKS", project / "notebooks")
    source = project / "notebooks" / "98_example.md"
    test(source, **{name: fixtures[name] for name in fixtures if name in wanted})


def test_readme_has_the_chapters_and_the_counts_of_the_book():
    index = Path(ROOT, "book", "index.md").read_text(encoding="utf-8")
    chapters = re.findall(
        r"\{doc\}`(\d+)\. (.*) <\.\./notebooks/(\w+)>`\n: (.*)", index.split("## Run it")[0]
    )
    assert [name for _, _, name, _ in chapters] == sorted(
        path.stem for path in (ROOT / "notebooks").glob("[0-9]*.md")
    )
    for number, title, name, line in chapters:
        assert f"| {number} | [{title}](notebooks/{name}.ipynb) | {line} |" in README
    counts = Path(ROOT, "book", "verdicts.txt").read_text(encoding="utf-8")
    assert counts.strip() in README
