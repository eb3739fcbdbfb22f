"""A slice through the phases of tail-average learning, for the larger dimensions of chapter 4.

    OMP_NUM_THREADS=1 python benchmarks/tam_slice.py 100 150 --seeds 3
    OMP_NUM_THREADS=1 python benchmarks/tam_slice.py 200 --seeds 1

add to notebooks/data/tam_slice.csv what is not there yet. On one core a seed takes a few minutes
in dimension 100, a quarter of an hour in dimension 150 and an hour in dimension 200. A GPU is
used if there is one, on the same facts.
"""

import argparse

import pandas as pd
from tqdm import tqdm

from lib.chapter import data
from lib.files import replacing
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
    path = data("tam_slice.csv")
    rows = pd.read_csv(path).to_dict("records") if path.exists() else []
    done = {(row["d"], row["seed"], row["alpha"]) for row in rows}
    wanted = [(d, s, a) for d in options.dimensions for s in range(options.seeds) for a in LOADS]
    for d, seed, alpha in tqdm([job for job in wanted if job not in done], disable=None):
        run = experiment(alpha, R, d, seed, ridge=RIDGE, beta=BETA)
        rows.append({"d": d, "seed": seed, "alpha": alpha} | run.row())
        frame = pd.DataFrame(rows).sort_values(["d", "seed", "alpha"])
        with replacing(path) as partial:
            frame.to_csv(partial, index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
