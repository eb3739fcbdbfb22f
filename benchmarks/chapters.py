"""What every chapter costs: makes benchmarks/chapters.csv.

    OMP_NUM_THREADS=1 python benchmarks/chapters.py [--presets defaults smoke]

Seconds of one core and peak memory of the kernel. `make run` tells them before it begins.
"""

import argparse
import resource

from joblib import Parallel, delayed

from lib import execution
from lib.runs import COSTS
from lib.sweeps import sweep


def measured(chapter: int, preset: str) -> dict[str, float]:
    source = execution.find_chapter(str(chapter))
    parameters = {} if preset == "defaults" else execution.load_preset(preset, source)
    execution.execute(source, parameters)
    kernel = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = kernel.ru_utime + kernel.ru_stime  # time that others take from the core is not ours
    return {"seconds": round(seconds, 1), "GiB": round(kernel.ru_maxrss / 2**20, 2)}


def cost(chapter: int, preset: str) -> dict[str, float]:
    """In a process of its own, whose only child is the kernel."""
    parallel = Parallel(n_jobs=2, max_nbytes=None, backend="multiprocessing")
    return parallel([delayed(measured)(chapter, preset)])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="+", default=["defaults", "smoke"])
    presets = parser.parse_args().presets
    numbers = [int(source.stem[:2]) for source in execution.chapters()]
    points = [(number, preset) for preset in presets for number in numbers]
    print(sweep(("chapter", "preset"), points, cost, path=COSTS))


if __name__ == "__main__":
    main()
