"""MLPs inside a Transformer block: makes three files in notebooks/data.

    OMP_NUM_THREADS=1 python benchmarks/insertion.py [--dim 64] [--seeds 3]

`block_capacity.csv`: the smallest width with which a block answers about facts it has never seen,
for six constructions and F from 64 to 512 (Garcia et al., Fig. 1c, whose setting is d = 128 and
F to 8192). `ablation.csv`: training and fact-adaptive accuracy with residual connection and free
value projections (Fig. 10). `whitened_values.csv`: capacity against usability over condition
numbers and whitening strengths (Dugan et al., Fig. 3b and 3c). About an hour and a half of one
core. Points that a file has are not computed again.
"""

import argparse
from itertools import product

from lib import capacity
from lib.chapter import data
from lib.sweeps import sweep
from lib.transformer.capacity import (
    ABLATION_POINT,
    CAPACITY_POINT,
    CRITERIA,
    WHITENING_POINT,
    ablated,
    block_capacity,
    whitened_usability,
)

FACTS = [64, 128, 256, 512]
LARGEST = 2**13

#: The encoder-decoder has a search of its own, for the first seed: it takes longer.
LARGEST_ENCODER = 2**11

#: Widths of the ablation: from half of what stores F facts alone to several times that.
ABLATION = {"gradient descent": [2, 4, 6, 9, 13], "data-dependent": [16, 24, 36, 54, 80]}

#: Condition numbers and strengths of Dugan et al., Appendix A.2.4 (without the largest condition
#: number, which single precision cannot hold), and 1.1 times the widths that gradient descent needs
#: to store the facts, and for a block to answer about them.
CONDITIONS = [1.1, 10.0, 25.0, 250.0, 1e3, 1e4]
STRENGTHS = [0.0, 0.046, 0.1, 0.22, 0.46, 1.0]
WHITENED_WIDTHS = [8, 13]

#: F of the ablation and of the whitening.
LOADED = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    d = arguments.dim
    for seed in range(arguments.seeds):
        points = [
            (construction, criterion, d, F, seed, LARGEST)
            for F, criterion, construction in product(FACTS, CRITERIA, capacity.CONSTRUCTIONS)
        ]
        if seed == 0:
            points += [
                ("encoder-decoder", criterion, d, F, seed, LARGEST_ENCODER)
                for F, criterion in product(FACTS, CRITERIA)
            ]
        print(sweep(CAPACITY_POINT, points, block_capacity, path=data("block_capacity.csv")))
        points = [
            (construction, residual, free, d, LOADED, width, seed)
            for construction, widths in ABLATION.items()
            for residual, free, width in product([False, True], [False, True], widths)
        ]
        print(sweep(ABLATION_POINT, points, ablated, path=data("ablation.csv")))
        points = [
            (condition, strength, d, LOADED, width, seed)
            for width, condition, strength in product(WHITENED_WIDTHS, CONDITIONS, STRENGTHS)
        ]
        print(sweep(WHITENING_POINT, points, whitened_usability, path=data("whitened_values.csv")))


if __name__ == "__main__":
    main()
