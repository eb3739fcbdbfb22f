"""Tail averages of scores: plain, smoothed, and as a loss for learning.

TAM_r(x) is the mean of the k = ceil(r m) largest of m numbers: the maximum at k = 1, the mean at
k = m. A right score above it is certainly among the k largest. Functions work on rows.

Source: Barnfield et al., Section 3.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lib.linear.learning import ListLoss, Loss
from lib.tam.phases import check_tail_fraction

#: Steps of the threshold's root finding; bisection alone would need about 60.
MAX_STEPS = 100


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
    _check_smoothing(beta)
    m = x.shape[1]
    if k == m:
        raise ValueError(f"k must be below m = {m}; the threshold of the mean is minus infinity")
    odds = math.log(k / (m - k)) / beta
    low, high = x.amin(1) - odds, x.amax(1) - odds
    mu = x.topk(min(k + 1, m), dim=1).values[:, -1].clamp(low, high)
    for _ in range(MAX_STEPS):
        q = torch.sigmoid(beta * (x - mu[:, None]))
        excess = q.sum(1) - k
        low = torch.where(excess > 0, mu, low)
        high = torch.where(excess > 0, high, mu)
        step = mu + excess / (beta * (q * (1 - q)).sum(1))
        inside = (step > low) & (step < high)  # false for NaN, where the slope vanishes
        following = torch.where(inside, step, (low + high) / 2)
        done = (following - mu).abs() <= 4 * torch.finfo(x.dtype).eps * (mu.abs() + 1 / beta)
        mu = following
        if done.all():
            break
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
    _check_smoothing(beta)
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
    _check_smoothing(beta)

    def loss(scores: Float[Tensor, "b N"], targets: Int[Tensor, " b"]) -> ListLoss:
        b, N = scores.shape
        k = tail_size(N - 1, r)
        own = torch.zeros(b, N, dtype=torch.bool, device=scores.device)
        own.scatter_(1, targets[:, None], True)
        competitors = scores[~own].reshape(b, N - 1)
        right = scores[own]
        if k == N - 1:
            level = competitors.mean(1)
            pull, bend = torch.full_like(competitors, 1 / k), torch.zeros_like(competitors)
        else:
            mu = smoothed_threshold(competitors, k, beta)
            shifted = competitors - mu[:, None]
            level = mu + _hinge(shifted, beta).sum(1) / k
            q = torch.sigmoid(beta * shifted)
            pull, bend = q / k, beta / k * q * (1 - q)
        slope = torch.sigmoid(level - right)
        mass = bend.sum(1).clamp(min=torch.finfo(scores.dtype).tiny)

        def spread(at_competitors: Tensor, at_target: float) -> Tensor:
            full = torch.full_like(scores, at_target)
            full[~own] = at_competitors.reshape(-1)
            return full

        return ListLoss(
            _hinge(level - right, 1.0),
            slope[:, None] * spread(pull, -1.0),
            slope[:, None] * spread(bend, 0.0),
            (
                (slope / mass).sqrt()[:, None] * spread(bend, 0.0),
                (slope * (1 - slope)).sqrt()[:, None] * spread(pull, -1.0),
            ),
            (-1.0, 1.0),
        )

    return loss


def _hinge(t: Tensor, beta: float) -> Tensor:
    """phi_beta(t), exact where torch's softplus switches to its asymptote."""
    return torch.logaddexp(beta * t, torch.zeros_like(t)) / beta


def _check_scores(x: Tensor, k: int) -> None:
    if not 1 <= k <= x.shape[1]:
        raise ValueError(f"k must be in [1, {x.shape[1]}]; got {k}")
    if not x.isfinite().all():
        raise ValueError("scores must be finite")


def _check_smoothing(beta: float) -> None:
    if not 0 < beta < math.inf:
        raise ValueError(f"beta must be positive and finite; got {beta}")
