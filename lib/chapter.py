"""Validation of a chapter's parameters, before anything is computed.

A chapter's first code cell holds its parameters, papermill may inject a cell with other values
below it, and the next cell calls :func:`validate`, once, on the notebook's globals. This module
imports nothing heavy, so that a wrong parameter is reported at once.
"""

import ast
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

#: First line of the cell that papermill injects between the parameters and their validation.
INJECTED = "# Parameters"


@dataclass(frozen=True)
class Integer:
    """A whole number from ``low`` to ``high``."""

    low: int
    high: int

    def allows(self, value: Any) -> bool:
        return type(value) is int and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"integer {self.low}..{self.high}"


@dataclass(frozen=True)
class Number:
    """A finite number, whole or not, from ``low`` to ``high``."""

    low: int | float
    high: int | float

    def allows(self, value: Any) -> bool:
        return type(value) in (int, float) and self.low <= value <= self.high  # NaN compares false

    def __str__(self) -> str:
        return f"number {self.low:g}..{self.high:g}"


@dataclass(frozen=True)
class Increasing:
    """A list of at least ``length`` strictly increasing items, each allowed by ``item``."""

    item: Integer | Number
    length: int = 1

    def allows(self, value: Any) -> bool:
        return (
            type(value) is list
            and len(value) >= self.length
            and all(self.item.allows(v) for v in value)
            and all(a < b for a, b in pairwise(value))
        )

    def __str__(self) -> str:
        return f"{self.length} or more, increasing, each {self.item}"


@dataclass(frozen=True)
class Span:
    """A list of two: the smallest and the largest value of a sweep."""

    item: Integer | Number

    def allows(self, value: Any) -> bool:
        return Increasing(self.item, 2).allows(value) and len(value) == 2

    def __str__(self) -> str:
        return f"[smallest, largest], each {self.item}"


@dataclass(frozen=True)
class Folder:
    """The name of a folder; whether it exists is for whoever reads it to find out."""

    def allows(self, value: Any) -> bool:
        return type(value) is str and value != ""

    def __str__(self) -> str:
        return "folder, relative to the repository"


@dataclass(frozen=True)
class Rule:
    """A condition on several parameters together, and what to say where it fails."""

    message: str
    holds: Callable[[Mapping[str, Any]], bool]


Parameter = Integer | Number | Increasing | Span | Folder


def validate(namespace: Mapping[str, Any], *rules: Rule, **parameters: Parameter) -> None:
    """Check a chapter's parameters; silent if they are fine.

    Args:
        namespace: the notebook's ``globals()``.
        rules: joint conditions, looked at once every parameter is allowed by itself.
        parameters: each parameter's name and what it may be.

    Raises:
        ValueError: a parameter is missing, unknown, of another type or out of range, or a rule
            fails. One message lists every problem.
    """
    problems = [
        f"{name} is not a parameter of this chapter; it has {', '.join(parameters)}"
        for name in _injected_names(namespace)
        if name not in parameters
    ]
    for name, allowed in parameters.items():
        if name not in namespace:
            problems.append(f"{name} is missing; allowed: {allowed}")
        elif not allowed.allows(value := namespace[name]):
            problem = f"{name} = {value!r} ({type(value).__name__}); allowed: {allowed}"
            if type(value) is str and isinstance(allowed, Increasing | Span):
                problem += f"; papermill takes a list as -y '{name}: [...]'"
            problems.append(problem)
    if not problems:
        values = {name: namespace[name] for name in parameters}
        problems = [rule.message for rule in rules if not rule.holds(values)]
    if problems:
        raise ValueError("\n  ".join(["parameters of this chapter:", *problems]))


def _injected_names(namespace: Mapping[str, Any]) -> list[str]:
    """Names assigned in the cell before the current one, if papermill injected it."""
    before = namespace.get("In", [])[-2:-1]
    return [
        target.id
        for cell in before
        if cell.startswith(INJECTED)
        for statement in ast.parse(cell).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    ]


def data(name: str) -> Path:
    """Path of a data file of the chapters, in notebooks/data/."""
    return Path(__file__).resolve().parents[1] / "notebooks" / "data" / name


def environment() -> str:
    """One line that names the Python and the libraries a chapter was executed with."""
    libraries = ("torch", "numpy", "scipy", "matplotlib", "pandas")
    versions = [f"{name} {version(name).split('+')[0]}" for name in libraries]
    return " · ".join([f"Python {platform.python_version()}", *versions])
