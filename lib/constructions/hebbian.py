"""Hebbian kernel memories and the MLPs that equal them.

A kernel memory answers a query z with sum_t c_t K(k_t, z): each stored key votes for its code,
weighted by its similarity to the query. A feature map phi turns it into an MLP with readout
C^T Phi; conversely every MLP is such a memory with a whitened kernel.
"""

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from lib.decoding import Memory, Retrieval
from lib.facts import FactSet
from lib.mlp import GatedMLP
from lib.numerics import (
    BLOCK_ENTRIES,
    RELATIVE_CUTOFF,
    check_choice,
    check_count,
    check_nonnegative,
    least_squares,
    ridge_regression,
    row_blocks,
    take_diagonal,
    whitener,
)

Kernel = Callable[[Float[Tensor, "n d"], Float[Tensor, "q d"]], Float[Tensor, "n q"]]

WHITENINGS = ("none", "diag", "full")

#: Where the least-squares solves of the data-dependent construction stop: below 1e-3 margins no
#: longer change in their third digit, and float32 gets there.
TOLERANCE, ITERATIONS = 1e-4, 1000


def sketched_k2(
    facts: FactSet,
    width: int,
    *,
    generator: torch.Generator,
    whitening: str = "none",
    ridge: float = 1e-6,
    codes: Float[Tensor, "N d_c"] | None = None,
) -> GatedMLP:
    """Hebbian MLP with random bilinear features, a sketch of the quadratic kernel <x, z>^2.

    Rows of A_bar and G_bar are standard Gaussian, A = m^(-1/4) A_bar and G = m^(-1/4) G_bar, so
    that phi(x) . phi(z) is an unbiased estimate of <x, z>^2. The readout is that of
    :func:`hebbian_mlp`.

    Args:
        facts: what to store.
        width: m >= 1.
        whitening, ridge, codes: of the readout.

    Returns:
        A frozen bilinear MLP in the dtype of the facts.

    Raises:
        ValueError: width is not allowed, or as :func:`hebbian_mlp`.

    Source: Garcia et al., Algorithm 1, Lemma B.2.
    """
    A, G = sketch_weights(facts, width, generator=generator)
    return hebbian_mlp(facts, A, G, whitening=whitening, ridge=ridge, codes=codes)


def sketch_weights(
    facts: FactSet, width: int, *, generator: torch.Generator
) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m d"]]:
    """A and G of the sketch: independent N(0, m^(-1/2)) entries, on the facts' device and dtype.

    Raises:
        ValueError: width is not an integer of at least 1.
    """
    check_count(width=width)
    d = facts.keys.shape[1]
    A, G = (torch.randn(width, d, dtype=torch.float64, generator=generator) for _ in range(2))
    return (A * width**-0.25).to(facts.keys), (G * width**-0.25).to(facts.keys)


def hebbian_mlp(
    facts: FactSet,
    A: Float[Tensor, "m d"],
    G: Float[Tensor, "m d"],
    *,
    whitening: str = "none",
    ridge: float = 1e-6,
    codes: Float[Tensor, "N d_c"] | None = None,
) -> GatedMLP:
    """Bilinear MLP with given hidden weights and a Hebbian readout.

    B = C^T Phi M with Phi the features of the keys, C the codes of their answers,
    Sigma = Phi^T Phi / F and

    - ``none``: M = I;
    - ``diag``: M = (diag(Sigma) + ridge)^(-1) / F;
    - ``full``: M = (Sigma + ridge I)^(-1) / F (solved in the smaller of m and F).

    Algorithm 1 divides by F for ``none`` too. That scales every margin alike; left out, the
    kernel has expectation <x, z>^2 and margins are those of Theorem B.30. In the dual branch
    (m > F) it adds ridge where the primal has ridge F; here both have ridge F. ``none`` and
    ``diag`` never hold all features at once.

    Args:
        facts: what to store.
        A, G: hidden weights, in the dtype of the facts.
        whitening: ``none``, ``diag`` or ``full``.
        ridge: lambda >= 0; 0 with ``full`` takes the pseudo-inverse.
        codes: c_j, one row per value, written into the memory; by default the values.

    Returns:
        A frozen MLP.

    Raises:
        ValueError: whitening, ridge or the number of codes is not allowed.

    Source: Garcia et al., Algorithm 1, Appendix B.2.4.
    """
    C = _check_readout(facts, whitening, ridge, codes)[facts.targets]
    if whitening == "full":
        return GatedMLP(A, G, ridge_regression(_features(facts, A, G), C, ridge)).requires_grad_(
            False
        )
    B = torch.zeros(C.shape[1], len(A)).to(A)
    variances = torch.zeros(len(A)).to(A)
    for rows, Phi in _feature_blocks(facts, A, G):
        B += C[rows].T @ Phi
        variances += (Phi**2).sum(0)
    if whitening == "diag":
        variances += ridge * len(facts)
        B = B / torch.where(variances > 0, variances, 1)  # B is zero where the feature is
    return GatedMLP(A, G, B).requires_grad_(False)


