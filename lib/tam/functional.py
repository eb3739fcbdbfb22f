"""Tail averages of scores: plain, smoothed, and as a loss for learning.

TAM_r(x) is the mean of the k = ceil(r m) largest of m numbers: the maximum at k = 1, the mean at
k = m. A right score above it is certainly among the k largest. Functions work on rows.

Source: Barnfield et al., Section 3.
"""

import math
import sys

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lib.linear.learning import Curvature, ListLoss, Loss
from lib.numerics import check_count, check_positive
from lib.tam.phases import check_tail_fraction

#: Steps of the threshold's root finding; bisection alone would need about 60.
MAX_STEPS = 100

#: Numbers in [1/2, 1] whose product is above the smallest float32.
FACTORS = 100

#: Relative precision to which the thresholds' equation is solved, just above rounding.
PRECISION = 1e-13


def tail_size(m: int, r: float) -> int:
    """k = ceil(r m), not led astray by rounding of the product.

    Raises:
        ValueError: r is not in (0, 1], or m is below 1.
    """
    check_tail_fraction(r)
    check_count(m=m)
    return max(1, math.ceil(r * m * (1 - 4 * sys.float_info.epsilon)))


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

    Raises:
        ValueError: k is not in [1, m - 1], beta is not positive, or an entry is not finite.
    """
    _check_scores(x, k)
    check_positive(beta=beta)
    if k == x.shape[1]:
        raise ValueError(f"k must be below m = {k}; the threshold of the mean is minus infinity")
    return _threshold(x, x.amin(1), k, x.shape[1], beta, x.mean(1), torch.empty_like(x))[0]


def _threshold(
    x: Tensor, smallest: Tensor, k: int, m: int, beta: float, start: Tensor, spare: Tensor
) -> tuple[Tensor, Tensor]:
    """The threshold mu and all q_j = sigma(beta (x_j - mu)).

    Halley's method, kept inside a bracket that every step shrinks; from a good start it takes two
    or three passes over the scores. Rows may hold entries of minus infinity besides the m. The
    spare array, of the shape of x, is overwritten.
    """
    odds = math.log(k / (m - k)) / beta
    low, high = smallest - odds, x.amax(1) - odds
    mu = start.clamp(low, high)
    q = torch.empty_like(x)
    for _ in range(MAX_STEPS):
        torch.sub(x, mu[:, None], out=q).mul_(beta).sigmoid_()
        first = q.sum(1)
        excess = first - k
        found = (excess.abs() <= PRECISION * k) | (high - low <= PRECISION * mu.abs())
        if found.all():
            break
        second = torch.mul(q, q, out=spare).sum(1)
        third = spare.mul_(q).sum(1)
        # excess and its derivatives in beta mu: -sum q (1 - q), sum q (1 - q) (1 - 2 q)
        slope, bend = first - second, first - 3 * second + 2 * third
        newton = excess / slope
        step = mu + newton / (1 - newton * bend / (2 * slope)).clamp(0.5, 2) / beta
        low = torch.where(excess > 0, mu, low)
        high = torch.where(excess > 0, high, mu)
        inside = (step > low) & (step < high)  # false for NaN, where the slope vanishes
        mu = torch.where(found, mu, torch.where(inside, step, (low + high) / 2))
    return mu, q


def _level(x: Tensor, mu: Tensor, q: Tensor, k: int, beta: float, spare: Tensor) -> Tensor:
    """mu + (1/k) sum_j phi_beta(x_j - mu), given q_j = sigma(beta (x_j - mu)).

    phi_beta(t) = max(t, 0) - log(max(q, 1 - q)) / beta. The logarithms, the costly part, are taken
    of products of factors between 1/2 and 1, too few to underflow. The spare array is overwritten.
    """
    excess = torch.sub(x, mu[:, None], out=spare).clamp_(min=0).sum(1)
    torch.maximum(q, torch.sub(1, q, out=spare), out=spare)
    rounding = sum(factors.prod(1).log() for factors in spare.split(FACTORS, dim=1))
    return mu + (excess - rounding / beta) / k


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
    check_positive(beta=beta)
    if k == x.shape[1]:
        return x.mean(1)
    spare = torch.empty_like(x)
    mu, q = _threshold(x, x.amin(1), k, x.shape[1], beta, x.mean(1), spare)
    return _level(x, mu, q, k, beta, spare)


def tail_average_loss(k: int, beta: float) -> Loss:
    """log(1 + exp(-(s_f(i) - T))), T the smoothed tail average of the N - 1 competitors.

    Args:
        k: size of the tail, in [1, N - 1]; see :func:`tail_size`.
        beta: smoothing > 0.

    Raises:
        ValueError: an argument is out of its range; k beyond N - 1 is found when scores come.

    Source: Barnfield et al., eq. 31.
    """
    check_count(k=k)
    check_positive(beta=beta)

    thresholds: dict[int, Tensor] = {}  # of each block, where the next search starts
    spare: list[Tensor] = []  # two arrays reused by all blocks: new pages cost like arithmetic

    def loss(
        scores: Float[Tensor, "b N"], targets: Int[Tensor, " b"], rows: slice = slice(0, 0)
    ) -> ListLoss:
        m = scores.shape[1] - 1
        if k > m:
            raise ValueError(f"k must be in [1, N - 1] = [1, {m}]; got {k}")
        target = targets[:, None]
        right = scores.gather(1, target).squeeze(1)
        mu = None
        if k == m:
            level = (scores.sum(1) - right) / m
            q = torch.ones_like(scores)
        else:
            if not spare or not _hold(spare[0], scores):
                spare[:] = torch.empty_like(scores), torch.empty_like(scores)
            x, other = (array[: len(scores)] for array in spare)
            # competitors; the target weighs nothing
            x.copy_(scores).scatter_(1, target, -torch.inf)
            start = thresholds.get(rows.start)
            if start is None or not (start.shape == right.shape and start.isfinite().all()):
                start = scores.mean(1)
            mu, q = _threshold(x, scores.amin(1), k, m, beta, start.to(right), other)
            thresholds[rows.start] = mu
            level = _level(x, mu, q, k, beta, other)
        slope = torch.sigmoid(level - right)
        gradient = q.mul_((slope / k)[:, None]).scatter_(1, target, -slope[:, None])

        def curvature() -> Curvature:
            tiny = torch.finfo(scores.dtype).tiny
            pull = gradient / slope.clamp(min=tiny)[:, None]  # derivative of level - right
            q = (k * pull).clamp_(0, 1).scatter_(1, target, 0.0)  # rounding may exceed 1
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

        return ListLoss(torch.nn.functional.softplus(level - right), gradient, curvature)

    return loss


def _hold(array: Tensor, scores: Tensor) -> bool:
    """Whether the first rows of the array can hold the scores."""
    fits = len(scores) <= len(array) and scores.shape[1] == array.shape[1]
    return fits and scores.dtype == array.dtype and scores.device == array.device


def _check_scores(x: Tensor, k: int) -> None:
    if not 1 <= k <= x.shape[1]:
        raise ValueError(f"k must be in [1, {x.shape[1]}]; got {k}")
    if not x.isfinite().all():
        raise ValueError("scores must be finite")
