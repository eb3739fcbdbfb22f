"""Summary statistics of key and value geometry, from which margins are bounded.

A Hebbian memory with kernel matrix K, values v and codes c has the pairwise margins

    gamma_ij = K_ii <v_i - v_j, v_i> + sum_{t != i} K_ti <v_i - v_j, c_t>,   j != i,

value i answering key i. The statistics are maxima over facts and pairs of what these sums are
made of. A "truncated" sum leaves the competitor t = j out as well. All are exact, computed in
blocks of facts with nothing of size F x F x F, in O(F^2 d) operations.

Source: Garcia et al., Appendices B.5 to B.8.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lib.constructions.hebbian import Kernel
from lib.facts import check_embeddings
from lib.numerics import BLOCK_ENTRIES, row_blocks, take_diagonal

#: Entries of the (block x F x d) differences of values: 32 MiB.
DIFFERENCE_ENTRIES = 2**22

#: A truncated energy below this share of the whole is summed again without subtraction.
CANCELLED = 1e-3


@dataclass(frozen=True)
class Geometry:
    """What the margin bounds need to know of F facts.

    Attributes:
        facts: F.
        diagonal: K_min^diag, the smallest K_ii (Definition B.9).
        off_diagonal: K_max^off, the largest |K_ij|, i != j (Definition B.9).
        column_energy: E_K, the largest sum_{t != i} K_ti^2 (Definition B.10).
        separation: V_min, the smallest <v_i - v_j, v_i> (Definition B.11).
        interaction: V_max, the largest |<v_i - v_j, v_j>| (Definition B.11).
        mean_alignment: B_Y, the largest |sum_{t not in {i, j}} <v_i - v_j, c_t>| (B.12).
        value_energy: E_v, the largest sum_{t != i} <v_i - v_j, c_t>^2 (Definition B.13).
        coupling: kappa in [0, 1], the largest cosine between the two columns (B.15).
        column_energy_truncated, value_energy_truncated, coupling_truncated: the same with t = j
            left out (eq. 34).
        centre: mu, subtracted from the kernel's entries in what follows.
        column_energy_centred: the largest sum_{t not in {i, j}} (K_ti - mu)^2 (Lemma B.18).
        coupling_centred: the largest cosine of the centred columns (Lemma B.18).
        coupling_effective: the largest cosine times the norm of the centred column (B.18).
        crosstalk_truncated: the largest |sum_{t not in {i, j}} K_ti <v_i - v_j, c_t>| (eq. 31).
        signal: the smallest K_ii <v_i - v_j, v_i> + K_ji <v_i - v_j, c_j> (Appendix B.7).
        margin: gamma_min, the smallest pairwise margin.
    """

    facts: int
    diagonal: float
    off_diagonal: float
    column_energy: float
    separation: float
    interaction: float
    mean_alignment: float
    value_energy: float
    coupling: float
    column_energy_truncated: float
    value_energy_truncated: float
    coupling_truncated: float
    centre: float
    column_energy_centred: float
    coupling_centred: float
    coupling_effective: float
    crosstalk_truncated: float
    signal: float
    margin: float

    @property
    def positive(self) -> bool:
        """Whether V_ij >= 0 for all pairs: condition 40, under which the margin bounds hold."""
        return self.separation >= 0


@dataclass(frozen=True)
class Penalties:
    """Geometry against its isotropic baseline.

    Attributes:
        signal: S_sig = K_min^diag V_min / (1 - sqrt(log F / d)).
        keys: P_key = sqrt(E_K) / sqrt(F / m).
        values: P_val = sqrt(E_v) / sqrt(F / d).
        alignment: P_align = kappa / sqrt(log F / F).
    """

    signal: float
    keys: float
    values: float
    alignment: float


def penalties(geometry: Geometry, *, m: int, d: int) -> Penalties:
    """The four penalty statistics.

    Args:
        geometry: of the facts.
        m: rank of the kernel, the hidden width, >= 1.
        d: dimension of the values, above log F.

    Raises:
        ValueError: m or d is out of range.

    Source: Garcia et al., Section 4.2.2.
    """
    log_F = math.log(geometry.facts)
    if m < 1 or d <= log_F:
        raise ValueError(f"m must be at least 1 and d above log F = {log_F:.3g}; got {m} and {d}")
    return Penalties(
        geometry.diagonal * geometry.separation / (1 - math.sqrt(log_F / d)),
        math.sqrt(geometry.column_energy * m / geometry.facts),
        math.sqrt(geometry.value_energy * d / geometry.facts),
        geometry.coupling / math.sqrt(log_F / geometry.facts),
    )


def kernel_geometry(
    kernel: Kernel,
    keys: Float[Tensor, "n d"],
    values: Float[Tensor, "F d_v"],
    codes: Float[Tensor, "C d_c"] | None = None,
    *,
    centre: float = 0.0,
) -> Geometry:
    """The statistics of a memory with a symmetric kernel; fact i has value i.

    Args:
        kernel: K.
        keys: of the facts.
        values: of the facts, in the same order; repetitions are allowed.
        codes: what is written for each fact; the values by default.
        centre: mu of the centred statistics.

    Raises:
        ValueError: there are fewer than 3 facts, shapes disagree, or a number is not finite.
    """
    if len(keys) != len(values):
        raise ValueError(f"keys must have one row per value, {len(values)}; got {len(keys)}")
    return _geometry(lambda rows: kernel(keys[rows], keys), values, codes, centre)


def gram_geometry(
    gram: Float[Tensor, "n n"],
    values: Float[Tensor, "F d_v"],
    codes: Float[Tensor, "C d_c"] | None = None,
    *,
    centre: float = 0.0,
) -> Geometry:
    """As :func:`kernel_geometry`, from the kernel's matrix, symmetric to 1e-9 of its largest entry.

    Raises:
        ValueError: as there, or the matrix is not symmetric.
    """
    if gram.shape != (len(values), len(values)):
        raise ValueError(f"gram must be {len(values)} x {len(values)}; got {tuple(gram.shape)}")
    check_embeddings("gram", gram)
    if (gram - gram.T).abs().max() > 1e-9 * gram.abs().max():
        raise ValueError("gram must be symmetric")
    return _geometry(lambda rows: gram[rows], values, codes, centre)


def _geometry(
    columns: Callable[[slice], Tensor], values: Tensor, codes: Tensor | None, centre: float
) -> Geometry:
    F = len(values)
    codes = values if codes is None else codes
    _check(values, codes)
    if not math.isfinite(centre):
        raise ValueError(f"centre must be finite; got {centre}")
    values, codes = values.double(), codes.double()
    root = torch.linalg.qr(codes).R  # |C x| = |root x|
    low: dict[str, float] = {}
    high: dict[str, float] = {}
    for rows in row_blocks(F, F * values.shape[1], entries=DIFFERENCE_ENTRIES):
        K = columns(rows).double().clone()
        if not K.isfinite().all():
            raise ValueError("kernel must be finite")
        diagonal = take_diagonal(K, rows)
        sums = _pair_sums(K, rows, values, codes, values @ root.T, centre)
        pairs = torch.ones_like(K, dtype=torch.bool)
        pairs.diagonal(rows.start).fill_(False)
        sums = {name: array[pairs].reshape(len(K), F - 1) for name, array in sums.items()}
        own = diagonal[:, None] * sums["own"]
        smallest = {
            "diagonal": diagonal,
            "separation": sums["own"],
            "signal": own + sums["competitor"],
            "margin": own + sums["z"],
        }
        effective = sums["z_centred"].abs() / sums["value_truncated"].sqrt()
        largest = {
            "off_diagonal": K.abs(),
            "column_energy": sums["kernel"],
            "interaction": sums["other"].abs(),
            "mean_alignment": sums["mean"].abs(),
            "value_energy": sums["value"],
            "coupling": _cosine(sums, ""),
            "column_energy_truncated": sums["kernel_truncated"],
            "value_energy_truncated": sums["value_truncated"],
            "coupling_truncated": _cosine(sums, "_truncated"),
            "column_energy_centred": sums["kernel_centred"],
            "coupling_centred": _cosine(sums, "_centred", "_truncated"),
            "coupling_effective": torch.where(sums["value_truncated"] > 0, effective, 0),
            "crosstalk_truncated": sums["z_truncated"].abs(),
        }
        for name, array in smallest.items():
            low[name] = min(low.get(name, math.inf), array.min().item())
        for name, array in largest.items():
            high[name] = max(high.get(name, 0.0), array.max().item())
    return Geometry(facts=F, centre=centre, **low, **high)


def _cosine(sums: dict[str, Tensor], kernel: str, value: str | None = None) -> Tensor:
    """|z| / (|X| |Y|), 0 where a norm vanishes."""
    value = kernel if value is None else value
    norms = (sums["kernel" + kernel] * sums["value" + value]).sqrt()
    return torch.where(norms > 0, sums["z" + kernel].abs() / norms, 0).clamp(max=1)


def _pair_sums(
    K: Float[Tensor, "b F"],
    rows: slice,
    values: Float[Tensor, "F d_v"],
    codes: Float[Tensor, "F d_v"],
    reduced: Float[Tensor, "F q"],
    centre: float,
) -> dict[str, Float[Tensor, "b F"]]:
    """Sums over t of every pair (i, j), i in the rows; K has zeros at t = i.

    Truncated sums are differences of whole ones; where little is left they are summed again.
    """
    b, F = K.shape
    own_row = torch.arange(b, device=K.device)
    difference = values[rows][:, None] - values
    own = (difference * codes[rows][:, None]).sum(-1)
    other = (difference * codes).sum(-1)
    energy = (reduced[rows][:, None] - reduced).square().sum(-1)
    C = K - centre
    C[own_row, rows.start + own_row] = 0
    kernel, kernel_centred = K.square().sum(1, keepdim=True), C.square().sum(1, keepdim=True)
    z = (difference @ (K @ codes)[:, :, None]).squeeze(-1)
    sums = {
        "own": own,
        "other": other,
        "competitor": K * other,
        "mean": difference @ codes.sum(0) - own - other,
        "value": energy - own**2,
        "value_truncated": energy - own**2 - other**2,
        "kernel": kernel.expand(b, F),
        "kernel_truncated": kernel - K**2,
        "kernel_centred": kernel_centred - C**2,
        "z": z,
        "z_truncated": z - K * other,
    }
    sums["z_centred"] = sums["z_truncated"] - centre * sums["mean"]
    lost = sums["value_truncated"] <= CANCELLED * energy
    lost |= sums["kernel_truncated"] <= CANCELLED * kernel
    lost |= sums["kernel_centred"] <= CANCELLED * kernel_centred
    for part in lost.nonzero().split(max(1, DIFFERENCE_ENTRIES // F)):
        i, j = part.T
        n = torch.arange(len(part), device=K.device)
        Y, X, Z = difference[i, j] @ codes.T, K[i], C[i]
        Y[n, rows.start + i] = 0
        sums["value"][i, j] = Y.square().sum(1)
        Y[n, j], X[n, j], Z[n, j] = 0, 0, 0
        sums["value_truncated"][i, j] = Y.square().sum(1)
        sums["kernel_truncated"][i, j] = X.square().sum(1)
        sums["kernel_centred"][i, j] = Z.square().sum(1)
        sums["mean"][i, j] = Y.sum(1)
        sums["z_truncated"][i, j] = (X * Y).sum(1)
        sums["z_centred"][i, j] = (Z * Y).sum(1)
    return sums


@dataclass(frozen=True)
class Spread:
    """L_v, or a bound on it.

    Attributes:
        value: in [1, F - 2].
        exact: whether it is L_v; otherwise it is the upper bound F - 2.
    """

    value: float
    exact: bool


def value_spread(
    values: Float[Tensor, "F d_v"],
    codes: Float[Tensor, "C d_c"] | None = None,
    *,
    exact_limit: int = 1024,
) -> Spread:
    """L_v, the largest |Y|_1^2 / |Y|_2^2 over pairs, Y = (<v_i - v_j, c_t>), t not in {i, j}.

    An l1 distance between rows of a matrix of inner products: it takes F^3 operations. Pairs with
    Y = 0 count as 1.

    Args:
        values, codes: as in :func:`kernel_geometry`.
        exact_limit: largest F for which it is computed; beyond, the bound F - 2 is returned.

    Raises:
        ValueError: as :func:`kernel_geometry`.

    Source: Garcia et al., Definition B.14.
    """
    codes = values if codes is None else codes
    _check(values, codes)
    F = len(values)
    if exact_limit < F:
        return Spread(float(F - 2), False)
    G = values.double() @ codes.double().T
    largest = 1.0
    for rows in row_blocks(F, F):
        own = G.diagonal()[rows, None] - G[:, rows].T
        other = G[rows] - G.diagonal()
        sizes = torch.cdist(G[rows], G, p=1) - own.abs() - other.abs()
        whole = torch.cdist(G[rows], G, compute_mode="donot_use_mm_for_euclid_dist") ** 2
        energies = whole - own**2 - other**2
        for part in (energies <= CANCELLED * whole).nonzero().split(BLOCK_ENTRIES // F):
            i, j = part.T
            n = torch.arange(len(part), device=G.device)
            Y = G[rows][i] - G[j]
            Y[n, rows.start + i], Y[n, j] = 0, 0
            sizes[i, j], energies[i, j] = Y.abs().sum(1), Y.square().sum(1)
        ratios = torch.where(energies > 0, sizes**2 / energies, 1)
        largest = max(largest, ratios.max().item())
    return Spread(largest, True)


def _check(values: Tensor, codes: Tensor) -> None:
    if len(values) < 3:
        raise ValueError(f"values must have at least 3 rows; got {len(values)}")
    check_embeddings("values", values)
    check_embeddings("codes", codes)
    if codes.shape != values.shape:
        raise ValueError(f"codes must have shape {tuple(values.shape)}; got {tuple(codes.shape)}")
