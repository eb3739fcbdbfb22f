"""What every chapter costs: makes benchmarks/chapters.csv.

    OMP_NUM_THREADS=1 python benchmarks/chapters.py [--presets defaults smoke]

Seconds and peak memory of the kernel, on one core. `make run` tells them before it begins.
"""

import argparse
import resource
import time

from joblib import Parallel, delayed

from lib import execution
from lib.runs import COSTS
from lib.sweeps import sweep


def measured(chapter: str, preset: str) -> dict[str, float]:
    source = execution.find_chapter(chapter)
    parameters = {} if preset == "defaults" else execution.load_preset(preset, source)
    start = time.perf_counter()
    execution.execute(source, parameters)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    return {"seconds": round(seconds, 1), "GiB": round(peak, 2)}


def cost(chapter: str, preset: str) -> dict[str, float]:
    """In a process of its own, whose only child is the kernel."""
    parallel = Parallel(n_jobs=2, max_nbytes=None, backend="multiprocessing")
    return parallel([delayed(measured)(chapter, preset)])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="+", default=["defaults", "smoke"])
    presets = parser.parse_args().presets
    numbers = [source.stem[:2] for source in execution.chapters()]
    points = [(number, preset) for preset in presets for number in numbers]
    print(sweep(("chapter", "preset"), points, cost, path=COSTS))


if __name__ == "__main__":
    main()
