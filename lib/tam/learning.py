"""Learning a linear memory that keeps every right value near the top of its list.

    min_W  sum_i log(1 + exp(-m_i)) + (lambda F / (2 d^2)) |W|_F^2,   m_i = s_f(i),i - T_i,

T_i the smoothed average of the largest fraction r of the competitors' scores of query i.

Source: Barnfield et al., Sections 3 and 4.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from scipy.sparse.linalg import LinearOperator, cg
from torch import Tensor

from lib.decoding import score_blocks
from lib.facts import FactSet
from lib.linear.learning import (
    CACHED_ENTRIES,
    Learned,
    Loss,
    NotConverged,
    check_memory,
    hessian_product,
    learn,
)
from lib.linear.stores import linear_memory
from lib.numerics import check_positive
from lib.tam.functional import (
    smoothed_tail_average,
    tail_average,
    tail_average_loss,
    tail_size,
)


def learn_list(
    facts: FactSet,
    r: float,
    *,
    ridge: float,
    beta: float,
    tolerance: float = 1e-2,
    start: Float[Tensor, "d_v d"] | None = None,
) -> Learned:
    """The memory of least tail-average loss, with a certificate.

    By L-BFGS, at every size: Newton's steps are short where the smoothing is sharp.

    Args:
        facts: keys, values, targets; float64.
        r: tail fraction in (0, 1]; the list has ceil(r (N - 1)) of the N - 1 competitors.
        ridge: lambda > 0.
        beta: smoothing of the tail average, > 0.
        tolerance: bound on |W - W*|_F / |W|_F to be certified. The norm is usually known much
            better.
        start: first iterate, for instance a neighbour's solution; zero by default.

    Raises:
        ValueError: an argument is out of its range.
        NotConverged: the certificate was not reached.

    Source: Barnfield et al., eq. 31.
    """
    loss, coefficient = _problem(facts, r, ridge, beta)
    return learn(facts, loss, ridge=coefficient, tolerance=tolerance, start=start, dense_limit=0)


def ridge_path(
    facts: FactSet, r: float, ridges: Iterable[float], *, beta: float, tolerance: float = 1e-2
) -> Iterator[Learned]:
    """:func:`learn_list` at one ridge after another, each from the solution before.

    Fastest in order of falling ridges.
    """
    W = None
    for ridge in ridges:
        learned = learn_list(facts, r, ridge=ridge, beta=beta, tolerance=tolerance, start=W)
        W = learned.W
        yield learned


def _problem(facts: FactSet, r: float, ridge: float, beta: float) -> tuple[Loss, float]:
    """The loss and the coefficient of |W|_F^2 / 2."""
    coefficient = ridge_coefficient(facts, ridge)
    return tail_average_loss(tail_size(len(facts.values) - 1, r), beta), coefficient


def ridge_coefficient(facts: FactSet, ridge: float) -> float:
    """lambda F / d^2, the coefficient of |W|_F^2 / 2 that ``learn`` takes, for lambda = ridge > 0.

    Raises:
        ValueError: ridge is not positive and finite.
    """
    check_positive(ridge=ridge)
    return ridge * len(facts) / facts.keys.shape[1] ** 2


@dataclass(frozen=True)
class Lists:
    """How a memory ranks the right values.

    Attributes:
        right: scores s_f(i),i of the right values.
        margins: right scores above the smoothed tail average of their competitors.
        certified: whether they beat the plain tail average, so that they are among the top k.
        percentiles: share of competitors that do not score above them.
        norm: |W|_F / d.

    Source: Barnfield et al., Section 3.3.
    """

    right: Float[Tensor, " F"]
    margins: Float[Tensor, " F"]
    certified: Bool[Tensor, " F"]
    percentiles: Float[Tensor, " F"]
    norm: float

    @property
    def loss(self) -> float:
        """The average loss, without the ridge."""
        return torch.nn.functional.softplus(-self.margins).mean().item()


def rank(W: Float[Tensor, "d_v d"], facts: FactSet, r: float, *, beta: float) -> Lists:
    """Scores, margins and percentiles of all facts, in blocks of queries; on the CPU, to look at.

    Raises:
        ValueError: r is not in (0, 1], beta is not positive, W is not finite or does not fit the
            facts, or a score is not finite.
    """
    check_memory("W", W, facts)
    m = len(facts.values) - 1
    k = tail_size(m, r)
    check_positive(beta=beta)
    parts = []
    for rows, scores in score_blocks(linear_memory(W), facts, entries=CACHED_ENTRIES):
        own = torch.zeros_like(scores, dtype=torch.bool)
        own.scatter_(1, facts.targets[rows, None], value=True)
        right, competitors = scores[own], scores[~own].reshape(-1, m)
        parts.append(
            (
                right,
                right - smoothed_tail_average(competitors, k, beta),
                (right > tail_average(competitors, k))
                & ((competitors >= right[:, None]).sum(1) < k),  # an average of ties may round
                (competitors <= right[:, None]).to(right).mean(1),
            )
        )
    columns = [torch.cat(column).cpu() for column in zip(*parts, strict=True)]
    return Lists(*columns, norm=W.norm().item() / facts.keys.shape[1])


# --- leaving one fact out -----------------------------------------------------------------------


@dataclass(frozen=True)
class Removal:
    """What storing one fact adds to the memory, and what the rank-one reduction says of it.

    Attributes:
        change: W minus the minimiser without the fact.
        predicted: sigma(-m) H^{-1}[v k^T], with m the fact's margin under W and H the Hessian
            without the fact.
    """

    change: Float[Tensor, "d_v d"]
    predicted: Float[Tensor, "d_v d"]

    @property
    def remainder(self) -> float:
        """|change - predicted|_F."""
        return (self.change - self.predicted).norm().item()


def remove_fact(
    W: Float[Tensor, "d_v d"],
    facts: FactSet,
    fact: int,
    r: float,
    *,
    ridge: float,
    beta: float,
    tolerance: float = 1e-6,
) -> Removal:
    """Learn again without one fact, its value included, the list's size and the ridge unchanged.

    Args:
        W: the minimiser with all facts, to about the same tolerance.
        facts: every value answers exactly one key.
        fact: the one to leave out, in [0, F).
        r, ridge, beta, tolerance: as in :func:`learn_list`.

    Raises:
        ValueError: fact is out of range, values are shared or spare, or r is so large that the
            list does not fit the remaining competitors.
        NotConverged: a certificate was not reached.

    Source: Barnfield et al., Proposition 3.
    """
    if not 0 <= fact < len(facts):
        raise ValueError(f"fact must be in [0, {len(facts)}); got {fact}")
    if facts.targets.sort().values.tolist() != list(range(len(facts.values))):
        raise ValueError("every value must answer exactly one key; some are shared or spare")
    if tail_size(len(facts) - 1, r) > len(facts) - 2:
        raise ValueError(f"r must leave a competitor out of the list; {r} of {len(facts)} does not")
    target = facts.targets[fact]
    rest = torch.arange(len(facts), device=target.device) != fact
    others = FactSet(
        facts.keys[rest],
        facts.values[torch.arange(len(facts), device=target.device) != target],
        facts.targets[rest] - (facts.targets[rest] > target).to(target),
    )
    loss, coefficient = _problem(facts, r, ridge, beta)
    W_rest = learn(others, loss, ridge=coefficient, tolerance=tolerance, start=W, dense_limit=0).W
    only = FactSet(facts.keys[fact, None], facts.values, target[None])
    margin = rank(W, only, r, beta=beta).margins
    feature = torch.outer(facts.values[target], facts.keys[fact])
    response = _inverse_hessian(W_rest, others, loss, coefficient, feature, tolerance)
    return Removal(W - W_rest, torch.sigmoid(-margin).to(response) * response)


def _inverse_hessian(
    W: Tensor, facts: FactSet, loss: Loss, ridge: float, right: Tensor, tolerance: float
) -> Tensor:
    """The X with Hessian X + ridge X = right, by conjugate gradients."""

    def product(flat):
        X = torch.from_numpy(flat).reshape(W.shape).to(W)
        return (hessian_product(W, facts, loss, X) + ridge * X).cpu().numpy().ravel()

    operator = LinearOperator((W.numel(), W.numel()), matvec=product, dtype="float64")
    solution, failed = cg(operator, right.cpu().numpy().ravel(), rtol=tolerance)
    if failed:
        raise NotConverged(f"conjugate gradients did not reach {tolerance:g} in {failed} steps")
    return torch.from_numpy(solution).reshape(W.shape).to(W)
