"""Training steps per second of the recall block, last position against all positions.

    OMP_NUM_THREADS=1 python benchmarks/recall.py

prints one table for d = 128, F = 2048, 9 + 9 junk tokens and a batch of 1280, with a bilinear MLP
of width 256.
"""

import time
from collections.abc import Callable

import pandas as pd
import torch
from full_block import all_positions
from torch import Tensor, nn

from lib.constructions.hebbian import sketched_k2
from lib.facts import random_facts
from lib.numerics import generator
from lib.transformer.block import RecallBlock
from lib.transformer.recall import Sequences, draw_sequences, recall_task

D, F, WIDTH, BATCH = 128, 2048, 256, 1280


def seconds_per_step(last: Callable[[RecallBlock, Sequences], Tensor], steps: int) -> float:
    facts = random_facts(F, D, generator=generator(0)).to(dtype=torch.float32)
    mlp = sketched_k2(facts, WIDTH, generator=generator(1))
    task = recall_task(facts, generator=generator(99))
    block = RecallBlock(task, mlp, generator=generator(2))
    optimizer = torch.optim.AdamW([p for p in block.parameters() if p.requires_grad])
    start = time.perf_counter()
    for step in range(steps):
        g = generator(3, step)
        keys = torch.randint(F, (BATCH,), generator=g)
        loss = nn.functional.cross_entropy(
            last(block, draw_sequences(task, keys, generator=g)), facts.targets[keys]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (time.perf_counter() - start) / steps


def main() -> None:
    ways = {
        "last position": (lambda block, s: block(s), 20),
        "all positions": (lambda block, s: all_positions(block, s)[:, -1], 3),
    }
    table = pd.DataFrame(
        {name: {"seconds per step": seconds_per_step(*way)} for name, way in ways.items()}
    ).T
    table["times faster"] = table["seconds per step"].max() / table["seconds per step"]
    print(table.round(3))


if __name__ == "__main__":
    main()
