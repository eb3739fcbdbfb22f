"""Exact critical numbers of facts, certified on both sides, for the larger dimensions of chapter 2.

    OMP_NUM_THREADS=1 python benchmarks/critical_numbers.py 10 14 20 24 30 36 40 48 --seeds 8
    OMP_NUM_THREADS=1 python benchmarks/critical_numbers.py 60 --seeds 3

add to notebooks/data/critical_numbers.csv what is not there yet. A seed takes 5 seconds in
dimension 30, a minute in dimension 48 and five minutes in dimension 60 on one core.
"""

import argparse

from lib.chapter import data
from lib.linear.top1 import critical_number_of_seed
from lib.sweeps import sweep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dimensions", type=int, nargs="+")
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    jobs = [(d, s) for d in options.dimensions for s in range(options.seeds)]
    table = sweep(
        ("d", "seed"),
        jobs,
        lambda d, seed: {"n_c": critical_number_of_seed(d, seed)},
        path=data("critical_numbers.csv"),
    )
    print(table.groupby("d")["n_c"].describe())


if __name__ == "__main__":
    main()
