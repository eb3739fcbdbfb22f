"""A reader's own runs: a chapter with other parameters, or copies of it along one of them.

python -m lib.runs run 07 [--preset paper] [-p NAME VALUE]...
python -m lib.runs sweep 07 d 32 48 64 [--preset smoke] [-p NAME VALUE]...
"""

import argparse
import json
import keyword
import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from nbformat import NotebookNode
from tqdm import tqdm

from lib import claims, execution, figures
from lib.execution import ChapterError, recorded_claims, write
from lib.files import replacing

#: Seconds and memory of every chapter and preset, measured by benchmarks/chapters.py.
COSTS = execution.ROOT / "benchmarks" / "chapters.csv"

#: Claims with more settings than this are drawn without a legend.
LEGEND = 6


def chosen(number: str, preset: str | None, given: list[list[str]]) -> tuple[Path, dict[str, Any]]:
    """The chapter, and its parameters: those of the preset, replaced by those given one by one.

    Raises:
        ChapterError: there is no such chapter or preset, or a name is not one of Python.
    """
    source = execution.find_chapter(number)
    parameters = {} if preset is None else execution.load_preset(preset, source)
    for name, value in given:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ChapterError(f"{name!r} cannot be the name of a parameter")
        parameters[name] = literal(value)
    return source, parameters


def literal(value: str) -> Any:
    """A value as JSON reads it (3, 0.5, true, [1, 2]), else the string itself."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def announcement(source: Path, preset: str | None, parameters: dict[str, Any]) -> str:
    """What will be run, and what it cost when it was measured."""
    others = ", ".join(f"{name} = {value}" for name, value in parameters.items())
    lines = [f"{source.stem} with {others or 'its defaults'}"]
    costs = pd.read_csv(COSTS)
    costs = costs[costs["chapter"] == int(source.stem[:2])].set_index("preset")
    measured = preset or ("these parameters" if parameters else "defaults")
    for name in dict.fromkeys([measured, "defaults"]):
        if name in costs.index:
            seconds, gib = costs.loc[name, ["seconds", "GiB"]]
            lines.append(f"measured with {name}: {seconds:.0f} s of one core, {gib:.1f} GiB")
        else:
            lines.append(f"not measured with {name}")
    return "\n  ".join(lines)


def comparison(records: list[dict], committed: list[dict]) -> list[str]:
    """One line for each verdict, with the committed one where it differs; then how many do."""
    before = {record["id"]: record["verdict"] for record in committed}
    lines, changed = [], 0
    for record in records:
        old = before.get(record["id"], "not there")
        differs = old != record["verdict"]
        changed += differs
        note = f"  (committed: {old})" if differs else ""
        lines.append(f"{record['verdict']:30s} {record['id']}{note}")
    return [*lines, f"{changed} of {len(records)} verdicts differ from the committed ones"]


def committed_claims(source: Path) -> list[dict]:
    """The claims of a chapter's committed twin; none, if it has no twin yet."""
    twin = source.with_suffix(".ipynb")
    return recorded_claims(nbformat.read(twin, as_version=4)) if twin.exists() else []


def run(number: str, preset: str | None, given: list[list[str]]) -> Path:
    """Execute a copy under _runs/, saying what is run before, and what came out after."""
    source, parameters = chosen(number, preset, given)
    print(announcement(source, preset, parameters), flush=True)
    notebook = execution.execute(source, parameters)
    write(notebook, target := execution.RUNS / (preset or "custom") / f"{source.stem}.ipynb")
    for line in comparison(recorded_claims(notebook), committed_claims(source)):
        print(line)
    print(f"wrote {target.relative_to(execution.ROOT)}")
    return target


