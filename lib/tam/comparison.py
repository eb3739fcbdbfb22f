"""A learned memory beside the theory that predicts it, as numbers."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from lib.facts import FactSet, gaussian_facts
from lib.numerics import generator
from lib.tam.functional import tail_size
from lib.tam.learning import Lists, learn_list, rank
from lib.tam.phases import check_positive
from lib.tam.scalar import Saddle, saddle


@dataclass(frozen=True)
class Experiment:
    """One memory, learned from Gaussian facts, and the saddle at the same load and tail.

    Attributes:
        facts, W: what was stored, and the memory.
        lists: how it ranks the right values.
        theory: the saddle at load F / d^2 and tail fraction k / (F - 1), as they are after
            rounding to whole facts.
        distance: certified bound on |W - W*|_F / |W|_F.
        evaluations: what the solver needed.
    """

    facts: FactSet
    W: Float[Tensor, "d d"]
    lists: Lists
    theory: Saddle
    distance: float
    evaluations: int

    def row(self) -> dict[str, int | float]:
        """Order parameters and distances between laws, for a table.

        Margins are compared on the scale of the norm, where they stay finite as the ridge
        vanishes.
        """
        lists, theory = self.lists, self.theory
        margins = lists.margins.cpu().numpy() * theory.nu / lists.norm
        return {
            "facts": len(self.facts),
            "load": theory.alpha,
            "loss": lists.loss,
            "norm": lists.norm,
            "certified": lists.certified.double().mean().item(),
            "margins": theory.margins().distance(margins) / theory.nu,
            "percentiles": theory.percentiles().distance(lists.percentiles.cpu().numpy()),
            "distance": self.distance,
            "evaluations": self.evaluations,
        }


def experiment(
    alpha: float,
    r: float,
    d: int,
    *stream: int,
    ridge: float,
    beta: float,
    tolerance: float = 1e-2,
    device: str = "cpu",
) -> Experiment:
    """Draw round(alpha d^2) facts from a stream, learn them and solve the scalar equations.

    Raises:
        ValueError: an argument is out of its range, or there are fewer than 3 facts.
        NotConverged: the solver missed its certificate.
    """
    check_positive("alpha", alpha)
    F = round(alpha * d * d)
    if F < 3:
        raise ValueError(f"alpha d^2 must be at least 3 facts; got {F}")
    k = tail_size(F - 1, r)
    theory = saddle(F / d**2, k / (F - 1), ridge=ridge, beta=beta)
    facts = gaussian_facts(F, d, generator=generator(*stream, d, F)).to(device=device)
    learned = learn_list(facts, r, ridge=ridge, beta=beta, tolerance=tolerance)
    lists = rank(learned.W, facts, r, beta=beta)
    return Experiment(facts, learned.W, lists, theory, learned.distance, learned.iterations)
