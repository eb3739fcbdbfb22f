"""Sweeps over many points: in parallel, and continued where they were interrupted."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd
from joblib import Parallel, delayed
from tqdm import tqdm

from lib.files import replacing

#: Significant digits of computed numbers, in a file and in memory.
DIGITS = 6


def sweep(
    keys: Sequence[str],
    points: Iterable[tuple],
    compute: Callable[..., dict],
    *,
    path: Path | None = None,
    jobs: int = 1,
) -> pd.DataFrame:
    """One row for each point: its keys, and what ``compute(*point)`` returns.

    With a path, rows that the file holds are not computed again, and the file is replaced after
    every point, sorted by the keys: an interruption loses the points under way, and the file is
    complete at every moment and in the end the same however often the sweep was interrupted.

    Points are computed by joblib, in whichever backend is active: processes by default, or the
    workers of a Dask cluster, inside ``joblib.parallel_config(backend="dask")``.

    Args:
        keys: names of a point's entries.
        points: distinct; entries that CSV can hold.
        compute: a function at the top level of a module, if ``jobs`` is not 1.
        path: a CSV file with the same keys, made if missing; rows of other points are kept.
        jobs: processes, 1 or more, or -1 for one on each core.

    Returns:
        The rows of the points, sorted by the keys.

    Raises:
        ValueError: a point has another number of entries than there are keys, or is repeated, or
            the file has other columns.
    """
    keys, points = list(keys), list(points)
    if len(set(points)) < len(points) or any(len(point) != len(keys) for point in points):
        raise ValueError(f"points must be distinct, with the entries {', '.join(keys)}")
    rows = _read(path, keys)
    missing = [point for point in points if _name(point) not in rows]
    run = Parallel(n_jobs=jobs, return_as="generator_unordered")
    results = run(delayed(_row)(compute, point) for point in missing)
    for point, row in tqdm(results, total=len(missing), disable=None, leave=False):
        rows[_name(point)] = dict(zip(keys, point, strict=True)) | _rounded(row)
        if path:
            with replacing(path) as partial:
                _frame(rows, keys).to_csv(partial, index=False)
    found = [rows[_name(point)] | dict(zip(keys, point, strict=True)) for point in sorted(points)]
    return pd.DataFrame(found)


def _row(compute: Callable[..., dict], point: tuple) -> tuple[tuple, dict]:
    return point, compute(*point)


def _rounded(row: dict) -> dict:
    return {k: float(f"{x:.{DIGITS}g}") if isinstance(x, float) else x for k, x in row.items()}


def _name(point: Iterable) -> tuple[str, ...]:
    """A point as it reads in a file."""
    return tuple(str(entry) for entry in point)


def _frame(rows: dict[tuple[str, ...], dict], keys: list[str]) -> pd.DataFrame:
    """All rows, sorted by the keys, whole numbers written as such."""
    frame = pd.DataFrame(rows.values()).convert_dtypes()
    for key in keys:  # entries read from a file are text
        with suppress(ValueError):
            frame[key] = pd.to_numeric(frame[key])
    return frame.sort_values(keys)


def _read(path: Path | None, keys: list[str]) -> dict[tuple[str, ...], dict]:
    if path is None or not path.exists():
        return {}
    text = pd.read_csv(path, dtype=str, keep_default_na=False)
    if not set(keys) <= set(text.columns):
        raise ValueError(f"{path} must have the columns {', '.join(keys)}")
    rows = zip(text[keys].to_dict("records"), pd.read_csv(path).to_dict("records"), strict=True)
    return {tuple(name.values()): row | name for name, row in rows}
