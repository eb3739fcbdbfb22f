"""Time and memory of the geometry statistics against the number of facts.

    OMP_NUM_THREADS=1 python benchmarks/geometry.py

prints a row for each F: our blocked computation, L_v where it is exact, and a straightforward one
that forms all (i, j, t) at once, while that takes 2 GiB (at F = 1024 it takes 16); then the fitted
exponents of time and of memory above that of an idle process. Each measurement runs in a process
of its own.
"""

import argparse
import time

import numpy as np
import pandas as pd
import torch
from alone import alone

from lib.constructions.hebbian import feature_kernel, sketched_k2
from lib.facts import FactSet, random_facts
from lib.geometry import kernel_geometry, value_spread
from lib.mlp import GatedMLP
from lib.numerics import generator

D, WIDTH = 64, 512
LARGEST_PLAIN = 512


def setting(F: int) -> tuple[FactSet, GatedMLP]:
    facts = random_facts(F, D, generator=generator(0, F))
    return facts, sketched_k2(facts, WIDTH, whitening="none", generator=generator(1, F))


def idle(F: int) -> dict:
    setting(F)
    return {}


def ours(F: int) -> dict:
    facts, mlp = setting(F)
    start = time.perf_counter()
    kernel_geometry(feature_kernel(mlp), facts.keys, facts.answers, centre=1 / D)
    return {"seconds": time.perf_counter() - start}


def spread(F: int) -> dict:
    facts, _ = setting(F)
    start = time.perf_counter()
    exact = value_spread(facts.answers).exact
    return {"seconds": time.perf_counter() - start if exact else float("nan")}


def plain(F: int) -> dict:
    """E_v, B_Y and kappa from the full tensor of <v_i - v_j, v_t>."""
    facts, mlp = setting(F)
    start = time.perf_counter()
    v = facts.answers
    K = feature_kernel(mlp)(facts.keys, facts.keys).fill_diagonal_(0)
    G = v @ v.T
    Y = G[:, None, :] - G[None, :, :]
    Y[torch.arange(F), :, torch.arange(F)] = 0
    energies = (Y**2).sum(2)
    coupling = (K[:, None, :] * Y).sum(2).abs() / (energies * (K**2).sum(1)[:, None]).sqrt()
    Y[:, torch.arange(F), torch.arange(F)] = 0
    assert energies.max() > 0
    assert coupling.nan_to_num().max() <= 1
    assert Y.sum(2).abs().max() > 0
    return {"seconds": time.perf_counter() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facts", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    options = parser.parse_args()
    rows = {}
    for F in options.facts:
        base = alone(idle, F)["peak MiB"]
        row = {}
        for function in (ours, spread, plain):
            if function is not plain or F <= LARGEST_PLAIN:
                found = alone(function, F)
                row[f"{function.__name__}, s"] = found["seconds"]
                row[f"{function.__name__}, MiB"] = found["peak MiB"] - base
        rows[F] = row
    table = pd.DataFrame(rows).T.rename_axis("F")
    print(table.to_string(float_format="%.4g", na_rep="-"))
    for name, column in table.items():
        known = column.dropna()
        if len(known) > 1 and (known > 0).all():
            slope = np.polyfit(np.log(known.index.to_numpy(float)), np.log(known), 1)[0]
            print(f"{name}: F^{slope:.2f}")


if __name__ == "__main__":
    main()
