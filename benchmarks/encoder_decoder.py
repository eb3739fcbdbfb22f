"""Costs of storing facts through codes: makes notebooks/data/encoder_decoder.csv.

    OMP_NUM_THREADS=1 python benchmarks/encoder_decoder.py [--jobs 2]

Points that the file has are not computed again. About half an hour of one core.
"""

import argparse

from lib import encoder_capacity
from lib.chapter import data
from lib.sweeps import sweep

# Keys are written as they read in a file, where whole columns of whole numbers have no decimals.

#: Condition numbers of value tables (Dugan et al., Appendix A.2.4, up to 10^4).
CONDITION_NUMBERS = (1.1, 10.0, 25.0, 50.0, 250.0, 1e3, 1e4)

#: d -> F of isotropic tables.
SIZES = {32: (64, 128, 256, 512), 64: (256, 512, 1024)}

#: What chapter 10 has for d = 64 in its own file.
KNOWN = ("GD", "NTK")

SEEDS = 3


def points() -> list[tuple]:
    """First what Figure 2a needs at d = 32, then the variants, then Figure 2a at d = 64."""
    conditioned = [
        (method, alpha, kappa, 32, 256, seed)
        for seed in range(SEEDS)
        for kappa in CONDITION_NUMBERS
        for alpha in (0, 1)
        for method in ("Bin + JL", "NTK", "NTK, u*", "GD")
    ]
    isotropic = [
        (method, 0, 0.0, d, F, seed)
        for d, counts in SIZES.items()
        for F in counts
        for seed in range(SEEDS)
        for method in encoder_capacity.METHODS
        if not (d == 64 and method in KNOWN)
    ]
    wider = [
        (method, alpha, kappa, 64, 1024, seed)
        for method, strengths, seeds in (("Bin + JL", (0, 1), SEEDS), ("GD", (0,), 1))
        for seed in range(seeds)
        for alpha in strengths
        for kappa in CONDITION_NUMBERS
    ]
    return conditioned + isotropic + wider


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    sweep(
        encoder_capacity.POINT,
        points(),
        encoder_capacity.encoder_capacity,
        path=data("encoder_decoder.csv"),
        jobs=arguments.jobs,
    )


if __name__ == "__main__":
    main()
