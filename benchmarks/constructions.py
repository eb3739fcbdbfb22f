"""Time, peak memory, width and accuracy of the constructions at the sizes of the source.

    OMP_NUM_THREADS=2 python benchmarks/constructions.py [--quick]

prints one table, and the exponents of time in the number of facts. Widths are c F log F / d with
the c at which the paper-scale sweep (notebooks/data/capacity.csv) stores everything at a load of
1/2. Each measurement runs in a process of its own; peak memory includes 260 MiB of imports.
"""

import argparse
import time
import warnings

import numpy as np
import pandas as pd
import torch
from alone import alone

from lib import capacity
from lib.constructions.gradient import gradient_descent
from lib.constructions.hebbian import data_dependent, sketched_k2
from lib.constructions.ntk import ntk
from lib.decoding import retrieve
from lib.facts import random_facts
from lib.numerics import generator
from lib.sweeps import sweep

#: c of the width c F log F / d at which all facts are stored, at loads up to 1/2.
FACTORS = {"data-dependent": 2.2, "whitened": 4.6, "gradient descent": 0.25}

#: Dimension and facts at which growth is measured.
GROWTH_D, GROWTH = 64, (512, 1024, 2048)


def construct(name: str, facts, width: int):
    g = generator(1)
    if name == "gradient descent":
        return gradient_descent(facts, width, generator=g, enough=0.0)
    if name == "NTK":
        return ntk(facts, width, generator=g)
    if name == "data-dependent":
        return data_dependent(facts, width, generator=g)
    return sketched_k2(
        facts, width, whitening="full" if name == "whitened" else "none", generator=g
    )


def measure(name: str, d: int, F: int, width: int, dtype: str) -> dict:
    facts = random_facts(F, d, generator=generator(0)).to(dtype=getattr(torch, dtype))
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mlp = construct(name, facts, width)
    seconds = time.perf_counter() - start
    accuracy = retrieve(mlp, facts).accuracy
    return {"seconds": seconds, "accuracy": accuracy, "warnings": len(caught)}


def search() -> float:
    """Seconds of one capacity search at d = 64, F = 1024: closed forms, 5 seeds, 2 processes."""
    points = [
        (name, "isotropic", 64, 1024, seed, 2**14)
        for name in capacity.CONSTRUCTIONS
        if name != "gradient descent"
        for seed in range(5)
    ]
    start = time.perf_counter()
    sweep(capacity.POINT, points, capacity.capacity, jobs=2)
    return time.perf_counter() - start


def width(name: str, d: int, F: int) -> int:
    return round(FACTORS.get(name, 20) * F * np.log(F) / d)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out d = 256 and load 1")
    quick = parser.parse_args().quick
    large = [
        ("data-dependent", 128, 8192, width("data-dependent", 128, 8192), "float32"),
        ("data-dependent", 128, 8192, width("data-dependent", 128, 8192), "float64"),
        ("whitened", 128, 8192, width("whitened", 128, 8192), "float64"),
    ]
    if not quick:
        large += [
            ("data-dependent", 128, 16384, 4096, "float32"),
            ("whitened", 256, 32768, width("whitened", 256, 32768), "float64"),
        ]
    growth = [
        (name, GROWTH_D, F, width(name, GROWTH_D, F), "float32")
        for name in capacity.CONSTRUCTIONS
        for F in GROWTH
    ]
    columns = ["construction", "d", "F", "width", "dtype"]
    rows = [dict(zip(columns, job, strict=True)) | alone(measure, *job) for job in growth + large]
    table = pd.DataFrame(rows)
    print(table.round({"seconds": 2, "accuracy": 5, "peak MiB": 0}).to_string(index=False))
    for name, g in table[table["d"] == GROWTH_D].groupby("construction", sort=False):
        slope = np.polyfit(np.log(g["F"]), np.log(g["seconds"]), 1)[0]
        print(f"{name}: time F^{slope:.1f}")
    print(f"capacity search, d = 64, F = 1024, closed forms, 5 seeds: {search():.0f} s")


if __name__ == "__main__":
    main()
