"""Learning a linear memory from a convex listwise loss.

    min_W  sum_i loss(scores of query i) + (ridge / 2) |W|_F^2,   score of value j: v_j^T W k_i.

A loss sees one block of queries at a time and returns its value, its gradient and its curvature
in the scores; everything else is shared. The objective is ridge-strongly convex, so that
|W - W*|_F <= |gradient|_F / ridge: every answer comes with its distance from the optimum.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lib.facts import FactSet
from lib.numerics import BLOCK_ENTRIES, row_blocks

#: Largest number of weights d_v d whose Hessian is formed: 2 GiB in float64.
DENSE_LIMIT = 16_384


@dataclass(frozen=True)
class ListLoss:
    """A loss of the scores of a block of queries, with derivatives in the scores.

    The second derivative of a query is diag(curvature) + sum_r signs_r outer_r outer_r^T.

    Attributes:
        value: of each query.
        gradient: in the scores.
        curvature: diagonal part of the second derivative.
        outer: directions of its low-rank part.
        signs: their coefficients.
    """

    value: Float[Tensor, " b"]
    gradient: Float[Tensor, "b N"]
    curvature: Float[Tensor, "b N"]
    outer: tuple[Float[Tensor, "b N"], ...]
    signs: tuple[float, ...]


Loss = Callable[[Float[Tensor, "b N"], Int[Tensor, " b"]], ListLoss]


def cross_entropy(scores: Float[Tensor, "b N"], targets: Int[Tensor, " b"]) -> ListLoss:
    """-s_f(i) + log sum_j exp(s_j), the log-likelihood of softmax decoding."""
    target = targets[:, None]
    log_p = torch.log_softmax(scores, 1)
    p = log_p.exp()
    gradient = p.scatter_add(1, target, -torch.ones_like(p[:, :1]))
    return ListLoss(-log_p.gather(1, target).squeeze(1), gradient, p, (p,), (-1.0,))


def pairwise(scores: Float[Tensor, "b N"], targets: Int[Tensor, " b"]) -> ListLoss:
    """sum_{j != f(i)} psi(s_f(i) - s_j) with psi(t) = sqrt(1 + t^2) - t.

    A convex loss of every single margin t. Its slope falls off only like t^-2, where that of the
    cross entropy vanishes exponentially: easy competitors keep some weight.
    """
    target = targets[:, None]
    margins = scores.gather(1, target) - scores
    r = torch.hypot(torch.ones_like(margins), margins)
    losses = torch.where(margins > 0, 1 / (r + margins), r - margins).scatter(1, target, 0.0)
    slopes = losses / r
    bends = (r**-3).scatter(1, target, 0.0)
    own = torch.zeros_like(bends).scatter(1, target, 1.0)
    return ListLoss(
        losses.sum(1),
        slopes - own * slopes.sum(1, keepdim=True),
        bends + own * bends.sum(1, keepdim=True),
        (bends + own, bends - own),
        (-0.5, 0.5),
    )


@dataclass(frozen=True)
class Learned:
    """A learned memory and the proof of its accuracy.

    Attributes:
        W: the memory.
        value: the objective at W, ridge included.
        distance: upper bound on |W - W*|_F / |W|_F, for the gradient as computed. Its rounding
            error, some 1e-16 of the sum of |k_i| |v_j| over the scores that matter, divided by
            the ridge, comes on top.
        iterations: Newton steps taken.
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
    max_iterations: int = 200,
) -> Learned:
    """Minimise the regularised loss by Newton's method with a dense Hessian.

    Args:
        facts: keys, values, targets; float64.
        loss: for instance :func:`cross_entropy`.
        ridge: > 0, the coefficient of |W|_F^2 / 2 (the source's lambda n / d^2).
        tolerance: relative distance |W - W*|_F / |W|_F that the answer must certify.
        start: first iterate, zero by default.
        stop: end early, without a certificate, once this holds of an iterate.
        max_iterations: Newton steps before giving up.

    Raises:
        ValueError: ridge is not positive, start has another shape, max_iterations is negative, or
            d_v d is above DENSE_LIMIT.
        NotConverged: max_iterations or the precision of float64 was reached first.

    Source: Barnfield et al., eq. 21 (Section 2.4) for the cross entropy.
    """
    shape = (facts.values.shape[1], facts.keys.shape[1])
    if not 0 < ridge < float("inf"):
        raise ValueError(f"ridge must be finite and > 0; got {ridge}")
    if shape[0] * shape[1] > DENSE_LIMIT:
        raise ValueError(f"d_v d must be at most {DENSE_LIMIT}; got {shape[0] * shape[1]}")
    if start is not None and (start.shape != shape or not start.isfinite().all()):
        raise ValueError(f"start must be finite, of shape {shape}; got {tuple(start.shape)}")
    if max_iterations < 0:
        raise ValueError(f"max_iterations must be at least 0; got {max_iterations}")
    W = torch.zeros(shape).to(facts.keys) if start is None else start.clone()
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


def _relative_distance(value: float, gradient: Tensor, W: Tensor, ridge: float) -> float:
    """|gradient| / (ridge |W|): 0 at a stationary point, infinite where it cannot be told."""
    if not gradient.any():
        return 0.0
    norms = gradient.norm().item(), ridge * W.norm().item()
    if not math.isfinite(value) or min(norms) == 0 or max(norms) == math.inf:
        return math.inf
    return norms[0] / norms[1]


def _excuse(distance: float, tolerance: float, why: str) -> str:
    return f"relative distance {distance:.1e} was certified, {tolerance:.1e} asked for: {why}"


def _blocks(W: Tensor, facts: FactSet, loss: Loss, entries: int = BLOCK_ENTRIES):
    for rows in row_blocks(len(facts), len(facts.values), entries=entries):
        keys = facts.keys[rows]
        yield keys, loss(keys @ W.T @ facts.values.T, facts.targets[rows])


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
        moments = second_moments(terms.curvature, facts.values)
        for sign, outer in zip(terms.signs, terms.outer, strict=True):
            mean = outer @ facts.values
            moments = moments + sign * mean[:, :, None] * mean[:, None, :]
        hessian = hessian + kronecker_sum(moments, keys)
    return hessian


def second_moments(
    weights: Float[Tensor, "b N"], vectors: Float[Tensor, "N p"]
) -> Float[Tensor, "b p p"]:
    """sum_j weights_ij x_j x_j^T for each row of weights."""
    N, p = vectors.shape
    squares = (vectors[:, :, None] * vectors[:, None, :]).reshape(N, p * p)
    return (weights @ squares).reshape(-1, p, p)


def kronecker_sum(
    matrices: Float[Tensor, "b p p"], vectors: Float[Tensor, "b d"]
) -> Float[Tensor, "D D"]:
    """sum_i M_i (x) k_i k_i^T, acting on vec of a (p, d) matrix stored by rows; D = p d."""
    b, p, _ = matrices.shape
    d = vectors.shape[1]
    squares = (vectors[:, :, None] * vectors[:, None, :]).reshape(b, d * d)
    product = (matrices.reshape(b, p * p).T @ squares).reshape(p, p, d, d)
    return product.permute(0, 2, 1, 3).reshape(p * d, p * d)
