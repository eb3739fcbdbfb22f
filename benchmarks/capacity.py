"""Smallest widths at the sizes of the source: makes notebooks/data/capacity.csv.

    OMP_NUM_THREADS=1 python benchmarks/capacity.py [--jobs 2]

Points that the file has are not computed again. Closed forms take a few hours of one core, most
of it for d = 128; gradient descent is left out where one search takes more than some minutes.
"""

import argparse

from lib import capacity
from lib.chapter import data
from lib.sweeps import sweep

#: Facts per d^2, of Appendix A.3.1 of Garcia et al.
LOADS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)

#: Bilinear features have rank d (d + 1) / 2: beyond a load of 1/2 a readout cannot interpolate.
CEILING = 1 / 2

#: Most hidden units that are tried: as the source where width goes into random features only.
LARGEST = {"NTK": 65536, "unwhitened": 65536, "whitened": 16384, "data-dependent": 4096}

#: Most facts for gradient descent; above the first number for three seeds of isotropic facts only,
#: and last, since a search takes minutes.
TRAINED, LARGEST_TRAINED = 1100, 2100


def points() -> list[tuple]:
    """Cheap ones first."""
    found = [
        (construction, embedding, d, round(load * d**2), seed, LARGEST.get(construction, 4096))
        for d in (64, 90, 128)
        for embedding in ("isotropic", "spiked", "tied")
        for load in LOADS
        for seed in range(5 if d == 64 else 3)
        for construction in capacity.CONSTRUCTIONS
        if wanted(construction, embedding, d, load, seed)
    ]
    return sorted(found, key=lambda point: (slow(point), point[3] * point[2] ** 2, point))


def slow(point: tuple) -> bool:
    return point[0] == "gradient descent" and point[3] > TRAINED


def wanted(construction: str, embedding: str, d: int, load: float, seed: int) -> bool:
    if construction == "gradient descent":
        few = embedding == "isotropic" and seed < 3
        return embedding != "tied" and load * d**2 <= (LARGEST_TRAINED if few else TRAINED)
    if embedding != "isotropic":
        return d == 64 and load <= CEILING
    return load <= CEILING or (d == 64 and construction != "data-dependent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    sweep(
        capacity.POINT,
        points(),
        capacity.capacity,
        path=data("capacity.csv"),
        jobs=arguments.jobs,
    )


if __name__ == "__main__":
    main()
