"""Kernel matrices of rank m whose columns have as little energy as rank allows."""

import math

import torch
from jaxtyping import Float
from scipy.linalg import circulant
from torch import Tensor


def harmonic_gram(F: int, m: int, *, generator: torch.Generator) -> Float[Tensor, "F F"]:
    """Gram matrix of F unit vectors in R^m that form a tight frame: m / F times it is a projector.

    Cosines and sines of m / 2 distinct frequencies, drawn from those below F / 2.

    Args:
        F: number of vectors.
        m: even, at least 2, below F - 1.

    Raises:
        ValueError: m is odd or out of range.
    """
    if m % 2 or not 2 <= m <= 2 * ((F - 1) // 2):
        raise ValueError(f"m must be even, in [2, {2 * ((F - 1) // 2)}]; got {m}")
    frequencies = torch.randperm((F - 1) // 2, generator=generator)[: m // 2] + 1
    steps = torch.arange(F)
    turns = (frequencies[:, None] * steps % F).double() / F
    row = torch.cos(2 * math.pi * turns).mean(0)
    return torch.from_numpy(circulant(row.numpy()))


def paley_gram(q: int) -> Float[Tensor, "F F"]:
    """Gram matrix of F = q + 1 equiangular unit vectors in R^(F/2), inner products +-1/sqrt(q).

    Paley's symmetric conference matrix S, S^2 = q I, over the squares modulo q; I + S / sqrt(q)
    has the eigenvalues 0 and 2.

    Args:
        q: a prime that leaves 1 when divided by 4.

    Raises:
        ValueError: q is no such prime.
    """
    prime = q > 2 and all(q % p for p in range(2, math.isqrt(q) + 1))
    if not prime or q % 4 != 1:
        raise ValueError(f"q must be a prime that leaves 1 when divided by 4; got {q}")
    character = -torch.ones(q, dtype=torch.float64)
    character[torch.arange(1, q) ** 2 % q] = 1
    character[0] = 0
    conference = torch.ones(q + 1, q + 1, dtype=torch.float64)
    conference[1:, 1:] = torch.from_numpy(circulant(character.numpy()))
    conference[0, 0] = 0
    return torch.eye(q + 1, dtype=torch.float64) + conference / math.sqrt(q)
