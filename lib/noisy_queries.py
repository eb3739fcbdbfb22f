"""What noise in the queries costs a margin."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lib.bounds import log_factor
from lib.decoding import Memory, retrieve, score_blocks, score_margins
from lib.facts import FactSet, check_nonzero_rows, sphere
from lib.margin_bounds import Bound
from lib.mlp import GatedMLP, check_bilinear
from lib.numerics import (
    BLOCK_ENTRIES,
    check_count,
    check_nonnegative,
    check_positive,
    unit_rows,
)


@torch.no_grad()
def query_lipschitz(
    mlp: GatedMLP, readouts: Float[Tensor, "n m"], radius: float
) -> Float[Tensor, " n"]:
    """Exact Lipschitz constants of q -> w . phi(q) on the ball |q| <= R, one for each row w.

    phi is quadratic, so that w . phi(q) = q^T S q with S the symmetric part of A^T diag(w) G,
    and the gradient is largest on the sphere, 2 R |S|_op. With w = phi(k_t) this is the kernel
    K(k_t, q); with w = B^T (v_i - v_j) it is the margin itself.

    Args:
        mlp: bilinear.
        readouts: w.
        radius: R >= 0, of a ball that holds all queries.

    Raises:
        ValueError: the gate is not the identity, or the radius is negative.

    Source: the L_k of Garcia et al., eq. 69.
    """
    check_bilinear(mlp)
    check_nonnegative(radius=radius)
    norms = []
    for w in readouts:
        S = mlp.A.T @ (w[:, None] * mlp.G)
        norms.append(torch.linalg.eigvalsh((S + S.T) / 2).abs().max())
    return 2 * radius * torch.stack(norms)


def score_lipschitz(memory: Memory, facts: FactSet) -> Float[Tensor, " F"]:
    """sigma_1 of the Jacobian of all scores, q -> V g(q / |q|), at every key.

    Their maximum is the measured Lipschitz constant of a memory inside a block: how fast answers
    change near the keys. It scales with the outputs; with :func:`lib.decoding.unit_outputs` it is
    that of the scores which a normalising block compares. With V = Q R the scores' Jacobian has
    the singular values of R times that of g, which is d_v x d.

    Args:
        memory: differentiable, and defined row by row.
        facts: no key is zero.

    Raises:
        ValueError: a key is zero, or the memory's output does not depend on its input by
            operations that can be differentiated.

    Source: Dugan et al., Section 5.3, eq. 8.
    """
    check_nonzero_rows("keys", facts.keys)
    if not memory(facts.keys[:1].clone().requires_grad_(True)).requires_grad:
        raise ValueError("memory must be differentiable; its output has no gradient")
    R = torch.linalg.qr(facts.values, mode="r")[1]

    def answer(q: Float[Tensor, " d"]) -> Float[Tensor, " d_v"]:
        return R @ memory(unit_rows(q[None]))[0]

    jacobian = torch.func.jacrev(answer)
    return torch.stack([torch.linalg.matrix_norm(jacobian(k), 2) for k in facts.keys]).detach()


@torch.no_grad()
def noisy_minimum_margin(
    memory: Memory, facts: FactSet, epsilon: float, *, generator: torch.Generator
) -> float:
    """Smallest margin when every key is moved by epsilon in a random direction of its own.

    Source: Garcia et al., Appendix A.4.2.
    """
    check_nonnegative(epsilon=epsilon)
    u = sphere(*facts.keys.shape, generator=generator).to(facts.keys)
    noisy = FactSet(facts.keys + epsilon * u, facts.values, facts.targets)
    return retrieve(memory, noisy).minimum_margin


@torch.no_grad()
def noisy_margin_floors(
    memory: Memory,
    facts: FactSet,
    lipschitz: Float[Tensor, " F"],
    epsilon: float,
    *,
    entries: int = BLOCK_ENTRIES,
) -> Float[Tensor, " F"]:
    """A lower bound on each margin of a Hebbian memory when queries are off by epsilon.

    Queries change the vote of fact t by at most L_t epsilon, and with it the margin against j by
    L_t epsilon |<v_f(i) - v_j, v_f(t)>|; the votes are added up.

    Args:
        memory: z -> sum_t v_f(t) K(k_t, z).
        lipschitz: L_t of K(k_t, .) on a set that holds clean and noisy queries.
        epsilon: largest norm of the noise, >= 0.

    Raises:
        ValueError: epsilon is negative.

    Source: Garcia et al., eq. 73, before its sum is bounded for isotropic values.
    """
    check_nonnegative(epsilon=epsilon)
    votes = facts.values @ (facts.answers * lipschitz[:, None]).T
    floors = []
    for rows, scores in score_blocks(memory, facts, entries=entries):
        targets = facts.targets[rows]
        gain = epsilon * torch.cdist(votes[targets], votes, p=1)  # the target's own is 0
        floors.append(score_margins(scores + gain, targets)[0])
    return torch.cat(floors)


def noisy_margin_bound(
    margin: float,
    lipschitz: float,
    epsilon: float,
    *,
    F: int,
    d: int,
    coherence: float,
) -> Bound:
    """gamma - 2 (1 + mu_v) L_k epsilon - 2 sqrt(2) L_k epsilon sqrt(F L / d).

    Args:
        margin: gamma_min of clean queries.
        lipschitz: L_k >= 0 of the kernel in the query.
        epsilon: largest norm of the noise, >= 0.
        F: number of facts, at least 2.
        d: dimension of the isotropic unit values.
        coherence: mu_v in [0, 1], the largest inner product of two values.

    Raises:
        ValueError: an argument is out of range.

    Source: Garcia et al., Theorem B.62, eq. 70.
    """
    check_nonnegative(epsilon=epsilon, lipschitz=lipschitz)
    check_count(2, F=F)
    check_count(d=d)
    if not 0 <= coherence <= 1:
        raise ValueError(f"coherence must be in [0, 1]; got {coherence}")
    L = float(log_factor(F))
    return Bound(
        {
            "clean": margin,
            "own and competitor": -2 * (1 + coherence) * lipschitz * epsilon,
            "others": -2 * math.sqrt(2 * F * L / d) * lipschitz * epsilon,
        },
        {"F L ≥ d": d <= F * L},
        False,
    )


def noise_tolerance(
    margin: float, lipschitz: float, *, F: int, d: int, constant: float = 1.0
) -> float:
    """gamma_min / (C_2 L_bil) sqrt(d / (F L)): less noise leaves every margin positive.

    Args:
        margin: gamma_min > 0.
        lipschitz: L_bil > 0.
        constant: C_2, which the source leaves open.

    Raises:
        ValueError: margin, lipschitz or constant is not positive.

    Source: Garcia et al., Corollary B.64, eq. 76.
    """
    check_positive(margin=margin, lipschitz=lipschitz, constant=constant)
    return margin / (constant * lipschitz) * math.sqrt(d / (F * log_factor(F)))
