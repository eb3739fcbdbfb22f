"""Margins against usability at the size of the source: makes notebooks/data/usability.csv.

    OMP_NUM_THREADS=1 python benchmarks/usability.py [--seeds 1]

Appendix A.2.2 of Garcia et al.: d = 128, F = 2048, J = 9 and 16 widths from 16 to 256 of MLPs
trained by gradient descent, behind attention that was pretrained for 4000 steps of 1280 sequences
(at our learning rate). Half an hour of one core for each seed. Points that the file has are not
computed again, and the attention is kept in _runs/.
"""

import argparse

import numpy as np
import torch

from lib.chapter import data
from lib.constructions.gradient import Recipe, gradient_descent
from lib.decoding import retrieve, unit_outputs
from lib.execution import ROOT
from lib.facts import FactSet, bijection, sphere
from lib.numerics import generator
from lib.sweeps import sweep
from lib.transformer.training import (
    Plan,
    key_accuracies,
    pretrained_attention,
    query_noise,
)

D, F, JUNK = 128, 2048, 9
WIDTHS = np.unique(np.geomspace(16, 256, 16).round().astype(int)).tolist()
PLAN = Plan(steps=4000, batch=1280, rate=3e-3, checked_every=500)
RECIPE = Recipe(steps=500, rate=2e-2, final_rate=2e-5, checked_every=25)
CONTEXTS = 16


def usability(m: int, seed: int) -> dict[str, float]:
    keys = sphere(F, D, generator=generator(seed, 0)).float()
    kept = ROOT / "_runs" / f"attention_{seed}.pt"
    kept.parent.mkdir(exist_ok=True)
    task, block = pretrained_attention(
        keys, junk=JUNK, plan=PLAN, stream=(seed, 1), checkpoint=kept
    )
    values = sphere(F, D, generator=generator(seed, 2)).float()
    facts = FactSet(keys, values, bijection(F, generator=generator(seed, 3)))
    mlp = gradient_descent(facts, m, generator=generator(seed, 4, m), recipe=RECIPE)
    alone = retrieve(unit_outputs(mlp), facts)
    noise = query_noise(block, task, contexts=CONTEXTS, generator=generator(seed, 5))
    answered = key_accuracies(
        block.with_mlp(mlp, facts),
        task.with_facts(facts),
        contexts=CONTEXTS,
        generator=generator(seed, 6),
    )
    quantiles = torch.quantile(alone.margins, torch.tensor([0.1, 0.5, 0.9])).tolist()
    return {
        "stored": alone.accuracy,
        "smallest margin": alone.minimum_margin,
        "margin 10 %": quantiles[0],
        "margin 50 %": quantiles[1],
        "margin 90 %": quantiles[2],
        "noise ceiling": noise.max().item(),
        "noise mean": noise.mean().item(),
        "answered": answered.mean().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    seeds = parser.parse_args().seeds
    coarse_first = WIDTHS[::4] + WIDTHS[2::4] + WIDTHS[1::2]
    points = [(m, seed) for seed in range(seeds) for m in coarse_first]
    print(sweep(("m", "seed"), points, usability, path=data("usability.csv")).round(3))


if __name__ == "__main__":
    main()
