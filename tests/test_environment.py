"""One list of dependencies: what conda installs and what CI pins follow pyproject.toml."""

import re
import tomllib

from papermill.iorw import read_yaml_file

from lib.execution import ROOT

#: Where conda-forge uses another name than PyPI.
CONDA_NAMES = {"pytorch-cpu": "torch"}

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def split(requirement):
    name, specifier = re.fullmatch(r"([A-Za-z0-9_-]+)\s*(.*)", requirement).groups()
    return name.lower(), specifier


def required():
    return dict(
        split(r)
        for group in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
        for r in group
    )


def test_conda_installs_the_same():
    environment = read_yaml_file(str(ROOT / "environment.yml"))
    assert environment["channels"] == ["conda-forge"]
    (pip,) = (entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    assert pip[-1] == "-e ."
    listed = dict(split(r) for r in environment["dependencies"] + pip[:-1] if isinstance(r, str))
    assert listed.pop("python") == PROJECT["requires-python"]
    assert "pip" in listed
    del listed["pip"]
    assert {CONDA_NAMES.get(name, name): spec for name, spec in listed.items()} == required()


def test_every_dependency_is_pinned_for_ci():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.lower().split("==") for line in lines if "==" in line)
    assert {
        name
        for name in required()
        if name.replace("-", "_") not in {p.replace("-", "_") for p in pinned}
    } == set()
    assert not [line for line in lines if "://" in line]
