"""Shared numerical tools: seeded streams, blocks of bounded memory, ridge least squares."""

import math
import warnings
from collections.abc import Callable, Collection, Iterator
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

#: Entries in the largest temporary array of a blocked reduction: 128 MiB in float64.
BLOCK_ENTRIES = 2**24

#: Singular values below this fraction of the largest count as zero, if the precision allows.
RELATIVE_CUTOFF = 1e-11

#: Largest condition number at which normal equations are solved by Cholesky: half the digits.
CHOLESKY_LIMIT = 1e8

#: Squared gradient, over the smallest so far, at which conjugate gradients have lost their way.
DIVERGED = 1e8


def generator(*stream: int) -> torch.Generator:
    """CPU random generator of the stream named by integers, e.g. ``generator(seed, point)``.

    Streams are independent of each other, so that the points of a sweep can be computed in any
    order, or alone, and give the same numbers. (torch seeds its generator with 32 bits: among ten
    thousand streams the chance that two coincide is about one in a hundred.)

    Raises:
        ValueError: a name is negative, or there is none.
    """
    if not stream or any(name < 0 for name in stream):
        raise ValueError(f"stream must be one or more integers >= 0; got {stream}")
    entropy = (len(stream), *stream)  # the length, since trailing zeros would not count
    (seed,) = np.random.SeedSequence(entropy).generate_state(1)
    return torch.Generator().manual_seed(int(seed))


