"""Learning a linear memory from a convex listwise loss.

    min_W  sum_i loss(scores of query i) + (ridge / 2) |W|_F^2,   score of value j: v_j^T W k_i.

A loss sees one block of queries at a time and returns its value, its gradient and its curvature
in the scores; everything else is shared. The objective is ridge-strongly convex, so that
|W - W*|_F <= |gradient|_F / ridge: every answer comes with its distance from the optimum.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lib.facts import FactSet
from lib.numerics import BLOCK_ENTRIES, check_count, check_double, check_positive, row_blocks

#: Largest number of weights for Newton's method unless told otherwise: a Hessian of 128 MiB.
DENSE_LIMIT = 4_096

#: Scores of a block when only value and gradient are asked for: 4 MiB, which stay in cache.
CACHED_ENTRIES = 2**19

#: Corrections that L-BFGS keeps.
MEMORY = 30

#: Share of a line's slope that a step of L-BFGS may leave.
FLATTER = 0.9


@dataclass(frozen=True)
class ListLoss:
    """A loss of the scores of a block of queries, with derivatives in the scores.

    Attributes:
        value: of each query.
        gradient: in the scores.
        curvature: gives the second derivative, when it is asked for.
    """

    value: Float[Tensor, " b"]
    gradient: Float[Tensor, "b N"]
    curvature: Callable[[], "Curvature"]


@dataclass(frozen=True)
class Curvature:
    """The second derivative of each query, diag(diagonal) + sum_r signs_r outer_r outer_r^T."""

    diagonal: Float[Tensor, "b N"]
    outer: tuple[Float[Tensor, "b N"], ...]
    signs: tuple[float, ...]


#: A loss takes the scores and targets of a block of queries, and the rows where the block stands.
Loss = Callable[[Float[Tensor, "b N"], Int[Tensor, " b"], slice], ListLoss]


def cross_entropy(
    scores: Float[Tensor, "b N"], targets: Int[Tensor, " b"], rows: slice = slice(None)
) -> ListLoss:
    """-s_f(i) + log sum_j exp(s_j), the log-likelihood of softmax decoding."""
    target = targets[:, None]
    log_p = torch.log_softmax(scores, 1)
    p = log_p.exp()
    gradient = p.scatter_add(1, target, -torch.ones_like(p[:, :1]))
    value = -log_p.gather(1, target).squeeze(1)
    return ListLoss(value, gradient, lambda: Curvature(p, (p,), (-1.0,)))


def pairwise(
    scores: Float[Tensor, "b N"], targets: Int[Tensor, " b"], rows: slice = slice(None)
) -> ListLoss:
    """sum_{j != f(i)} psi(s_f(i) - s_j) with psi(t) = sqrt(1 + t^2) - t.

    A convex loss of every single margin t. Its slope falls off only like t^-2, where that of the
    cross entropy vanishes exponentially: easy competitors keep some weight.
    """
    target = targets[:, None]
    margins = scores.gather(1, target) - scores
    r = torch.hypot(torch.ones_like(margins), margins)
    losses = torch.where(margins > 0, 1 / (r + margins), r - margins).scatter(1, target, 0.0)
    slopes = losses / r
    own = torch.zeros_like(slopes).scatter(1, target, 1.0)

    def curvature() -> Curvature:
        bends = (r**-3).scatter(1, target, 0.0)
        diagonal = bends + own * bends.sum(1, keepdim=True)
        return Curvature(diagonal, (bends + own, bends - own), (-0.5, 0.5))

    return ListLoss(losses.sum(1), slopes - own * slopes.sum(1, keepdim=True), curvature)


@dataclass(frozen=True)
class Learned:
    """A learned memory and the proof of its accuracy.

    Attributes:
        W: the memory.
        value: the objective at W, ridge included.
        distance: upper bound on |W - W*|_F / |W|_F, for the gradient as computed. Its error
            divided by the ridge comes on top: some 1e-16 of the sum of |k_i| |v_j| over the
            scores that matter, for tail averages 1e-13 (1 + beta |mu|) of it.
        iterations: Newton steps taken, or evaluations made by L-BFGS.
    """

    W: Float[Tensor, "d_v d"]
    value: float
    distance: float
    iterations: int


class NotConverged(RuntimeError):
    """The certificate asked for was not reached."""


def learn(
    facts: FactSet,
    loss: Loss,
    *,
    ridge: float,
    tolerance: float = 1e-4,
    start: Float[Tensor, "d_v d"] | None = None,
    stop: Callable[[Float[Tensor, "d_v d"]], bool] | None = None,
    max_iterations: int | None = None,
    dense_limit: int = DENSE_LIMIT,
) -> Learned:
    """Minimise the regularised loss, by Newton's method or, if large, by L-BFGS.

    Args:
        facts: keys, values, targets; float64.
        loss: for instance :func:`cross_entropy`.
        ridge: > 0, the coefficient of |W|_F^2 / 2 (the source's lambda n / d^2).
        tolerance: relative distance |W - W*|_F / |W|_F that the answer must certify.
        start: first iterate, zero by default.
        stop: end early, without a certificate, once this holds of an iterate.
        max_iterations: steps of Newton (default 200) or evaluations of L-BFGS (5000).
        dense_limit: largest number of weights d_v d for Newton's method with a dense Hessian,
            which takes fewer iterations the smaller the ridge.

    Raises:
        ValueError: ridge or tolerance is not positive, facts are not float64, start has another
            shape or dtype, or max_iterations is negative.
        NotConverged: max_iterations or the precision of float64 was reached first.

    Source: Barnfield et al., eq. 21 (Section 2.4) for the cross entropy.
    """
    shape = (facts.values.shape[1], facts.keys.shape[1])
    check_positive(ridge=ridge, tolerance=tolerance)
    check_double(facts=facts.keys)
    if start is not None:
        check_memory("start", start, facts)
    dense = shape[0] * shape[1] <= dense_limit
    if max_iterations is None:
        max_iterations = 200 if dense else 5000
    check_count(0, max_iterations=max_iterations)
    W = torch.zeros(shape).to(facts.keys) if start is None else start.clone()
    if not dense:
        return _limited_memory(W, facts, loss, ridge, tolerance, stop, max_iterations)
    value, gradient = _objective(W, facts, loss, ridge)
    for iteration in range(max_iterations + 1):
        distance = _relative_distance(value, gradient, W, ridge)
        if distance <= tolerance or (stop is not None and stop(W)):
            return Learned(W, value, distance, iteration)
        hessian = _hessian(W, facts, loss)
        hessian.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(hessian)
        if failed:
            raise NotConverged(_excuse(distance, tolerance, "the ridge is below rounding errors"))
        step = -torch.cholesky_solve(gradient.reshape(-1, 1), factor).reshape(shape)
        decrease = -(gradient * step).sum().item()
        length, rounding = 1.0, 1e-14 * abs(value)
        while True:
            trial = W + length * step
            trial_value, trial_gradient = _objective(trial, facts, loss, ridge)
            if trial_value <= value - 0.25 * length * decrease + rounding:
                break
            length /= 2
            if length < 1e-10:
                raise NotConverged(_excuse(distance, tolerance, "no step decreases the loss"))
        W, value, gradient = trial, trial_value, trial_gradient
    raise NotConverged(_excuse(distance, tolerance, f"{max_iterations} Newton steps were taken"))


def _limited_memory(
    W: Tensor,
    facts: FactSet,
    loss: Loss,
    ridge: float,
    tolerance: float,
    stop: Callable[[Tensor], bool] | None,
    max_iterations: int,
) -> Learned:
    """L-BFGS with a line search that trusts slopes, so that it works below the values' rounding.

    The objective is convex: a step that ends before the line's minimum has decreased it.
    """
    value, gradient = _objective(W, facts, loss, ridge)
    evaluations = 1
    pairs: deque[tuple[Tensor, Tensor]] = deque(maxlen=MEMORY)
    while True:
        distance = _relative_distance(value, gradient, W, ridge)
        if distance <= tolerance or (stop is not None and stop(W)):
            return Learned(W, value, distance, evaluations)
        direction = _quasi_newton(-gradient, pairs)
        slope = (gradient * direction).sum().item()
        length, low, high = 1.0, 0.0, math.inf
        if not pairs:
            length = 1 / gradient.norm().item()
        low_slope, high_slope = slope, math.nan
        while True:
            if evaluations >= max_iterations:
                why = f"{evaluations} evaluations were made"
                raise NotConverged(_excuse(distance, tolerance, why))
            if not (slope < 0 and low < length < high):
                raise NotConverged(_excuse(distance, tolerance, "slopes are lost in rounding"))
            step = length * direction
            trial_value, trial_gradient = _objective(W + step, facts, loss, ridge)
            evaluations += 1
            trial_slope = (trial_gradient * direction).sum().item()
            decreased = trial_slope <= 0 or trial_value <= value + 1e-14 * abs(value)
            if abs(trial_slope) <= FLATTER * -slope and decreased:
                break
            if trial_slope < 0:
                low, low_slope = length, trial_slope
            else:
                high, high_slope = length, trial_slope
            if high == math.inf:
                length *= 4
            else:  # the secant's root, well inside the bracket
                share = low_slope / (low_slope - high_slope)
                length = low + (high - low) * min(max(share, 0.1), 0.9)
        pairs.append((step, trial_gradient - gradient))
        W, value, gradient = W + step, trial_value, trial_gradient


def _quasi_newton(vector: Tensor, pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The inverse Hessian that the pairs (step, change of gradient) suggest, times a vector."""
    result, shares = vector.clone(), []
    for step, change in reversed(pairs):
        share = (step * result).sum() / (step * change).sum()
        result -= share * change
        shares.append(share)
    if pairs:
        step, change = pairs[-1]
        result *= (step * change).sum() / (change * change).sum()
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        result += (share - (change * result).sum() / (step * change).sum()) * step
    return result


def _relative_distance(value: float, gradient: Tensor, W: Tensor, ridge: float) -> float:
    """|gradient| / (ridge |W|): 0 at a stationary point, infinite where it cannot be told."""
    if not gradient.any():
        return 0.0
    norms = gradient.norm().item(), ridge * W.norm().item()
    if not math.isfinite(value) or min(norms) == 0 or max(norms) == math.inf:
        return math.inf
    return norms[0] / norms[1]


def check_memory(name: str, W: Tensor, facts: FactSet) -> None:
    """Raise ValueError unless W is finite, with the dimensions and the dtype of the facts."""
    shape, dtype = (facts.values.shape[1], facts.keys.shape[1]), facts.keys.dtype
    if W.shape != shape or W.dtype != dtype or not W.isfinite().all():
        got = f"{tuple(W.shape)} in {W.dtype}"
        raise ValueError(f"{name} must be finite, of shape {shape}, in {dtype}; got {got}")


def _excuse(distance: float, tolerance: float, why: str) -> str:
    return f"relative distance {distance:.1e} was certified, {tolerance:.1e} asked for: {why}"


def _blocks(W: Tensor, facts: FactSet, loss: Loss, entries: int | None = None):
    if entries is None:
        entries = CACHED_ENTRIES if W.device.type == "cpu" else BLOCK_ENTRIES
    scores = None  # one array for all blocks: new pages would cost as much as the product
    for rows in row_blocks(len(facts), len(facts.values), entries=entries):
        keys = facts.keys[rows]
        if scores is None:
            scores = keys.new_empty(len(keys), len(facts.values))
        block = torch.mm(keys @ W.T, facts.values.T, out=scores[: len(keys)])
        yield keys, loss(block, facts.targets[rows], rows)


def _objective(W: Tensor, facts: FactSet, loss: Loss, ridge: float) -> tuple[float, Tensor]:
    value, gradient = 0.5 * ridge * (W**2).sum(), ridge * W
    for keys, terms in _blocks(W, facts, loss):
        value = value + terms.value.sum()
        gradient = gradient + (terms.gradient @ facts.values).T @ keys
    return value.item(), gradient


def _hessian(W: Tensor, facts: FactSet, loss: Loss) -> Float[Tensor, "D D"]:
    """Second derivative in vec(W), without the ridge."""
    hessian = 0
    entries = BLOCK_ENTRIES // facts.values.shape[1]
    for keys, terms in _blocks(W, facts, loss, entries):
        curvature = terms.curvature()
        moments = second_moments(curvature.diagonal, facts.values)
        for sign, outer in zip(curvature.signs, curvature.outer, strict=True):
            mean = outer @ facts.values
            moments = moments + sign * mean[:, :, None] * mean[:, None, :]
        hessian = hessian + kronecker_sum(moments, keys)
    return hessian


def hessian_product(
    W: Float[Tensor, "d_v d"], facts: FactSet, loss: Loss, X: Float[Tensor, "d_v d"]
) -> Float[Tensor, "d_v d"]:
    """The second derivative at W, without the ridge, applied to X."""
    product = torch.zeros_like(W)
    for keys, terms in _blocks(W, facts, loss):
        curvature = terms.curvature()
        change = keys @ X.T @ facts.values.T
        bent = curvature.diagonal * change
        for sign, outer in zip(curvature.signs, curvature.outer, strict=True):
            bent += sign * (outer * change).sum(1, keepdim=True) * outer
        product += (bent @ facts.values).T @ keys
    return product


def second_moments(
    weights: Float[Tensor, "b N"], vectors: Float[Tensor, "N p"]
) -> Float[Tensor, "b p p"]:
    """sum_j weights_ij x_j x_j^T for each row of weights."""
    p = vectors.shape[1]
    return (weights @ _squares(vectors)).reshape(-1, p, p)


def kronecker_sum(
    matrices: Float[Tensor, "b p p"], vectors: Float[Tensor, "b d"]
) -> Float[Tensor, "D D"]:
    """sum_i M_i (x) k_i k_i^T, acting on vec of a (p, d) matrix stored by rows; D = p d."""
    b, p, _ = matrices.shape
    d = vectors.shape[1]
    product = (matrices.reshape(b, p * p).T @ _squares(vectors)).reshape(p, p, d, d)
    return product.permute(0, 2, 1, 3).reshape(p * d, p * d)


def _squares(vectors: Float[Tensor, "n p"]) -> Float[Tensor, "n P"]:
    """x x^T of each row, itself a row of P = p^2 entries."""
    return (vectors[:, :, None] * vectors[:, None, :]).flatten(1)
