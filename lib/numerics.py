"""Shared numerical tools: seeded streams, blocks of bounded memory, ridge least squares."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

#: Entries in the largest temporary array of a blocked reduction: 128 MiB in float64.
BLOCK_ENTRIES = 2**24

#: Singular values below this fraction of the largest count as zero (float64).
RELATIVE_CUTOFF = 1e-11


def generator(*stream: int) -> torch.Generator:
    """CPU random generator of the stream named by integers, e.g. ``generator(seed, point)``.

    Streams with different names are statistically independent, so that the points of a sweep
    can be computed in any order, or alone, and give the same numbers.

    Raises:
        ValueError: a name is negative, or there is none.
    """
    if not stream or any(name < 0 for name in stream):
        raise ValueError(f"stream must be one or more integers >= 0; got {stream}")
    entropy = (len(stream), *stream)  # the length, since trailing zeros would not count
    (seed,) = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(seed))


def row_blocks(rows: int, columns: int, *, entries: int = BLOCK_ENTRIES) -> Iterator[slice]:
    """Slices that cut ``rows`` so that a block times ``columns`` holds at most ``entries``.

    A single row is never cut, however long it is.
    """
    step = max(1, entries // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def whitener(
    features: Float[Tensor, "F m"], *, ridge: float = 0.0, cutoff: float = RELATIVE_CUTOFF
) -> Float[Tensor, "r m"]:
    """Map T with T^T T = (Sigma + ridge I)^{-1} on the span of the rows, Sigma = Phi^T Phi / F.

    Computed from the singular values of Phi / sqrt(F), which loses half as many digits as
    forming Sigma does. Directions whose singular value is below ``cutoff`` times the largest are
    left out, so that ``ridge=0`` gives the pseudo-inverse of Sigma; r is the number kept.

    Args:
        features: Phi, one row per example.
        ridge: lambda >= 0.
        cutoff: relative rank cutoff in [0, 1).

    Raises:
        ValueError: ridge is negative.
    """
    check_ridge(ridge)
    _, s, Vt = torch.linalg.svd(features / math.sqrt(features.shape[0]), full_matrices=False)
    kept = s > cutoff * s[0]
    return Vt[kept] / torch.sqrt(s[kept, None] ** 2 + ridge)


def ridge_regression(
    features: Float[Tensor, "F m"], targets: Float[Tensor, "F p"], ridge: float
) -> Float[Tensor, "p m"]:
    """Minimiser B of (1/F) ||Phi B^T - Y||_F^2 + ridge ||B||_F^2, the least-norm one at ridge 0.

    For ridge > 0 this is Y^T Phi (Phi^T Phi + ridge F I)^{-1}: solved by Cholesky in the smaller
    of the two dimensions, with ridge F on both sides, so that B is continuous across m = F. The
    arithmetic is float64 whatever the input; the result has the input's dtype.

    Args:
        features: Phi, one row per example.
        targets: Y, one row per example.
        ridge: lambda >= 0.

    Raises:
        ValueError: ridge is negative.
        torch.linalg.LinAlgError: ridge is positive but too small against the largest eigenvalue
            of Phi^T Phi for float64.

    Source: Garcia et al., eqs. 13 and 14 (whose dual form leaves out the factor F).
    """
    check_ridge(ridge)
    Phi, Y = features.double(), targets.double()
    F, m = Phi.shape
    if ridge == 0:
        B = (torch.linalg.pinv(Phi, rtol=RELATIVE_CUTOFF) @ Y).T
    elif m <= F:
        gram = Phi.T @ Phi
        gram.diagonal().add_(ridge * F)
        B = torch.cholesky_solve(Phi.T @ Y, torch.linalg.cholesky(gram)).T
    else:
        gram = Phi @ Phi.T
        gram.diagonal().add_(ridge * F)
        B = torch.cholesky_solve(Y, torch.linalg.cholesky(gram)).T @ Phi
    return B.to(features.dtype)


def check_ridge(ridge: float) -> None:
    """Raise ValueError unless ridge is finite and >= 0."""
    if not ridge >= 0 or math.isinf(ridge):
        raise ValueError(f"ridge must be finite and >= 0; got {ridge}")
