"""Encoders: one hidden layer that sends every key to its code, exactly.

A gadget has one output, 1^T [(A x) * sigma(G x)]. Once G is chosen it is linear in A, and the
codes of all keys are one linear system M vec(A) = o, whose row for key k is
sigma(G k) tensor k. Codes of m entries take m gadgets.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int, Real
from scipy.linalg import lstsq
from torch import Tensor, nn

from lib.facts import check_embeddings
from lib.mlp import GATES, GatedMLP, PlainMLP
from lib.numerics import (
    RELATIVE_CUTOFF,
    check_choice,
    check_count,
    check_nonnegative,
    check_positive,
)

#: Hidden units beyond F / d, as a share: they lower the condition number by orders of magnitude.
EXCESS = 0.1

#: Finite differences of a gate with a kink go at most this share of the way to it.
TOWARDS_KINK = 0.5


class GadgetEncoder(nn.Module):
    """enc_j(x) = 1^T [(A_j x) * sigma(G_j x)], j = 1, ..., m, each with h hidden units.

    Args:
        A: up projections.
        G: gate projections, one for each gadget, or one for all (g = 1).
        gate: sigma, as in :class:`lib.mlp.GatedMLP`.

    Raises:
        ValueError: the shapes do not fit or are empty, dtypes differ, an entry is not finite, or
            the gate is unknown.

    Source: Dugan et al., Section 4.1.
    """

    def __init__(
        self, A: Float[Tensor, "m h d"], G: Float[Tensor, "g h d"], gate: str = "silu"
    ) -> None:
        super().__init__()
        fits = A.ndim == 3 and G.shape in (A.shape, (1, *A.shape[1:])) and A.dtype == G.dtype
        if not fits or 0 in A.shape:
            raise ValueError(
                f"A must be (m, h, d), not empty, and G as A or (1, h, d), of one dtype; "
                f"got {tuple(A.shape)}, {tuple(G.shape)}, {A.dtype} and {G.dtype}"
            )
        check_choice("gate", gate, GATES)
        if not (A.isfinite().all() and G.isfinite().all()):
            raise ValueError("A and G must be finite")
        self.A, self.G, self.gate = nn.Parameter(A), nn.Parameter(G), gate

    def features(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n mh"]:
        """(A_j x) * sigma(G_j x) of all gadgets, one after the other."""
        gates = GATES[self.gate](torch.einsum("nd,ghd->ngh", x, self.G))
        return (torch.einsum("nd,mhd->nmh", x, self.A) * gates).flatten(1)

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
        """enc(x) for each row."""
        return self.features(x).unflatten(1, self.A.shape[:2]).sum(-1)

    @property
    def width(self) -> int:
        """Hidden width of the encoder written as one MLP, m h."""
        return self.A.shape[0] * self.A.shape[1]

    @property
    def parameter_count(self) -> int:
        """All entries of A and G, and the m h ones that sum up hidden units."""
        return self.A.numel() + self.G.numel() + self.width

    def folded(self) -> GatedMLP:
        """The same function as a gated MLP; shared gates are repeated."""
        m, h, d = self.A.shape
        ones = torch.kron(torch.eye(m), torch.ones(1, h)).to(self.A)
        G = self.G.detach().expand(m, h, d).reshape(m * h, d)
        return GatedMLP(self.A.detach().reshape(m * h, d), G, ones, self.gate).requires_grad_(False)


def hidden_size(F: int, d: int, *, excess: float = EXCESS) -> int:
    """Hidden units of a gadget, ceil((1 + excess) F / d): at least F unknowns for F equations."""
    check_count(F=F, d=d)
    check_nonnegative(excess=excess)
    return math.ceil(round((1 + excess) * F / d, 9))


def gadget_matrix(
    keys: Float[Tensor, "F d"], activations: Float[Tensor, "F h"]
) -> Float[Tensor, "F hd"]:
    """M(Sigma, K): row i is activations_i tensor k_i, columns ordered as vec(A) of A (h, d).

    Source: Dugan et al., Section 4.1.
    """
    return (activations[:, :, None] * keys[:, None, :]).flatten(1)


def solve_gadgets(
    keys: Float[Tensor, "F d"], activations: Float[Tensor, "F h"], codes: Float[Tensor, "F m"]
) -> Float[Tensor, "m h d"]:
    """Up projections A_j of least norm with M vec(A_j) = the codes' column j.

    By a complete orthogonal factorisation of M, its rows scaled to unit norm, which shows its rank.
    M, of F times h d entries, at least F^2, is formed; M^T M is not.

    Raises:
        ValueError: M has not full row rank F. The message says by how much h must grow at least (a
            hidden unit adds at most d to the rank), or that keys are zero or repeated.

    Source: Dugan et al., Section 4.1, eq. 6, Algorithm 3.
    """
    (F, d), h = keys.shape, activations.shape[1]
    M = gadget_matrix(keys.double(), activations.double())
    norms = M.norm(dim=1, keepdim=True)
    norms = torch.where(norms > 0, norms, 1)
    solution, rank = _least_norm(M / norms, codes / norms)
    if rank < F and (useful := len(keys[keys.any(1)].unique(dim=0))) < F:
        raise ValueError(f"keys must be distinct and not zero, or no h helps; {useful} of {F} are")
    if rank < F:
        raise ValueError(
            f"the gadget's system has rank {rank}, below its {F} keys: h = {h} must grow by at "
            f"least {math.ceil((F - rank) / d)}, with gates of other units"
        )
    return solution.to(codes).T.reshape(-1, h, d)


def _least_norm(M: Tensor, Y: Tensor) -> tuple[Tensor, int]:
    """The shortest X with M X = Y, or nearest to it, and the rank of M; in double precision.

    SciPy's driver, since torch's ``gelsy`` reports ranks that are too small now and then.
    """
    M, goal = M.double().cpu().numpy(), Y.double().cpu().numpy()
    X, _, rank, _ = lstsq(M, goal, cond=RELATIVE_CUTOFF, lapack_driver="gelsy")
    return torch.from_numpy(X).to(Y), rank


def gated_encoder(
    keys: Float[Tensor, "F d"],
    codes: Float[Tensor, "F m"],
    h: int,
    *,
    generator: torch.Generator,
    gate: str = "silu",
    shared: bool = False,
) -> GadgetEncoder:
    """Encoder with random Gaussian gates and solved up projections: enc(k_i) = c_i.

    Gates are scaled to pre-activations of order one for the median key. With an analytic gate that
    is no polynomial (``silu``, ``gelu``), h >= F / d suffices for generic keys in exact arithmetic;
    in double precision rank can stay below F at small d, whatever h (d = 2 and F = 30). With
    ``relu`` a key can have all its gates off, and with ``identity`` the rank ends at d (d + 1) / 2.

    Args:
        keys: K.
        codes: the code of each key, in the dtype of the keys.
        h: hidden units of a gadget, at least 1; :func:`hidden_size` is a good choice.
        gate: sigma.
        shared: one G for all gadgets, and one factorisation; otherwise each draws its own.

    Returns:
        A frozen encoder with h hidden units for each entry of a code.

    Raises:
        ValueError: an argument is out of range, the system has not full rank, or its solution
            leaves less than a third of the codes' digits.

    Source: Dugan et al., Algorithms 2 and 3; sharing is ours.
    """
    _check(keys, codes, h)
    check_choice("gate", gate, GATES)
    d = keys.shape[1]
    if gate == "identity" and len(keys) > d * (d + 1) // 2:
        raise ValueError(
            f"keys must be at most d (d + 1) / 2 = {d * (d + 1) // 2} for the identity gate, "
            f"whatever h; got {len(keys)}"
        )
    columns = [codes] if shared else codes.T[..., None]
    gadgets = [_gadgets(keys, column, h, GATES[gate], generator) for column in columns]
    G, A = zip(*gadgets, strict=True)
    encoder = GadgetEncoder(torch.cat(A), torch.stack(G), gate).requires_grad_(False)
    return _checked(encoder, keys, codes)


# --- keys with a single plus and a single minus ------------------------------------------------


def two_hot_keys(d: int) -> tuple[Int[Tensor, "F d"], Int[Tensor, "2 F"]]:
    """All keys e_i - e_j, i != j, in the order of i and then j, and their (i, j).

    Raises:
        ValueError: d is below 2.
    """
    check_count(2, d=d)
    pairs = (~torch.eye(d, dtype=torch.bool)).nonzero().T
    identity = torch.eye(d, dtype=torch.int64)
    return identity[pairs[0]] - identity[pairs[1]], pairs


def two_hot_projections(codes: Real[Tensor, "F m"], d: int) -> Real[Tensor, "m d d"]:
    """A_j of gadgets 1^T [(A_j x) * ReLU(x)] that send e_p - e_q to its code, exactly.

    ReLU(e_p - e_q) = e_p picks row p, whose product with the key is A[p, p] - A[p, q]: zeros on the
    diagonal and minus the code elsewhere.

    Args:
        codes: of the keys of :func:`two_hot_keys`, in their order; F = d (d - 1).

    Raises:
        ValueError: their number is not d (d - 1).

    Source: Dugan et al., Construction 4.1.
    """
    _, (p, q) = two_hot_keys(d)
    if len(codes) != len(p):
        raise ValueError(f"codes must have d (d - 1) = {len(p)} rows; got {len(codes)}")
    A = torch.zeros(codes.shape[1], d, d, dtype=codes.dtype)
    A[:, p, q] = -codes.T
    return A


def two_hot_encoder(codes: Int[Tensor, "F m"], d: int) -> GadgetEncoder:
    """The encoder of :func:`two_hot_projections`, in float64: exact for |codes| below 2^53."""
    A = two_hot_projections(codes.double(), d)
    G = torch.eye(d, dtype=torch.float64)[None]
    return GadgetEncoder(A, G, "relu").requires_grad_(False)


def two_hot_bits(bits: Int[Tensor, " F"], d: int) -> PlainMLP:
    """1^T ReLU(A x - 1) that sends e_p - e_q to its bit; without gates, with entries 0, 1 and -1.

    A has ones on the diagonal and minus the bits elsewhere; every unit but p stays off.

    Raises:
        ValueError: there are not d (d - 1) bits, or one is neither 0 nor 1.

    Source: Dugan et al., Appendix B.3.2.
    """
    if not ((bits == 0) | (bits == 1)).all():
        raise ValueError("bits must be 0 or 1")
    A = two_hot_projections(bits[:, None], d)[0].double() + torch.eye(d, dtype=torch.float64)
    ones = torch.ones(d, dtype=torch.float64)
    return PlainMLP(A, -ones, ones[None], "relu").requires_grad_(False)


# --- without gates -----------------------------------------------------------------------------


def plain_encoder(
    keys: Float[Tensor, "F d"],
    codes: Float[Tensor, "F m"],
    h: int,
    *,
    generator: torch.Generator,
    gate: str = "relu",
    step: float | None = None,
) -> PlainMLP:
    """Encoder without gates: (sigma((g + t a) x) - sigma(g x)) / t in place of sigma'(g x) (a x).

    With ``relu`` the quotient is exact while no key crosses the kink, and t is chosen so. With a
    smooth activation the error falls like t, until rounding over t exceeds it. All gadgets share g.
    Width h (m + 1).

    Args:
        keys, codes, h: as in :func:`gated_encoder`.
        gate: sigma; not ``identity``, whose derivative is constant.
        step: > 0, by how much t a x moves g x, of order one; by default the square root of the
            dtype's eps, where both errors are of one order. Not used with ``relu``.

    Raises:
        ValueError: an argument is out of range, the system has not full rank, or a key is so near
            to a kink that rounding would leave less than a third of the codes' digits.

    Source: Dugan et al., Section 4.1 and Appendix B.4.3, after Nichani et al. (2024).
    """
    _check(keys, codes, h)
    if gate not in GATES or gate == "identity":
        raise ValueError(f"gate must be one of {', '.join(GATES)}, but identity; got {gate!r}")
    step = math.sqrt(torch.finfo(keys.dtype).eps) if step is None else step
    check_positive(step=step)
    K = keys.double()
    slope = torch.func.grad(lambda t: GATES[gate](t).sum())
    G, A = _gadgets(K, codes.double(), h, slope, generator)
    moves = torch.einsum("fd,mhd->fmh", K, A).abs()
    exact = gate == "relu"
    steps = _steps_to_kink(K @ G.T, moves) if exact else _steps(moves.new_tensor(step), moves)
    encoder = _quotients(G, torch.zeros(h).to(K), A, steps, gate, keys.dtype)
    return _checked(encoder, keys, codes) if exact else encoder


def baum_encoder(keys: Float[Tensor, "F d"], codes: Float[Tensor, "F m"]) -> PlainMLP:
    """ReLU encoder that treats d keys at a time: width (2 m + 2) ceil(F / d), 4 of them at m = 1.

    A hyperplane z x = 1 passes through the keys of a block. Two gates, open above 1 - tau and above
    1 + tau, leave a slab with these keys alone, in which the linear map a with a k_i = c_i acts.
    Each gate is a finite difference of ReLUs.

    Args:
        keys: K; no d + 1 of them lie in one hyperplane, and any d are independent.
        codes: the code of each key, in the dtype of the keys.

    Raises:
        ValueError: keys are not in such a position, or so nearly not that rounding in their dtype
            would leave less than a third of the codes' digits.

    Source: Dugan et al., Appendix B.1.1, after Bubeck et al. (2020).
    """
    _check(keys, codes, 1)
    K, C = keys.double(), codes.double()
    normals, thresholds, maps = [], [], []
    for start in range(0, len(K), d := K.shape[1]):
        block = slice(start, start + d)
        goals = torch.cat([torch.ones(len(K[block]), 1).to(K), C[block]], 1)
        solution, rank = _least_norm(K[block], goals)
        z, a = solution[:, 0], solution[:, 1:].T
        off = (K @ z - 1).abs()
        off[block] = 2.0
        tau = off.min().item() / 2
        if rank < len(goals) or not tau > RELATIVE_CUTOFF:
            raise ValueError(
                f"keys must be in general position; those from {start} on are dependent, or share "
                "their hyperplane with others"
            )
        normals += [z, z]
        thresholds += [1 - tau, 1 + tau]
        maps += [a, -a]
    G, b, A = torch.stack(normals), K.new_tensor(thresholds), torch.stack(maps, 1)
    moves = torch.einsum("fd,mhd->fmh", K, A).abs()
    steps = _steps_to_kink(K @ G.T - b, moves)
    return _checked(_quotients(G, -b, A, steps, "relu", keys.dtype), keys, codes)


def _quotients(
    G: Tensor, b: Tensor, A: Tensor, steps: Tensor, gate: str, dtype: torch.dtype
) -> PlainMLP:
    """sum_r (sigma((g_r + t_jr a_jr) x + b_r) - sigma(g_r x + b_r)) / t_jr for j = 1, ..., m.

    A unit that moves no key has an infinite step, and no part in the sum.
    """
    m, h, d = A.shape
    spread = torch.block_diag(*(1 / steps)[:, None])
    moved = G + steps.where(steps.isfinite(), 0)[..., None] * A
    A, B = torch.cat([G, moved.reshape(m * h, d)]), torch.cat([-1 / steps, spread], 1)
    b = b.repeat(m + 1)
    return PlainMLP(A.to(dtype), b.to(dtype), B.to(dtype), gate).requires_grad_(False)


def _steps_to_kink(activations: Tensor, moves: Tensor) -> Tensor:
    """For each gadget and unit, half the largest step that takes no key across the kink."""
    return TOWARDS_KINK * _steps(activations.abs()[:, None], moves)


def _steps(reach: Tensor, moves: Tensor) -> Tensor:
    """For each gadget and unit, the largest step that moves no key by more than its reach."""
    return torch.where(moves > torch.finfo(moves.dtype).tiny, reach / moves, torch.inf).amin(0)


def _gadgets(
    keys: Tensor,
    codes: Tensor,
    h: int,
    gate: Callable[[Tensor], Tensor],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """A fresh random G of h units, and the A that sends keys to codes through it."""
    size = keys[keys.any(1)].double().norm(dim=1).median()  # a few long keys do not close gates
    normal = torch.randn(h, keys.shape[1], dtype=torch.float64, generator=generator)
    G = (normal / size).to(keys)
    return G, solve_gadgets(keys, gate(keys @ G.T), codes)


def _checked(encoder: nn.Module, keys: Tensor, codes: Tensor) -> nn.Module:
    """The encoder; raise ValueError unless rounding has left a third of the codes' digits."""
    error, size = (encoder(keys) - codes).abs().max().item(), codes.abs().max().item()
    if not error <= (allowed := torch.finfo(keys.dtype).eps ** (1 / 3) * size):
        raise ValueError(
            f"keys are too close to each other or to a kink, or too unlike in length, for "
            f"{keys.dtype}: codes are off by {error:.2g}, more than {allowed:.2g}"
        )
    return encoder


def _check(keys: Tensor, codes: Tensor, h: int) -> None:
    check_embeddings("keys", keys)
    check_embeddings("codes", codes)
    if len(codes) != len(keys) or codes.dtype != keys.dtype:
        raise ValueError(
            f"codes must have one row per key, {len(keys)}, and the dtype {keys.dtype}; "
            f"got {len(codes)} and {codes.dtype}"
        )
    if not keys.any():
        raise ValueError("keys must not all be zero")
    check_count(width=h)
