"""Tail averages of scores: plain, smoothed, and as a loss for learning.

TAM_r(x) is the mean of the k = ceil(r m) largest of m numbers: the maximum at k = 1, the mean at
k = m. A right score above it is certainly among the k largest. Functions work on rows.

Source: Barnfield et al., Section 3.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lib.linear.learning import Curvature, ListLoss, Loss
from lib.tam.phases import check_positive, check_tail_fraction

#: Steps of the threshold's root finding; bisection alone would need about 60.
MAX_STEPS = 100

#: Relative precision to which the thresholds' equation is solved, just above rounding.
PRECISION = 1e-13


def tail_size(m: int, r: float) -> int:
    """k = ceil(r m), not led astray by rounding of the product.

    Raises:
        ValueError: r is not in (0, 1], or m is below 1.
    """
    check_tail_fraction(r)
    if m < 1:
        raise ValueError(f"m must be at least 1; got {m}")
    return max(1, math.ceil(r * m - 1e-9 * m))


def tail_average(x: Float[Tensor, "b m"], k: int) -> Float[Tensor, " b"]:
    """Mean of the k largest entries of each row.

    Raises:
        ValueError: k is not in [1, m], or an entry is not finite.

    Source: Barnfield et al., eq. 26.
    """
    _check_scores(x, k)
    return x.topk(k, dim=1).values.mean(1)


def smoothed_threshold(x: Float[Tensor, "b m"], k: int, beta: float) -> Float[Tensor, " b"]:
    """The mu of each row with sum_j sigma(beta (x_j - mu)) = k, for k < m.

    Newton's method, kept inside a bracket that every step shrinks.

    Raises:
        ValueError: k is not in [1, m - 1], beta is not positive, or an entry is not finite.
    """
    _check_scores(x, k)
    check_positive("beta", beta)
    if k == x.shape[1]:
        raise ValueError(f"k must be below m = {k}; the threshold of the mean is minus infinity")
    return _threshold(x, x.amin(1), k, x.shape[1], beta)


def _threshold(
    x: Tensor, smallest: Tensor, k: int, m: int, beta: float, start: Tensor | None = None
) -> Tensor:
    """As :func:`smoothed_threshold`, for rows that may hold entries of minus infinity besides m.

    From a good start it takes two passes over the scores.
    """
    odds = math.log(k / (m - k)) / beta
    low, high = smallest - odds, x.amax(1) - odds
    mu = (low + high) / 2 if start is None else start.clamp(low, high)
    q = torch.empty_like(x)  # one buffer for all passes
    for _ in range(MAX_STEPS):
        torch.sub(x, mu[:, None], out=q).mul_(beta).sigmoid_()
        total = q.sum(1)
        excess = total - k
        low = torch.where(excess > 0, mu, low)
        high = torch.where(excess > 0, high, mu)
        step = mu + excess / (beta * (total - torch.linalg.vector_norm(q, dim=1) ** 2))
        inside = (step > low) & (step < high)  # false for NaN, where the slope vanishes
        found = (excess.abs() <= PRECISION * k) | (high - low <= PRECISION * mu.abs())
        if found.all():
            break
        mu = torch.where(found, mu, torch.where(inside, step, (low + high) / 2))
    return mu


def smoothed_tail_average(x: Float[Tensor, "b m"], k: int, beta: float) -> Float[Tensor, " b"]:
    """min over mu of mu + (1/k) sum_j phi_beta(x_j - mu).

    phi_beta(t) = log(1 + exp(beta t)) / beta smooths the positive part. The result lies between
    the tail average and log(2) m / (k beta) above it. At k = m the infimum is the mean, reached as
    mu goes to minus infinity.

    Raises:
        ValueError: as :func:`smoothed_threshold`, but k = m is allowed.

    Source: Barnfield et al., eqs. 28 and 29.
    """
    _check_scores(x, k)
    check_positive("beta", beta)
    if k == x.shape[1]:
        return x.mean(1)
    mu = smoothed_threshold(x, k, beta)
    return mu + _hinge(x - mu[:, None], beta).sum(1) / k


def tail_average_loss(r: float, beta: float) -> Loss:
    """log(1 + exp(-(s_f(i) - T))), T the smoothed tail average of the N - 1 competitors.

    Args:
        r: tail fraction in (0, 1].
        beta: smoothing > 0.

    Raises:
        ValueError: an argument is out of its range.

    Source: Barnfield et al., eq. 31.
    """
    check_tail_fraction(r)
    check_positive("beta", beta)

    thresholds: dict[int, Tensor] = {}  # of each block, where the next search starts

    def loss(
        scores: Float[Tensor, "b N"], targets: Int[Tensor, " b"], rows: slice = slice(0, 0)
    ) -> ListLoss:
        m = scores.shape[1] - 1
        k = tail_size(m, r)
        target = targets[:, None]
        right = scores.gather(1, target).squeeze(1)
        x = scores.scatter(1, target, -torch.inf)  # competitors; the target weighs nothing
        mu = None
        if k == m:
            level = (scores.sum(1) - right) / m
            q = torch.ones_like(scores)
        else:
            start = thresholds.get(rows.start)
            if start is not None and start.shape != right.shape:
                start = None
            mu = _threshold(x, scores.amin(1), k, m, beta, start)
            thresholds[rows.start] = mu
            shifted = x - mu[:, None]
            level = mu + _hinge(shifted, beta).sum(1) / k
            q = shifted.mul_(beta).sigmoid_()
        slope = torch.sigmoid(level - right)
        gradient = q.mul_((slope / k)[:, None]).scatter_(1, target, -slope[:, None])

        def curvature() -> Curvature:
            tiny = torch.finfo(scores.dtype).tiny
            pull = gradient / slope.clamp(min=tiny)[:, None]  # derivative of level - right
            q = (k * pull).scatter(1, target, 0.0)
            bend = torch.zeros_like(q) if mu is None else beta / k * q * (1 - q)
            mass = bend.sum(1).clamp(min=tiny)
            return Curvature(
                slope[:, None] * bend,
                (
                    (slope / mass).sqrt()[:, None] * bend,
                    (slope * (1 - slope)).sqrt()[:, None] * pull,
                ),
                (-1.0, 1.0),
            )

        return ListLoss(_hinge(level - right, 1.0), gradient, curvature)

    return loss


def _hinge(t: Tensor, beta: float) -> Tensor:
    """phi_beta(t); beyond 36 / beta it is t to the last digit of float64."""
    return torch.nn.functional.softplus(t, beta=beta, threshold=36)


def _check_scores(x: Tensor, k: int) -> None:
    if not 1 <= k <= x.shape[1]:
        raise ValueError(f"k must be in [1, {x.shape[1]}]; got {k}")
    if not x.isfinite().all():
        raise ValueError("scores must be finite")
