"""Top-1 retrieval by correlation matrix memories, plain and repaired; and where it must end.

Facts are Gaussian: keys and values drawn from N(0, I_d / d), key i with value i.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from scipy.optimize import brentq
from torch import Tensor

from lib.decoding import Retrieval, retrieve
from lib.facts import FactSet, gaussian_facts
from lib.linear.certificates import critical_number
from lib.linear.stores import linear_memory, outer_product_store
from lib.numerics import check_count, check_positive, generator, row_blocks


@dataclass(frozen=True)
class Repair:
    """A sparse repair: a correlation matrix memory, and lifts for the facts it leaves deficient.

    Attributes:
        W: diag(W0, W1), the repaired memory.
        base: diag(W0, 0), the memory before the repair.
        main: number of coordinates of block 0.
        deficient: the facts that are lifted, B.
        lifts: weight of each fact's outer product in W1, times |v_i^1|^2 |k_i^1|^2: what its own
            score gains; zero outside B.
        before, after: margins without and with the lifts.
    """

    W: Float[Tensor, "d_v d"]
    base: Float[Tensor, "d_v d"]
    main: int
    deficient: Bool[Tensor, " F"]
    lifts: Float[Tensor, " F"]
    before: Retrieval
    after: Retrieval


def sparse_repair(
    facts: FactSet,
    *,
    reserve: float = 0.15,
    gamma: float = 0.02,
    lift: float = 0.04,
    rounds: int = 1,
) -> Repair:
    """Store most facts in a large block of coordinates, repair the rest in a small reserve.

    The first d_0 = d - d_1 coordinates of keys and values hold a correlation matrix memory W0,
    scaled by (d / d_0)^2 so that a right score is about 1. Facts with s_ii <= 1 - gamma or some
    s_ij >= 1 - 2 gamma are deficient. In the reserve of d_1 = reserve d coordinates, W1 adds the
    outer products of the deficient facts, each scaled so that its own score gains ``lift``.

    With ``rounds`` above 1 the choice of weights adapts: after each round, every fact whose margin
    is still below gamma gains what it lacks. That goes beyond the construction of the source. The
    defaults are the best of a small grid for d = 100 to 250, where the source gives only limits.

    Args:
        facts: Gaussian facts with d_v = d.
        reserve: d_1 / d in (0, 1), with at least one coordinate on each side.
        gamma: in (0, 1/2).
        lift: > 0, gain of a deficient fact in the first round.
        rounds: >= 1; 1 is the construction of the source.

    Raises:
        ValueError: an argument is out of its range.

    Source: Barnfield et al., Section 2.2 and Proposition 2.
    """
    d = facts.keys.shape[1]
    if facts.values.shape[1] != d:
        raise ValueError(
            f"keys and values must share a dimension; got {d}, {facts.values.shape[1]}"
        )
    reserved = round(reserve * d)
    if not 0 < reserved < d:
        raise ValueError(f"reserve must leave a coordinate on each side of {d}; got {reserve}")
    if not 0 < gamma < 0.5:
        raise ValueError(f"gamma must be in (0, 1/2); got {gamma}")
    check_positive(lift=lift)
    check_count(rounds=rounds)
    main = d - reserved
    base = torch.zeros(d, d).to(facts.keys)
    base[:main, :main] = (d / main) ** 2 * outer_product_store(
        facts.keys[:, :main], facts.values[:, :main]
    )
    before = retrieve(linear_memory(base), facts)
    own = (facts.keys @ base.T * facts.answers).sum(1)
    deficient = (own <= 1 - gamma) | (own - before.margins >= 1 - 2 * gamma)
    keys, answers = facts.keys[:, main:], facts.answers[:, main:]
    gains = (keys**2).sum(1) * (answers**2).sum(1)
    lifts = lift * deficient.to(facts.keys)
    for last in [False] * (rounds - 1) + [True]:
        weights = torch.where(gains > 0, lifts / gains, 0.0)
        W = base.clone()
        W[main:, main:] = outer_product_store(keys * weights[:, None], answers)
        after = retrieve(linear_memory(W), facts)
        if not last:
            lifts = lifts + (gamma - after.margins).clamp(min=0)
    return Repair(W, base, main, lifts > 0, lifts, before, after)


def conjectured_number(d: int) -> float:
    """The number of facts n at which d^2 = n (2 log n - 3 log log n), d >= 3.

    Conjecture 1 without its remainder.

    Raises:
        ValueError: d is below 3 or not finite.

    Source: Barnfield et al., eq. 22.
    """
    if not 3 <= d < math.inf:
        raise ValueError(f"d must be at least 3; got {d}")
    return brentq(lambda n: n * (2 * math.log(n) - 3 * math.log(math.log(n))) - d * d, 3, d**4)


def critical_number_of_seed(d: int, seed: int) -> int:
    """Certified critical number of facts of the Gaussian stream of a seed in dimension d.

    The stream is 1.6 times as long as conjectured, and the number bisected as in
    :func:`lib.linear.certificates.critical_number`.
    """
    stream = gaussian_facts(round(1.6 * conjectured_number(d)) + 8, d, generator=generator(seed, d))
    return critical_number(stream.keys, stream.values)


def independent_surrogate(n: int, *, draws: int, generator: torch.Generator) -> tuple[float, float]:
    """delta_n, the d_c^2 / n of n facts if all n^2 score directions were independent.

    delta_n = E min_t [(t - g_1)^2 + sum_{j >= 2} (g_j - t)_+^2] over standard Gaussians: the
    squared distance of a Gaussian from the cone of scores whose first entry is the largest. By
    the conic kinematic formula, d^2 > n delta_n is what independent directions need. Its
    expansion is 2 log n - 3 log log n.

    Args:
        n: facts, at least 2.
        draws: Monte Carlo draws, at least 2.

    Returns:
        Estimate and standard error.

    Source: Barnfield et al., Section 2.4, whose calculation is not printed; see Conjecture 1.
    """
    check_count(2, n=n, draws=draws)
    distances = torch.empty(draws, dtype=torch.float64)
    for rows in row_blocks(draws, n):
        g = torch.randn(rows.stop - rows.start, n, dtype=torch.float64, generator=generator)
        own, others = g[:, :1], g[:, 1:].sort(1, descending=True).values
        # With the k largest others above it, the best t is the mean of those and g_1.
        means = torch.cat([own, others], 1).cumsum(1) / torch.arange(1, n + 1)
        t = means.gather(1, (others > means[:, :-1]).sum(1, keepdim=True))
        distances[rows] = ((t - own) ** 2).squeeze(1) + ((others - t).clamp(min=0) ** 2).sum(1)
    return distances.mean().item(), (distances.std() / draws**0.5).item()


def matched_facts(d: int, ratio: float) -> int:
    """The number of facts n, rounded, at which d^2 / (n log n) is ``ratio``.

    Raises:
        ValueError: d is below 1, or ratio is so that n would be below 3.
    """
    if d < 1 or not 0 < ratio <= d * d / (3 * math.log(3)):
        raise ValueError(f"ratio must be in (0, d^2 / (3 log 3)]; got {ratio} for d = {d}")
    return round(brentq(lambda n: ratio * n * math.log(n) - d * d, 2.9, max(4, d * d / ratio)))


def facts_lost(d: int, ratio: float, *stream: int, rounds: int = 0) -> int:
    """Facts lost by the correlation matrix memory, or by its sparse repair with these rounds.

    Args:
        d: dimension.
        ratio: d^2 / (n log n); it fixes the number of facts as in :func:`matched_facts`.
        stream: names the random draw, as in :func:`lib.numerics.generator`.
        rounds: 0 for no repair.
    """
    facts = gaussian_facts(matched_facts(d, ratio), d, generator=generator(*stream))
    if rounds:
        return int((~sparse_repair(facts, rounds=rounds).after.stored).sum())
    W = outer_product_store(facts.keys, facts.values)
    return int((~retrieve(linear_memory(W), facts).stored).sum())
