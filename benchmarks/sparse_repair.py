"""Facts lost with and without sparse repair, at the larger dimensions of chapter 2.

    OMP_NUM_THREADS=1 python benchmarks/sparse_repair.py 100 150 200 300 400 --draws 10

writes notebooks/data/sparse_repair.csv: the mean number of facts lost by the correlation matrix
memory, by its repair with equal lifts, and with lifts adapted over 8 rounds. It takes about
twenty minutes on one core.
"""

import argparse

import numpy as np
import pandas as pd
from tqdm import tqdm

from lib.chapter import data
from lib.files import replacing
from lib.linear.top1 import facts_lost, matched_facts

RATIOS = (8.0, 7.0, 6.0, 5.0, 4.5, 4.0)
ROUNDS = {"classical": 0, "equal": 1, "adapted": 8}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dimensions", type=int, nargs="+")
    parser.add_argument("--draws", type=int, default=10)
    options = parser.parse_args()
    rows = []
    for d, ratio in tqdm([(d, r) for d in options.dimensions for r in RATIOS], disable=None):
        lost = {
            name: np.mean(
                [facts_lost(d, ratio, 0, 2, d, i, rounds=rounds) for i in range(options.draws)]
            )
            for name, rounds in ROUNDS.items()
        }
        facts = matched_facts(d, ratio)
        rows.append({"d": d, "ratio": ratio, "facts": facts, "draws": options.draws} | lost)
    with replacing(data("sparse_repair.csv")) as partial:
        pd.DataFrame(rows).to_csv(partial, index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
