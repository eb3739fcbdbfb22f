"""Success of the correlation matrix memory at the larger dimensions of chapter 2.

    OMP_NUM_THREADS=1 python benchmarks/cmm_retrieval.py 100 200 400 --draws 50

writes notebooks/data/cmm_retrieval.csv: for each dimension and each of 12 ratios d^2/(F log F)
from 4 to 16, the number of draws in which all facts were stored, and the mean share lost. It
takes a few minutes on one core.
"""

import argparse

import numpy as np
import pandas as pd
from tqdm import tqdm

from lib.chapter import data
from lib.files import replacing
from lib.linear.top1 import facts_lost, matched_facts

RATIOS = np.geomspace(4, 16, 12).round(3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dimensions", type=int, nargs="+")
    parser.add_argument("--draws", type=int, default=50)
    options = parser.parse_args()
    rows = []
    for d, ratio in tqdm([(d, r) for d in options.dimensions for r in RATIOS], disable=None):
        lost = [facts_lost(d, ratio, 0, d, i) for i in range(options.draws)]
        rows.append(
            {
                "d": d,
                "ratio": ratio,
                "draws": options.draws,
                "perfect": sum(n == 0 for n in lost),
                "share_lost": np.mean(lost) / matched_facts(d, ratio),
            }
        )
    with replacing(data("cmm_retrieval.csv")) as partial:
        pd.DataFrame(rows).to_csv(partial, index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
