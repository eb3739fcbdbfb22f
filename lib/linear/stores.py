"""Two ways to write key-value pairs into a matrix, and how well they are recalled.

Keys (F, d) and values (F, d_v) are rows; a store is a matrix W (d_v, d) that recalls W k.
"Expected" means over independent, zero-mean, unit-norm values, with the keys held fixed.

Source: *Linear Memory, Reconstruction and Recall*, Appendices B to H (which writes columns).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from lib.decoding import Memory
from lib.facts import check_embeddings
from lib.numerics import compact_svd, ridge_regression, row_blocks, take_diagonal


def linear_memory(W: Float[Tensor, "d_v d"]) -> Memory:
    """The memory k -> W k, on rows."""
    return lambda keys: keys @ W.T


def outer_product_store(
    keys: Float[Tensor, "F d"], values: Float[Tensor, "F d_v"]
) -> Float[Tensor, "d_v d"]:
    """W = sum_i v_i k_i^T: one matrix per pair, added up. Also called correlation matrix memory.

    Raises:
        ValueError: keys or values are empty or not finite, or their numbers differ.

    Source: Appendix B; Barnfield et al., Section 2.1.
    """
    _check_pairs(keys, values)
    return values.T @ keys


def least_squares_store(
    keys: Float[Tensor, "F d"], values: Float[Tensor, "F d_v"]
) -> Float[Tensor, "d_v d"]:
    """The minimiser of sum_i |W k_i - v_i|^2 with the smallest norm.

    Keys may be linearly dependent or fewer than d (singular values below RELATIVE_CUTOFF times
    the largest count as zero).

    Raises:
        ValueError: as :func:`outer_product_store`.

    Source: Appendix C.
    """
    _check_pairs(keys, values)
    return ridge_regression(keys, values, 0.0)


def svd_pairs(
    W: Float[Tensor, "d_v d"],
) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r d_v"]]:
    """The orthonormal keys z_l and values sigma_l u_l that any matrix of rank r can be read as.

    W z_l = sigma_l u_l, and W q = 0 for every q orthogonal to all z_l.

    Source: "A matrix as a key-value store".
    """
    U, s, Zt = compact_svd(W)
    return Zt, (U * s).T


def leverage_scores(keys: Float[Tensor, "F d"]) -> Float[Tensor, " F"]:
    """h_j = P_jj in [0, 1]: how much of pair j survives the projection by P; they sum to the rank.

    P = Z Z^T projects R^F onto the column space of the key table; the least-squares store recalls
    P V at its keys.

    Source: Appendix D.
    """
    Z, _, _ = compact_svd(keys)
    return (Z**2).sum(1)


def signal_to_noise(leverage: Float[Tensor, " F"]) -> Float[Tensor, " F"]:
    """SNR_j = h_j / (1 - h_j) of the least-squares store; infinite where recall is exact.

    Leverages within 1e-12 of 1 count as 1.

    Source: Appendix D.
    """
    return torch.where(leverage > 1 - 1e-12, torch.inf, leverage / (1 - leverage))


def least_squares_recall(
    keys: Float[Tensor, "F d"], values: Float[Tensor, "F d_v"]
) -> tuple[Float[Tensor, "F d_v"], Float[Tensor, "F d_v"]]:
    """Signal h_j v_j and cross-talk sum_{i != j} P_ij v_i of each recalled value, each by itself.

    Source: Appendix D.
    """
    Z, _, _ = compact_svd(keys)
    crosstalk = torch.empty_like(values)
    for rows in row_blocks(len(keys), len(keys)):
        weights = Z[rows] @ Z.T
        take_diagonal(weights, rows)
        crosstalk[rows] = weights @ values
    return leverage_scores(keys)[:, None] * values, crosstalk


def outer_product_crosstalk(keys: Float[Tensor, "F d"]) -> Float[Tensor, " F"]:
    """Expected cross-talk power sum_{i != j} <k_i, k_j>^2 of each pair in the outer-product store.

    Source: Appendix E.
    """
    energies = torch.empty_like(keys[:, 0])
    for rows in row_blocks(len(keys), len(keys)):
        overlaps = keys[rows] @ keys.T
        take_diagonal(overlaps, rows)
        energies[rows] = (overlaps**2).sum(1)
    return energies


def noise_amplification(keys: Float[Tensor, "F d"]) -> float:
    """sum_l sigma_l^-2 over the nonzero singular values of the keys.

    Query noise of variance tau^2 per coordinate adds tau^2 times this to the expected squared
    error of the least-squares store, 1 - h_j.

    Source: Appendix G.
    """
    _, s, _ = compact_svd(keys)
    return (s**-2).sum().item()


def consistency_residual(keys: Float[Tensor, "F d"], values: Float[Tensor, "F d_v"]) -> float:
    """|(I - P) V|_F / |V|_F in [0, 1]: zero exactly if some matrix recalls every pair.

    The condition is ker K in ker V: every linear dependence among the keys holds among the values.

    Raises:
        ValueError: all values are zero.

    Source: Appendix H.
    """
    if not values.any():
        raise ValueError("values must not all be zero")
    Z, _, _ = compact_svd(keys)
    values = values / values.abs().max()
    return ((values - Z @ (Z.T @ values)).norm() / values.norm()).item()


def _check_pairs(keys: Tensor, values: Tensor) -> None:
    check_embeddings("keys", keys)
    check_embeddings("values", values)
    if len(keys) != len(values):
        raise ValueError(f"keys and values must be as many; got {len(keys)} and {len(values)}")
