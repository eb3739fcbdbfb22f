"""Time and accuracy of decodability, and of a first-order method on the same tables.

    OMP_NUM_THREADS=1 python benchmarks/decodability.py [--values 4096] [--d 64]

prints a row for each table of values: seconds of processor time, rho, the largest relative duality
gap, and how far below the optimum Adam ends in its worst value, on the smallest margin of unit
outputs, started at the values themselves.
"""

import argparse
import time

import pandas as pd
import torch
from torch import Tensor

from lib.decodability import decodability
from lib.facts import gaussian, ill_condition, sphere, spike
from lib.numerics import generator

#: Values that the first-order method is run on, and its steps and rate.
COMPARED, STEPS, RATE = 128, 1000, 1e-2


def tables(N: int, d: int) -> dict[str, Tensor]:
    isotropic = sphere(N, d, generator=generator(0))
    (axis,) = sphere(1, d, generator=generator(1))
    return {
        "sphere": isotropic,
        "Gaussian": gaussian(N, d, generator=generator(2)),
        "spike 1.5": spike(isotropic, axis, 1.5),
        "spike 50": spike(isotropic, axis, 50.0),
    } | {f"condition {k:g}": ill_condition(isotropic, k) for k in (10.0, 1e2, 1e4, 1e6)}


def first_order(values: Tensor) -> Tensor:
    """Radii that Adam achieves, the best over all steps, for a table of few values."""
    X = values - values.mean(0)
    differences = X[:, None] - X
    itself = torch.eye(len(X), dtype=torch.bool)
    W = differences / (differences.norm(dim=2) + itself)[..., None]
    outputs = X.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([outputs], lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    best = torch.full((len(X),), -1.0, dtype=X.dtype)
    for _ in range(STEPS):
        u = outputs / outputs.norm(dim=1, keepdim=True)
        margins = torch.einsum("ijd,id->ij", W, u).masked_fill(itself, torch.inf).amin(1)
        best = torch.maximum(best, margins.detach())
        optimizer.zero_grad()
        (-margins.sum()).backward()
        optimizer.step()
        schedule.step()
    return best


def row(values: Tensor) -> dict[str, float]:
    begin = time.process_time()
    found = decodability(values)
    seconds = time.process_time() - begin
    held = found.decodable
    few = values[:COMPARED]
    exact = decodability(few)
    short = 1 - first_order(few)[exact.decodable] / exact.radii[exact.decodable]
    return {
        "seconds": seconds,
        "rho": found.rho,
        "lost": int((~held).sum()),
        "gap / radius": (found.gaps[held] / found.radii[held]).max().item(),
        "first order, worst shortfall": short.max().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=4096)
    parser.add_argument("--d", type=int, default=64)
    arguments = parser.parse_args()
    rows = {n: row(V) for n, V in tables(arguments.values, arguments.d).items()}
    print(pd.DataFrame(rows).T.to_string(float_format="{:.3g}".format))


if __name__ == "__main__":
    main()
