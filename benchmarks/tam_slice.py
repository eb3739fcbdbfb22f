"""A slice through the phases of tail-average learning, for the larger dimensions of chapter 4.

    OMP_NUM_THREADS=1 python benchmarks/tam_slice.py 60 100 150 --seeds 3

adds to notebooks/data/tam_slice.csv what is not there yet. On one core a seed takes a few minutes
in dimension 100 and a quarter of an hour in dimension 150. A GPU is used if there is one, on the
same facts.
"""

import argparse

from lib.chapter import data
from lib.sweeps import sweep
from lib.tam.comparison import experiment

R = 0.15
RIDGE = 1e-6
BETA = 10.0
LOADS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.27, 0.29, 0.31, 0.33, 0.35, 0.4, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dimensions", type=int, nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    jobs = [(d, s, a) for d in options.dimensions for s in range(options.seeds) for a in LOADS]
    sweep(
        ("d", "seed", "alpha"),
        jobs,
        lambda d, seed, alpha: experiment(alpha, R, d, seed, ridge=RIDGE, beta=BETA).row(),
        path=data("tam_slice.csv"),
    )


if __name__ == "__main__":
    main()
