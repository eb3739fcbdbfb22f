"""Decodability: how easily the rows of a value table are told apart by inner products.

The radius of value i is the largest margin that one unit output u can have over every other
value at once, each measured in units of distance,

    rho_i = max_{|u| <= 1} min_{j != i} <w_ij, u>,     w_ij = (v_i - v_j) / |v_i - v_j|.

Its dual is the distance of the origin from the convex hull of the w_ij: rho_i is the smallest
norm of sum_j lambda_j w_ij with weights lambda >= 0 of sum 1. Any u gives a lower bound, any
weights an upper one; their difference is the duality gap that comes with every radius.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.linalg import solve_triangular
from scipy.optimize import nnls
from torch import Tensor, nn
from tqdm import tqdm

from lib.facts import FactSet, check_embeddings
from lib.mlp import GatedMLP
from lib.numerics import (
    BLOCK_ENTRIES,
    RELATIVE_CUTOFF,
    check_nonnegative,
    compact_svd,
    row_blocks,
    take_diagonal,
    unit_rows,
)

#: Constraints that a value's problem starts with, times d, and the most that are added to it when
#: others turn out to be violated.
START, MORE = 1, 32

#: A radius below this is taken for 0: what double precision can say of unit vectors.
RESOLUTION = 1e-12

#: Violations below this are rounding.
ROUNDING = 1e-14

#: Squares of numbers below this may underflow.
SHORT = 1e-140


@dataclass(frozen=True, eq=False)
class Decodability:
    """Every value's radius and best output, with certificates.

    Attributes:
        radii: rho_i; 0 where v_i lies in the convex hull of the other values, or so close to it
            that double precision cannot tell.
        outputs: u_i*, unit rows, float64 on the CPU; zero rows where the radius is 0.
        gaps: upper minus lower bound of each radius, both from directions w_ij that are right to
            a few units in the last place, however close values are; that much may be added.
        active: for each value the competitors j whose weights lambda_j are positive. They are what
            holds u_i* in its place.

    Source: Dugan et al., eq. 4 and Definition 3.2.1.
    """

    radii: Float[Tensor, " N"]
    outputs: Float[Tensor, "N d"]
    gaps: Float[Tensor, " N"]
    active: tuple[Int[Tensor, " _"], ...]

    @property
    def rho(self) -> float:
        """rho(V), the smallest radius."""
        return self.radii.min().item()

    @property
    def decodable(self) -> Bool[Tensor, " N"]:
        """Which values some output decodes to."""
        return self.radii > 0


@torch.no_grad()
def decodability(values: Float[Tensor, "N d"]) -> Decodability:
    """Radii and margin-optimal outputs of a table of values, exactly.

    Each value is a least-distance problem, and that is one of nonnegative least squares. We solve
    it for the few constraints nearest to being violated, add those that are, and repeat until none
    is: a finite method, like the simplex method. The solution is recomputed from its active
    constraints by an orthogonal factorisation, so that nothing is squared: u* is the direction of
    the shortest x with <w_ij, x> = 1 for the active j, and the radius is 1 / |x|.

    Args:
        values: V, distinct rows, at least two.

    Raises:
        ValueError: values are not finite, fewer than two, or not distinct.

    Source: Dugan et al., eq. 4, Appendix A.1.3; Lawson and Hanson (1974), chapter 23.
    """
    X = _table(values)
    U, _, Vt = compact_svd(X - X.mean(0))
    start = unit_rows(U @ Vt).numpy()  # half whitened: near u* for isotropic, stretched tables
    table, space = X.numpy(), np.empty(X.shape)
    solutions = [
        _solve(_directions(table, i, space), i, start[i])
        for i in tqdm(range(len(X)), disable=None, leave=False, desc="decodability")
    ]
    radii, outputs, gaps, active = zip(*solutions, strict=True)
    return Decodability(
        torch.tensor(radii, dtype=torch.float64),
        torch.from_numpy(np.stack(outputs)),
        torch.tensor(gaps, dtype=torch.float64),
        tuple(torch.from_numpy(numbers) for numbers in active),
    )


@torch.no_grad()
def achieved_radii(
    outputs: Float[Tensor, "N d"], values: Float[Tensor, "N d"]
) -> Float[Tensor, " N"]:
    """min_j <w_ij, u_i> / |u_i| of given outputs, one for each value: at most rho_i.

    Their minimum is rho(U; V).

    Raises:
        ValueError: shapes differ, an output is zero, or as :func:`decodability`.

    Source: Dugan et al., Appendix B.1.
    """
    check_embeddings("outputs", outputs)
    if outputs.shape != values.shape or not outputs.any(1).all():
        raise ValueError(
            f"outputs must be nonzero rows, one per value, {tuple(values.shape)}; "
            f"got {tuple(outputs.shape)}"
        )
    X, U = _table(values).numpy(), unit_rows(outputs.double().cpu()).numpy()
    space = np.empty_like(X)
    radii = [_margins(_directions(X, i, space), i, U[i]).min() for i in range(len(X))]
    return torch.tensor(radii, dtype=torch.float64)


def coherence(values: Float[Tensor, "N d"], *, entries: int = BLOCK_ENTRIES) -> float:
    """The largest |cosine| between two rows, in [0, 1].

    Raises:
        ValueError: values are not finite, fewer than two, or a row is zero.
    """
    check_embeddings("values", values)
    if len(values) < 2 or not values.any(1).all():
        raise ValueError("values must be at least 2 rows, none of them zero")
    X, largest = unit_rows(values), 0.0
    for rows in row_blocks(len(X), len(X), entries=entries):
        cosines = X[rows] @ X.T
        take_diagonal(cosines, rows)
        largest = max(largest, cosines.abs().max().item())
    return min(largest, 1.0)


# --- whitening ---------------------------------------------------------------------------------


def whitening(
    values: Float[Tensor, "N d"], strength: float = 1.0, *, ridge: float = 0.0
) -> Float[Tensor, "d d"]:
    """W = (Sigma + ridge I)^(-strength / 2), symmetric, with Sigma the covariance of the rows.

    The rows of V W have covariance I at strength 1 and ridge 0, and V W = V at strength 0. (The
    paper's Sigma is not centred in its Appendix A.1.3, and centred in Section 3.3. Decodability
    depends on differences of values only, so we centre.)

    Args:
        values: V, at least two rows.
        strength: alpha in [0, 1].
        ridge: epsilon >= 0, in units of Sigma.

    Raises:
        ValueError: strength or ridge is out of range; or Sigma is singular, ridge 0 and
            strength positive; or the mean or W leaves the range of the numbers.

    Source: Dugan et al., Section 3.3, Appendices A.1.3 and A.2.4.
    """
    check_embeddings("values", values)
    check_nonnegative(ridge=ridge)
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be in [0, 1]; got {strength}")
    n, d = values.shape
    X = values.double() - values.double().mean(0)
    if not X.isfinite().all():
        raise ValueError("values must be shorter; their mean is not finite")
    _, s, Vt = torch.linalg.svd(torch.linalg.qr(X / n**0.5, mode="r")[1])
    s = nn.functional.pad(s, (0, d - len(s)))
    if strength == 0:
        return torch.eye(d).to(values)
    if ridge == 0 and (rank := int((s > RELATIVE_CUTOFF * s[0]).sum())) < d:
        raise ValueError(
            "ridge must be positive where the covariance of values is singular; "
            f"its rank is {rank} of {d}"
        )
    root = torch.hypot(s, torch.full_like(s, ridge**0.5))  # of Sigma + ridge I
    W = (Vt.T * root**-strength @ Vt).to(values.dtype)
    if not W.isfinite().all():
        raise ValueError(f"values must be longer for {W.dtype}; W is not finite")
    return W


def whitened(facts: FactSet, W: Float[Tensor, "d_v d_v"]) -> FactSet:
    """The same facts with values V W."""
    return FactSet(facts.keys, facts.values @ W, facts.targets)


def fold_whitening(mlp: GatedMLP, W: Float[Tensor, "d_v d_v"]) -> GatedMLP:
    """An MLP for the values V, from one for the values V W; every score stays the same.

    <g, W^T v> = <W g, v>: the last layer becomes W B. (With the inverse of W in its place, as the
    paper has it, the outputs come back to the first basis, but their inner products change.)

    Source: Dugan et al., Section 3.3, Appendix A.1.3.
    """
    return mlp.with_readout(W @ mlp.B)


# --- one value after the other -----------------------------------------------------------------


def _solve(
    W: Float[np.ndarray, "N d"], i: int, start: Float[np.ndarray, " d"]
) -> tuple[float, Float[np.ndarray, " d"], float, Int[np.ndarray, " a"]]:
    """Radius, output, gap and active constraints of value i, from its directions w_ij.

    Constraints come in as they are violated. The bounds are those of all N directions.
    """
    known = _lowest(_margins(W, i, start), START * W.shape[1])
    while True:
        u, weights = _least_distance(W[known])
        upper = np.linalg.norm(weights @ W[known])
        margins = _margins(W, i, u)
        worst = _lowest(margins, MORE)
        violated = worst[margins[worst] < upper * (1 - ROUNDING) - ROUNDING]
        new = np.setdiff1d(violated, known)
        if not len(new):
            break
        known = np.append(known, new)
    active, lower = known[weights > 0], margins.min()
    if min(lower, upper) <= RESOLUTION:
        return 0.0, np.zeros_like(u), upper, active
    return upper, u, max(upper - lower, 0.0), active


def _least_distance(
    W: Float[np.ndarray, "c d"],
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " c"]]:
    """The unit u of largest min W u, and weights of sum 1 whose |W^T weights| is that minimum.

    u is 0 where the minimum cannot be told from 0.
    """
    # y >= 0 that minimises |W^T y|^2 + (1 - sum y)^2 is a multiple of the weights
    goal = np.append(np.zeros(W.shape[1]), 1.0)
    weights, _ = nnls(np.vstack([W.T, np.ones(len(W))]), goal, maxiter=50 * len(W))
    weights /= weights.sum()
    nearest = weights @ W
    upper = np.linalg.norm(nearest)
    if upper <= RESOLUTION:
        return np.zeros_like(nearest), weights
    u, on = nearest / upper, weights > 0
    if on.sum() > len(u):  # active constraints of a decodable value are independent
        return u, weights
    Q, R = np.linalg.qr(W[on].T)
    if np.abs(R.diagonal()).min() <= RESOLUTION:
        return u, weights
    solved = solve_triangular(R, np.ones(len(R)), trans="T")
    better = np.zeros_like(weights)
    better[on] = np.clip(solve_triangular(R, solved), 0, None)
    better /= better.sum()
    sharper = Q @ solved / np.linalg.norm(solved)
    if _width(W, sharper, better) < _width(W, u, weights):
        return sharper, better
    return u, weights


def _width(W: np.ndarray, u: np.ndarray, weights: np.ndarray) -> float:
    """The upper bound from the weights minus the lower one from u."""
    return np.linalg.norm(weights @ W) - (W @ u).min()


def _margins(W: np.ndarray, i: int, u: np.ndarray) -> np.ndarray:
    """<w_ij, u>, infinite at j = i."""
    margins = W @ u
    margins[i] = np.inf
    return margins


def _lowest(margins: np.ndarray, count: int) -> np.ndarray:
    """Where the ``count`` smallest margins are, or all but the infinite one."""
    count = min(count, len(margins) - 1)
    return np.argpartition(margins, count - 1)[:count]


def _directions(X: Float[np.ndarray, "N d"], i: int, out: np.ndarray) -> Float[np.ndarray, "N d"]:
    """w_ij, all but exact: differences of doubles are rounded once. Zeros at j = i.

    In place, since fresh memory for every value would cost more than the arithmetic.
    """
    W = np.subtract(X[i], X, out=out)
    norms = np.sqrt(np.einsum("nd,nd->n", W, W))
    norms[i] = 1
    if norms.min() < SHORT:
        return unit_rows(torch.from_numpy(W)).numpy()
    return np.divide(W, norms[:, None], out=W)


def _table(values: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
    """Values in double precision times a power of two, below 1: the same w_ij.

    They are not centred, since that would round every row to the precision of the largest.
    """
    check_embeddings("values", values)
    if len(values) < 2:
        raise ValueError(f"values must have at least 2 rows; got {len(values)}")
    V = values.detach().double().cpu().numpy()
    X = torch.from_numpy(np.ldexp(V, -np.frexp(np.abs(V).max())[1]))
    distinct, copies = torch.unique(X, dim=0, return_inverse=True)
    if len(distinct) < len(X):
        order = torch.argsort(copies, stable=True)
        at = int((copies[order].diff() == 0).nonzero()[0])
        raise ValueError(
            f"values must be distinct; rows {int(order[at])} and {int(order[at + 1])} are equal"
        )
    return X