def data_dependent(
    facts: FactSet,
    width: int,
    *,
    generator: torch.Generator,
    ridge: float = 1e-6,
    tolerance: float = TOLERANCE,
    limit: int = ITERATIONS,
) -> GatedMLP:
    """Hebbian MLP whose hidden weights are fitted to the facts, by two linear least squares.

    As :func:`solved_mlp`, from the random weights of the sketch.

    Raises:
        ValueError: an argument is out of range.

    Source: Garcia et al., Appendix B.2.5.
    """
    A, G = sketch_weights(facts, width, generator=generator)
    return solved_mlp(facts, A, G, ridge=ridge, tolerance=tolerance, limit=limit)


def solved_mlp(
    facts: FactSet,
    A: Float[Tensor, "m d"],
    G: Float[Tensor, "m d"],
    *,
    ridge: float = 1e-6,
    tolerance: float = TOLERANCE,
    limit: int = ITERATIONS,
) -> GatedMLP:
    """Fit first G, then A, so that the Hebbian readout of the given weights answers every key.

    With B_0 the raw readout, G_1 minimises ||C - Phi(A, G_1) B_0^T||_F and A_1 minimises
    ||C - Phi(A_1, G_1) B_0^T||_F; the readout is then replaced by the whitened one. A_1 is scaled
    to features of mean square norm 1, those of the sketch, so that the ridge means the same for
    both. Neither problem is ever written as a matrix.

    Args:
        facts: what to store.
        A, G: hidden weights to start from.
        ridge: lambda >= 0 of the final readout.
        tolerance, limit: of :func:`lib.numerics.least_squares`; a warning says if a solve ends
            above the tolerance.

    Returns:
        A frozen bilinear MLP in the dtype of the facts.

    Raises:
        ValueError: an argument is out of range.

    Source: Garcia et al., eqs. 17 and 18.
    """
    check_nonnegative(ridge=ridge)
    longest = facts.keys.norm(dim=1).max()  # keys of any length: float32 has few exponents
    scaled = FactSet(facts.keys / longest, facts.values, facts.targets) if longest > 0 else facts
    B = hebbian_mlp(scaled, A, G).B / len(facts)
    G = _fit_factor(scaled, A, B, tolerance, limit)
    A = _fit_factor(scaled, G, B, tolerance, limit)
    A, G = A / longest, G / longest
    energy = sum(Phi.square().sum().item() for _, Phi in _feature_blocks(facts, A, G))
    if not energy > 0:
        raise ValueError("keys and values must not all be zero")
    return hebbian_mlp(facts, A * math.sqrt(len(facts) / energy), G, whitening="full", ridge=ridge)


def _fit_factor(facts: FactSet, fixed: Tensor, B: Tensor, tolerance: float, limit: int) -> Tensor:
    """X minimising ||C - ((K fixed^T) * (K X^T)) B^T||_F."""
    K, C = facts.keys, facts.answers
    P = K @ fixed.T
    curvature = (P**2).T @ K**2 * (B**2).sum(0)[:, None]  # diagonal of the normal equations
    return least_squares(
        lambda X: (P * (K @ X.T)) @ B.T,
        lambda R: (P * (R @ B)).T @ K,
        C,
        curvature=curvature,
        tolerance=tolerance,
        limit=limit,
    )


