"""Data files that grow: what they hold already is not computed again."""

from collections.abc import Callable, Iterable

import pandas as pd
from tqdm import tqdm

from lib.chapter import data
from lib.files import replacing


def add_missing(
    name: str, keys: tuple[str, ...], jobs: Iterable[tuple], compute: Callable[..., dict]
) -> pd.DataFrame:
    """Compute the jobs whose keys a file of notebooks/data/ lacks, and return all of it.

    It is written after every job, sorted by the keys, so that an interruption loses one job.
    """
    path = data(name)
    rows = pd.read_csv(path).to_dict("records") if path.exists() else []
    done = {tuple(row[key] for key in keys) for row in rows}
    for job in tqdm([job for job in jobs if job not in done], disable=None):
        rows.append(dict(zip(keys, job, strict=True)) | compute(*job))
        with replacing(path) as partial:
            frame = pd.DataFrame(rows).sort_values(list(keys))
            frame.to_csv(partial, index=False, float_format="%.6g")
    return pd.read_csv(path)
