"""Sweeps over many points: in parallel, and continued where they were interrupted."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd
from joblib import Parallel, delayed
from tqdm import tqdm

from lib.files import replacing

#: Numbers in a data file have this many significant digits.
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
    missing = [point for point in points if point not in rows]
    run = Parallel(n_jobs=jobs, return_as="generator_unordered")
    results = run(delayed(_row)(compute, point) for point in missing)
    for point, row in tqdm(results, total=len(missing), disable=None, leave=False):
        rows[point] = dict(zip(keys, point, strict=True)) | row
        if path:
            with replacing(path) as partial:
                frame = pd.DataFrame(rows.values()).sort_values(keys)
                frame.to_csv(partial, index=False, float_format=f"%.{DIGITS}g")
    rows = _read(path, keys) if path else rows
    return pd.DataFrame(rows[point] for point in sorted(points))


def _row(compute: Callable[..., dict], point: tuple) -> tuple[tuple, dict]:
    return point, compute(*point)


def _read(path: Path | None, keys: list[str]) -> dict[tuple, dict]:
    if path is None or not path.exists():
        return {}
    frame = pd.read_csv(path)
    if not set(keys) <= set(frame.columns):
        raise ValueError(f"{path} must have the columns {', '.join(keys)}")
    return {tuple(row[key] for key in keys): row for row in frame.to_dict("records")}