def _feature_blocks(facts: FactSet, A: Tensor, G: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Phi for consecutive slices of facts."""
    for rows in row_blocks(len(facts), len(A)):
        yield rows, (facts.keys[rows] @ A.T) * (facts.keys[rows] @ G.T)


def _features(facts: FactSet, A: Tensor, G: Tensor) -> Tensor:
    """Phi of all keys, with no second array of its size."""
    Phi = torch.empty(len(facts), len(A)).to(A)
    for rows, block in _feature_blocks(facts, A, G):
        Phi[rows] = block
    return Phi


def _check_readout(
    facts: FactSet, whitening: str, ridge: float, codes: Tensor | None
) -> Float[Tensor, "N d_c"]:
    """The codes, once everything about the readout is allowed."""
    check_choice("whitening", whitening, WHITENINGS)
    check_nonnegative(ridge=ridge)
    if codes is None:
        return facts.values
    if len(codes) != len(facts.values):
        raise ValueError(f"codes must have {len(facts.values)} rows, as values; got {len(codes)}")
    if codes.dtype != facts.values.dtype or not codes.isfinite().all():
        raise ValueError(f"codes must be finite and {facts.values.dtype}, as values")
    return codes


def k2_kernel(x: Float[Tensor, "n d"], z: Float[Tensor, "q d"]) -> Float[Tensor, "n q"]:
    """The exact quadratic kernel K_2(x, z) = <x, z>^2."""
    return (x @ z.T) ** 2


def feature_kernel(mlp: GatedMLP) -> Kernel:
    """K(x, z) = phi(x) . phi(z), the kernel of an MLP's own features."""
    return lambda x, z: mlp.features(x) @ mlp.features(z).T


def whitened_kernel(
    mlp: GatedMLP,
    keys: Float[Tensor, "F d"],
    *,
    ridge: float = 0.0,
    cutoff: float = RELATIVE_CUTOFF,
) -> Kernel:
    """K(x, z) = phi(x)^T (Sigma + ridge I)^(-1) phi(z), Sigma the covariance of phi on the keys.

    At ridge 0 a singular Sigma is replaced by its pseudo-inverse (singular values of
    Phi / sqrt(F) below ``cutoff`` times the largest count as zero).

    Source: Garcia et al., Theorem B.1.
    """
    T = whitener(mlp.features(keys), ridge=ridge, cutoff=cutoff)
    return lambda x, z: (mlp.features(x) @ T.T) @ (mlp.features(z) @ T.T).T


def kernel_memory(
    kernel: Kernel,
    keys: Float[Tensor, "F d"],
    codes: Float[Tensor, "F d_c"],
    *,
    entries: int = BLOCK_ENTRIES,
) -> Memory:
    """The Hebbian memory z -> sum_t c_t K(k_t, z), in blocks of queries.

    Args:
        kernel: K.
        keys: k_t, one row per stored example.
        codes: c_t, what each example adds to the answer.
        entries: bound on the number of kernel entries held at once.

    Source: Garcia et al., eqs. 8 and 23.
    """

    if len(keys) != len(codes):
        raise ValueError(f"codes must have one row per key, {len(keys)}; got {len(codes)}")

    def memory(z: Tensor) -> Tensor:
        answers = torch.empty(len(z), codes.shape[1]).to(codes)
        for rows in row_blocks(len(z), len(keys), entries=entries):
            answers[rows] = kernel(keys, z[rows]).T @ codes
        return answers

    return memory


def hebbian_form(mlp: GatedMLP, keys: Float[Tensor, "F d"], kernel: Kernel) -> Memory:
    """The Hebbian memory of an MLP's own outputs, z -> (1/F) sum_t MLP(k_t) K(k_t, z).

    With the whitened kernel it equals the MLP everywhere, if the features of the keys span R^m.

    Source: Garcia et al., Theorems 3.1 and B.1.
    """
    return kernel_memory(kernel, keys, mlp(keys).detach() / len(keys))


@torch.no_grad()
def signal_and_crosstalk(
    kernel: Kernel, facts: FactSet, retrieval: Retrieval, *, entries: int = BLOCK_ENTRIES
) -> tuple[Float[Tensor, " F"], Float[Tensor, " F"]]:
    """Split each fact's margin into signal + cross-talk, against its hardest competitor j.

    signal_i = K(k_i, k_i) <v_f(i) - v_j, v_f(i)>: what the fact's own vote gives. Cross-talk is
    the sum of all other votes, computed here on its own and not as the difference.

    Source: Garcia et al., eq. 6.
    """
    F = len(facts)
    signal, crosstalk = torch.empty_like(retrieval.margins), torch.empty_like(retrieval.margins)
    for rows in row_blocks(F, F, entries=entries):
        difference = facts.answers[rows] - facts.values[retrieval.competitors[rows]]
        votes = kernel(facts.keys[rows], facts.keys) * (difference @ facts.answers.T)
        signal[rows] = take_diagonal(votes, rows)
        crosstalk[rows] = votes.sum(1)
    return signal, crosstalk
