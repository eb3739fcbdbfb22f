"""Updates of a readout B by least squares: the linear algebra of ROME, MEMIT and AlphaEdit.

Keys k and residuals r stand in rows. An update Delta, (d, m), should answer Delta k = r for altered
facts and 0 for the others.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lib.numerics import check_nonnegative

#: Eigenvalues below this share of their mean count as zero.
ROUNDING = 1e-12


def rank_one_update(
    key: Float[Tensor, " m"], residual: Float[Tensor, " d"], precision: Float[Tensor, "m m"]
) -> Float[Tensor, "d m"]:
    """r (C^-1 k)^T / (k^T C^-1 k): adds r to the answer to k, and little to keys of covariance C.

    Of all updates with Delta k = r it is the one with the least tr(Delta C Delta^T).

    Args:
        key: k, not zero, in the range of C.
        residual: r.
        precision: C^-1, or the pseudo-inverse of C.

    Raises:
        ValueError: the key is not as above.

    Source: Meng et al., 2022, eq. 2.
    """
    direction = precision @ key
    leverage = direction @ key
    if not leverage > 0:
        raise ValueError(
            f"key must not be zero, nor outside of C's range; got k^T C^-1 k = {leverage}"
        )
    return torch.outer(residual, direction / leverage)


def least_squares_update(
    keys: Float[Tensor, "k m"], residuals: Float[Tensor, "k d"], penalty: Float[Tensor, "m m"]
) -> Float[Tensor, "d m"]:
    """Minimiser of sum_i |Delta k_i - r_i|^2 + tr(Delta P Delta^T), the smallest where several are.

    Delta = R^T K (K^T K + P)^-1. MEMIT has P = lambda C_0, with C_0 the mean of k k^T over
    preserved keys.

    Args:
        keys: K.
        residuals: R.
        penalty: P, symmetric and positive semidefinite.

    Source: Meng et al., 2023, eq. 14.
    """
    normal = torch.linalg.pinv(keys.T @ keys + penalty, hermitian=True)
    return residuals.T @ keys @ normal


def null_space_update(
    keys: Float[Tensor, "k m"],
    residuals: Float[Tensor, "k d"],
    preserved: Float[Tensor, "p m"],
    *,
    tolerance: float,
    ridge: float,
) -> Float[Tensor, "d m"]:
    """Minimiser of sum_i |Delta k_i - r_i|^2 + ridge s |Delta|^2 with Delta = Delta P.

    P projects on the eigenvectors of the preserved keys' covariance whose eigenvalues are at most
    ``tolerance`` s, s the mean eigenvalue. With few preserved keys and tolerance 0 the update
    changes no answer to them; a memory that is full has no such direction to spare.

    Args:
        keys: of altered facts.
        residuals: one for each.
        preserved: keys of the preserved facts, at least one.
        tolerance: at least 0; rounding counts as 0.
        ridge: at least 0.

    Raises:
        ValueError: tolerance or ridge is out of range, or there are no preserved keys.

    Source: Fang et al., 2025, eqs. 8 and 14.
    """
    check_nonnegative(tolerance=tolerance, ridge=ridge)
    if not len(preserved):
        raise ValueError("preserved must have at least one key; got none")
    eigenvalues, U = torch.linalg.eigh(preserved.T @ preserved / len(preserved))
    s = eigenvalues.mean()
    U = U[:, eigenvalues <= max(tolerance, ROUNDING) * s]
    penalty = ridge * s * torch.eye(U.shape[1]).to(U)
    return least_squares_update(keys @ U, residuals, penalty) @ U.T