def row_blocks(rows: int, columns: int, *, entries: int = BLOCK_ENTRIES) -> Iterator[slice]:
    """Slices that cut ``rows`` so that a block times ``columns`` holds at most ``entries``.

    A single row is never cut, however long it is.
    """
    step = max(1, entries // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def take_diagonal(block: Float[Tensor, "b F"], rows: slice) -> Float[Tensor, " b"]:
    """The diagonal entries in a block of rows of a square matrix, which are set to zero there."""
    diagonal = block.diagonal(rows.start)
    taken = diagonal.clone()
    diagonal.zero_()
    return taken


def compact_svd(
    matrix: Float[Tensor, "n m"], *, cutoff: float = RELATIVE_CUTOFF
) -> tuple[Float[Tensor, "n r"], Float[Tensor, " r"], Float[Tensor, "r m"]]:
    """U, s, V^T with the r singular values above ``cutoff`` times the largest.

    Args:
        matrix: not empty, finite.
        cutoff: in [0, 1); rounding of the input's dtype is taken for zero in any case, unless 0.

    Raises:
        ValueError: cutoff is out of range, or the matrix is empty or not finite.
    """
    if not 0 <= cutoff < 1:
        raise ValueError(f"cutoff must be in [0, 1); got {cutoff}")
    if 0 in matrix.shape or not matrix.isfinite().all():
        raise ValueError(f"matrix must be finite and not empty; its shape is {tuple(matrix.shape)}")
    U, s, Vt = torch.linalg.svd(matrix, full_matrices=False)
    if cutoff:
        cutoff = max(cutoff, max(matrix.shape) * torch.finfo(matrix.dtype).eps)
    kept = s > cutoff * s[0]
    return U[:, kept], s[kept], Vt[kept]


def whitener(
    features: Float[Tensor, "F m"], *, ridge: float = 0.0, cutoff: float = RELATIVE_CUTOFF
) -> Float[Tensor, "r m"]:
    """Map T with T^T T = (Sigma + ridge I)^{-1} on the span of the rows, Sigma = Phi^T Phi / F.

    Computed from the singular values of Phi / sqrt(F), which loses half as many digits as
    forming Sigma does. Directions below the cutoff are left out, so that ``ridge=0`` gives the
    pseudo-inverse of Sigma; r is the number kept.

    Args:
        features: Phi, one row per example.
        ridge: lambda >= 0.
        cutoff: as in :func:`compact_svd`.

    Raises:
        ValueError: ridge or cutoff is out of range.
    """
    check_nonnegative(ridge=ridge)
    _, s, Vt = compact_svd(features / math.sqrt(features.shape[0]), cutoff=cutoff)
    return Vt / torch.hypot(s, torch.full_like(s, math.sqrt(ridge)))[:, None]


def ridge_regression(
    features: Float[Tensor, "F m"], targets: Float[Tensor, "F p"], ridge: float
) -> Float[Tensor, "p m"]:
    """Minimiser B of (1/F) ||Phi B^T - Y||_F^2 + ridge ||B||_F^2, the least-norm one at ridge 0.

    For ridge > 0 this is Y^T Phi (Phi^T Phi + ridge F I)^{-1}, with ridge F on both sides of
    m = F. It is solved by Cholesky in the smaller dimension while the ridge keeps that safe, by
    the singular values of Phi below. The arithmetic is float64; the result has the input's dtype,
    and at ridge 0 rounding of that dtype counts as rank deficiency.

    Args:
        features: Phi, one row per example.
        targets: Y, one row per example.
        ridge: lambda >= 0.

    Raises:
        ValueError: ridge is out of range, or the features are not finite.

    Source: Garcia et al., eqs. 13 and 14 (whose dual form leaves out the factor F).
    """
    check_nonnegative(ridge=ridge)
    if not (features.isfinite().all() and targets.isfinite().all()):
        raise ValueError("features and targets must be finite")
    F, m = features.shape
    Y = targets.double()
    largest = max(abs(extreme.item()) for extreme in features.aminmax()) or 1.0
    ridge = ridge / largest / largest

    def scaled(rows: slice) -> Tensor:  # in range whatever the scale of the features
        return features[rows].double() / largest

    blocks = list(row_blocks(F, m))
    if sum((scaled(rows) ** 2).sum().item() for rows in blocks) >= CHOLESKY_LIMIT * ridge * F:
        rounding = max(RELATIVE_CUTOFF, max(F, m) * torch.finfo(features.dtype).eps)
        U, s, Vt = compact_svd(scaled(slice(None)), cutoff=min(rounding, 0.5))
        B = ((Y.T @ U) / (s + ridge * F / s)) @ Vt
    elif m <= F:
        gram, moment = torch.zeros(m, m).to(Y), torch.zeros(m, Y.shape[1]).to(Y)
        for rows in blocks:
            Phi = scaled(rows)
            gram.addmm_(Phi.T, Phi)
            moment.addmm_(Phi.T, Y[rows])
        gram.diagonal().add_(ridge * F)
        B = torch.cholesky_solve(moment, torch.linalg.cholesky(gram, out=gram)).T
    else:
        Phi = scaled(slice(None))
        gram = Phi @ Phi.T
        gram.diagonal().add_(ridge * F)
        B = torch.cholesky_solve(Y, torch.linalg.cholesky(gram)).T @ Phi
    return (B / largest).to(features.dtype)


def least_squares(
    forward: Callable[[Tensor], Tensor],
    adjoint: Callable[[Tensor], Tensor],
    target: Float[Tensor, "n p"],
    *,
    curvature: Float[Tensor, "m d"],
    tolerance: float,
    limit: int,
) -> Float[Tensor, "m d"]:
    """Minimiser X of ||target - forward(X)||, by conjugate gradients on the normal equations.

    The unknowns are scaled by the diagonal of the normal equations. It stops when the gradient,
    scaled likewise, is ``tolerance`` times what it was at X = 0. Should that not be reached, by
    ``limit`` or because rounding has taken over, the iterate with the smallest gradient is
    returned with a warning; it is finite. Where the minimum is not unique, X is the one of least
    scaled norm.

    Args:
        forward: a linear map.
        adjoint: its transpose.
        target: what to reach.
        curvature: diagonal of adjoint(forward(.)), >= 0; unknowns where it is 0 stay 0.
        tolerance: in (0, 1).
        limit: most iterations, at least 1.

    Raises:
        ValueError: tolerance, limit or target is out of range.
    """
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be in (0, 1); got {tolerance}")
    check_count(limit=limit)
    if not target.isfinite().all() or not curvature.isfinite().all():
        raise ValueError("target and curvature must be finite")
    scale = torch.where(curvature > 0, curvature, torch.inf).rsqrt()
    residual = target.clone()
    gradient = scale * adjoint(residual)
    direction, X = gradient, torch.zeros_like(gradient)
    start = size = gradient.square().sum().item()
    best, smallest = X.clone(), size
    with tqdm(total=limit, disable=None, leave=False, desc="least squares") as progress:
        for _ in range(limit):
            if smallest <= tolerance**2 * start:
                return scale * best
            image = forward(scale * direction)
            if not (bend := image.square().sum().item()) > 0:
                break
            step = size / bend
            X = X + step * direction
            residual = residual - step * image
            gradient = scale * adjoint(residual)
            size, before = gradient.square().sum().item(), size
            if not size <= DIVERGED * smallest:  # also for NaN
                break
            if size < smallest:
                best, smallest = X, size
            direction = gradient + (size / before) * direction
            progress.update()
    if smallest > tolerance**2 * start:
        warnings.warn(
            f"least squares stopped at {math.sqrt(smallest / start):.1g} of the first gradient; "
            f"asked for {tolerance:.1g}",
            stacklevel=2,
        )
    return scale * best


def check_positive(**numbers: int | float) -> None:
    """Raise ValueError unless every number is positive and finite."""
    for name, number in numbers.items():
        if not 0 < number < math.inf:
            raise ValueError(f"{name} must be positive and finite; got {number}")


def check_nonnegative(**numbers: int | float) -> None:
    """Raise ValueError unless every number is finite and >= 0."""
    for name, number in numbers.items():
        if not 0 <= number < math.inf:
            raise ValueError(f"{name} must be finite and >= 0; got {number}")


def check_count(least: int = 1, /, **counts: int) -> None:
    """Raise ValueError unless every count is an integer of at least ``least``."""
    for name, count in counts.items():
        if not isinstance(count, Integral) or count < least:
            raise ValueError(f"{name} must be an integer of at least {least}; got {count}")


def check_double(**tables: Tensor) -> None:
    """Raise ValueError unless every table is float64."""
    for name, table in tables.items():
        if table.dtype != torch.float64:
            raise ValueError(f"{name} must be float64; got {table.dtype}")


def check_choice(name: str, value: str, allowed: Collection[str]) -> None:
    """Raise ValueError unless the value is one of those allowed; the message lists them."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")


def unit_rows(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Rows scaled to unit norm, however short they are; zero rows stay zero."""
    largest = x.abs().amax(1, keepdim=True)
    x = x / torch.where(largest > 0, largest, 1)
    return x / x.norm(dim=1, keepdim=True).clamp(min=1)  # the norm is at least 1 unless x = 0


def last_before(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The largest n from low to high - 1 at which a condition holds, by bisection.

    It is taken to hold at low and no longer at high, and to change once in between.
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def first_crossing(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], level: float
) -> float | None:
    """Where y first rises above the level, interpolated linearly; None if it does not.

    Starting above the level is no crossing.
    """
    above = y > level
    first = int(above.argmax())
    if not above.any() or first == 0:
        return None
    return float(np.interp(level, y[first - 1 : first + 1], x[first - 1 : first + 1]))
