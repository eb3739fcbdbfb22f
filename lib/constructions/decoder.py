"""Decoders: codes of a few numbers, and one linear map that turns them into decodable outputs."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lib.constructions.gradient import Recipe, descent
from lib.decoding import stores_all
from lib.facts import FactSet, check_embeddings
from lib.numerics import check_count


@dataclass(frozen=True, eq=False)
class Code:
    """A code for every value, and the decoder D: value i decodes from D c_i.

    Attributes:
        codes: c_i, one row per value.
        D: decoder.

    Source: Dugan et al., Section 4.2.
    """

    codes: Float[Tensor, "N m"]
    D: Float[Tensor, "d m"]

    def decodes(self, values: Float[Tensor, "N d"]) -> bool:
        """Whether <D c_i, v_i> > <D c_i, v_j> for all i and all j other than i (eq. 7)."""
        if len(self.codes.unique(dim=0)) < len(self.codes):
            return False
        table = FactSet(self.codes, values, torch.arange(len(values)))
        return stores_all(lambda c: c @ self.D.T, table)


def johnson_lindenstrauss(
    outputs: Float[Tensor, "N d"], m: int, *, generator: torch.Generator
) -> Code:
    """Random Gaussian decoder, D_ab ~ N(0, 1/m), and codes c_i = D^T u_i.

    <D c_i, w> = <D^T u_i, D^T w> is near <u_i, w> for all the fixed directions w = v_i - v_j at
    once as soon as m is a multiple of rho^-2 log N.

    Args:
        outputs: u_i, the margin-optimal ones, :func:`lib.decodability.decodability`.
        m: entries of a code, at least 1.

    Raises:
        ValueError: outputs are not finite, or m is out of range.

    Source: Dugan et al., Algorithm 4.
    """
    check_count(m=m)
    normal = torch.randn(outputs.shape[1], m, dtype=torch.float64, generator=generator)
    return random_code(outputs, normal.to(outputs))


def random_code(outputs: Float[Tensor, "N d"], normal: Float[Tensor, "d m"]) -> Code:
    """The code of :func:`johnson_lindenstrauss` from a matrix of standard normal entries."""
    check_embeddings("outputs", outputs)
    D = normal / normal.shape[1] ** 0.5
    return Code(outputs @ D, D)


#: Dugan et al., A.1.3; how often we look whether all values decode is ours.
RECIPE = Recipe(steps=1000, rate=1.0, final_rate=0.01, checked_every=10)


def trained_code(
    values: Float[Tensor, "N d"], m: int, *, generator: torch.Generator, recipe: Recipe = RECIPE
) -> Code:
    """Codes and decoder by gradient descent on the cross entropy of the scores <D c_i, v_j>.

    Both start with standard normal entries. Training ends as soon as every value decodes; if that
    does not happen, the last code is returned, and :meth:`Code.decodes` says so.

    Args:
        values: V.
        m: entries of a code, at least 1.
        recipe: how long, and at which rates.

    Raises:
        ValueError: values are not finite, or m is out of range.

    Source: Dugan et al., Section 4.2, Appendix A.1.3.
    """
    check_embeddings("values", values)
    check_count(m=m)
    N, d = values.shape

    def draw(rows: int) -> Tensor:
        normal = torch.randn(rows, m, dtype=torch.float64, generator=generator)
        return normal.to(values).requires_grad_(True)

    codes, D = draw(N), draw(d)
    targets = torch.arange(N)

    def loss() -> Tensor:
        return nn.functional.cross_entropy(codes @ (values @ D).T, targets)

    for _ in descent([codes, D], loss, recipe):
        code = Code(codes.detach().clone(), D.detach().clone())
        if code.decodes(values):
            break
    return code
