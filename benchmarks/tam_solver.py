"""Our solver of the tail-average problem against torch's L-BFGS on a plain autograd version.

    OMP_NUM_THREADS=1 python benchmarks/tam_solver.py --d 100 --alpha 0.2 --r 0.15 --ridge 1e-4

prints, for both, evaluations, seconds, peak memory and the certified relative distance to the
optimum. Each runs in a process of its own, so that the memory is its own. The plain version holds
all n x n scores, keeps the thresholds mu as variables beside W, and lets autograd do the rest; it
stops at the same certificate, computed by our gradient every 20 steps (not timed).
"""

import argparse
import time
from collections.abc import Callable

import pandas as pd
import torch
from alone import alone

from lib.facts import FactSet, gaussian_facts
from lib.linear.learning import _objective, _relative_distance
from lib.numerics import generator
from lib.tam.functional import tail_average_loss, tail_size
from lib.tam.learning import learn_list

BETA = 10.0
STEPS_BETWEEN_CHECKS = 20
MOST_EVALUATIONS = 4000


def ours(facts: FactSet, r: float, ridge: float, tolerance: float) -> dict:
    """The library's solver."""
    start = time.perf_counter()
    learned = learn_list(facts, r, ridge=ridge, beta=BETA, tolerance=tolerance)
    return {
        "evaluations": learned.iterations,
        "seconds": time.perf_counter() - start,
        "distance": learned.distance,
    }


def plain(facts: FactSet, r: float, ridge: float, tolerance: float) -> dict:
    """torch.optim.LBFGS over W and mu together."""
    n, d = facts.keys.shape
    k, coefficient = tail_size(n - 1, r), ridge * n / d**2
    W = torch.zeros(d, d, dtype=torch.float64, requires_grad=True)
    mu = torch.zeros(n, dtype=torch.float64, requires_grad=True)
    own = torch.eye(n, dtype=torch.bool)
    optimiser = torch.optim.LBFGS(
        [W, mu],
        max_iter=STEPS_BETWEEN_CHECKS,
        max_eval=10 * STEPS_BETWEEN_CHECKS,
        history_size=30,
        tolerance_grad=0,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )
    evaluations = 0

    def closure() -> torch.Tensor:
        nonlocal evaluations
        evaluations += 1
        optimiser.zero_grad()
        scores = facts.keys @ W.T @ facts.values.T
        hinges = torch.nn.functional.softplus(scores - mu[:, None], beta=BETA).masked_fill(own, 0)
        level = mu + hinges.sum(1) / k
        loss = torch.nn.functional.softplus(level - scores.diagonal()).sum()
        total = loss + coefficient / 2 * (W**2).sum()
        total.backward()
        return total

    seconds, distance = 0.0, float("inf")
    while distance > tolerance and evaluations < MOST_EVALUATIONS:
        start = time.perf_counter()
        optimiser.step(closure)
        seconds += time.perf_counter() - start
        at = W.detach()
        value, gradient = _objective(at, facts, tail_average_loss(k, BETA), coefficient)
        distance = _relative_distance(value, gradient, at, coefficient)
    return {"evaluations": evaluations, "seconds": seconds, "distance": distance}


def measure(solver: Callable[..., dict], options: argparse.Namespace) -> dict:
    """Draw the facts and run one of the two."""
    n = round(options.alpha * options.d**2)
    facts = gaussian_facts(n, options.d, generator=generator(0, options.d))
    found = solver(facts, options.r, options.ridge, options.tolerance)
    return {"solver": solver.__name__} | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--d", type=int, default=100)
    parser.add_argument("--alpha", type=float, default=0.2)
    parser.add_argument("--r", type=float, default=0.15)
    parser.add_argument("--ridge", type=float, default=1e-4)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    options = parser.parse_args()
    rows = [alone(measure, solver, options) for solver in (ours, plain)]
    print(pd.DataFrame(rows).set_index("solver").to_string(float_format="%.4g"))


if __name__ == "__main__":
    main()