def sweep(
    number: str,
    name: str,
    values: list[str],
    preset: str | None,
    given: list[list[str]],
    *,
    jobs: int,
) -> Path:
    """Execute a copy for each value of one parameter, and draw what the claims measure.

    Copies are written as they finish, so that an interruption loses those under way only.

    Raises:
        ChapterError: as :func:`chosen`, values are repeated, or a copy failed.
    """
    if len(set(values)) < len(values):
        raise ChapterError(f"values of {name} must be distinct; got {', '.join(values)}")
    copies = {value: chosen(number, preset, [*given, [name, value]]) for value in values}
    source, parameters = copies[values[0]]
    print(announcement(source, preset, parameters), flush=True)
    print(f"  and {len(values) - 1} more, for {name} = {', '.join(values[1:])}", flush=True)
    folder = execution.RUNS / f"sweep_{name}"
    parallel = Parallel(n_jobs=jobs, return_as="generator_unordered")
    finished = parallel(delayed(_copy)(value, *copy) for value, copy in copies.items())
    found = {}
    for value, notebook in tqdm(finished, total=len(copies), disable=None, desc=source.stem):
        write(notebook, folder / value / f"{source.stem}.ipynb")
        found[value] = recorded_claims(notebook)
    target = folder / f"{source.stem}.png"
    draw(name, {value: found[value] for value in values}, target)
    print(f"wrote {target.relative_to(execution.ROOT)}, and the copies beside it")
    return target


def _copy(value: str, source: Path, parameters: dict[str, Any]) -> tuple[str, NotebookNode]:
    return value, execution.execute(source, parameters)


def draw(name: str, found: dict[str, list[dict]], path: Path) -> None:
    """What every claim measures against a parameter; open marks where it is not reproduced."""
    figures.use_style()
    ids = list(dict.fromkeys(record["id"] for records in found.values() for record in records))
    rows = math.ceil(len(ids) / 2)
    fig, axes = plt.subplots(rows, 2, figsize=(10, 3 * rows), squeeze=False)
    for ax, claim in zip(axes.flat, ids, strict=False):
        _draw_claim(ax, claim, found)
        ax.set(title=claim, xlabel=name)
    for ax in axes.flat[len(ids) :]:
        ax.remove()
    with replacing(path) as partial:
        fig.savefig(partial, format="png")
    plt.close(fig)


def _draw_claim(ax: plt.Axes, claim: str, found: dict[str, list[dict]]) -> None:
    numeric = all(isinstance(literal(value), int | float) for value in found)
    series: dict[str, list[tuple]] = {}
    for place, (value, records) in enumerate(found.items()):
        for record in records:
            if record["id"] == claim:
                reproduced = record["verdict"] == claims.REPRODUCED
                x = literal(value) if numeric else place
                for setting, y in record["measured"].items():
                    series.setdefault(setting, []).append((x, y, reproduced))
    for i, (setting, points) in enumerate(series.items()):
        x, y, _ = np.array(points, dtype=float).T
        figures.line(ax, x, y, setting, color=f"C{i}", lw=1)
        for *at, reproduced in points:
            ax.plot(*at, "o", color=f"C{i}", mfc=f"C{i}" if reproduced else "white")
    if not numeric:
        ax.set_xticks(range(len(found)), list(found))
    if 1 < len(series) <= LEGEND:
        ax.legend(fontsize=8)


def main(arguments: list[str] | None = None) -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m lib.runs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="execute a copy under _runs/")
    many = commands.add_parser("sweep", help="execute copies for several values of a parameter")
    for command in (one, many):
        command.add_argument("chapter", help="number")
    many.add_argument("name", help="of the parameter")
    many.add_argument("values", nargs="+")
    many.add_argument("--jobs", type=int, default=2, help="copies at a time")
    for command in (one, many):
        command.add_argument("--preset", help="parameters from notebooks/presets/PRESET/")
        command.add_argument(
            "-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), dest="given"
        )
    options = parser.parse_args(arguments)
    with execution.ending_in_words(execution.RUNS):
        if options.command == "run":
            run(options.chapter, options.preset, options.given)
        else:
            sweep(
                options.chapter,
                options.name,
                options.values,
                options.preset,
                options.given,
                jobs=options.jobs,
            )


if __name__ == "__main__":
    main()
