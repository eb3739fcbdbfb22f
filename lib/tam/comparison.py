"""A learned memory beside the theory that predicts it, as numbers."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lib.facts import FactSet, gaussian_facts
from lib.linear.learning import Loss, learn
from lib.numerics import check_positive, generator, last_before
from lib.tam.functional import tail_size
from lib.tam.learning import Lists, learn_list, rank, ridge_coefficient
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
        margins = lists.margins.numpy() * theory.nu / lists.norm
        return {
            "facts": len(self.facts),
            "load": theory.alpha,
            "loss": lists.loss,
            "norm": lists.norm,
            "certified": lists.certified.double().mean().item(),
            "margins": theory.margins().distance(margins) / theory.nu,
            "percentiles": theory.percentiles().distance(lists.percentiles.numpy()),
            "distance": self.distance,
            "evaluations": self.evaluations,
        }


def predicted(F: int, d: int, r: float, *, ridge: float, beta: float) -> Saddle:
    """The saddle at the load F / d^2 and the tail fraction k / (F - 1) of so many facts.

    Raises:
        ValueError: an argument is out of its range, or every competitor is on the list.
    """
    k = tail_size(F - 1, r)
    if k == F - 1:
        raise ValueError(f"r must leave a competitor out of the list; {r} of {F} facts does not")
    return saddle(F / d**2, k / (F - 1), ridge=ridge, beta=beta)


def experiment(
    alpha: float,
    r: float,
    d: int,
    *stream: int,
    ridge: float,
    beta: float,
    tolerance: float = 1e-2,
) -> Experiment:
    """Draw round(alpha d^2) facts from a stream, learn them and solve the scalar equations.

    Learns on a GPU if there is one; what is returned is on the CPU.

    Raises:
        ValueError: an argument is out of its range, there are fewer than 3 facts, or every
            competitor is on the list.
        NotConverged: the solver missed its certificate.
    """
    check_positive(alpha=alpha)
    F = round(alpha * d * d)
    if F < 3:
        raise ValueError(f"alpha d^2 must be at least 3 facts; got {F}")
    theory = predicted(F, d, r, ridge=ridge, beta=beta)
    facts = gaussian_facts(F, d, generator=generator(*stream, d, F))
    there = facts.to(device="cuda" if torch.cuda.is_available() else "cpu")
    learned = learn_list(there, r, ridge=ridge, beta=beta, tolerance=tolerance)
    lists = rank(learned.W, there, r, beta=beta)
    return Experiment(facts, learned.W.cpu(), lists, theory, learned.distance, learned.iterations)


def crossing_number(stream: FactSet, loss: Loss, *, ridge: float, level: float) -> int:
    """How many facts of a stream can be learned with an average loss of at most the level.

    Bisection, as if the least loss grew with every fact. Every solution is certified to a relative
    distance of 1/10.

    Args:
        stream: facts in their order; fact i has value i.
        loss: of one query, for instance ``tail_average_loss(k, beta)``.
        ridge: lambda > 0.
        level: of the average loss, ridge excluded, > 0.

    Raises:
        ValueError: the level is not positive, the facts are not in order, or the loss of the
            whole stream is below the level.
    """
    check_positive(ridge=ridge, level=level)
    if not torch.equal(stream.targets, torch.arange(len(stream))):
        raise ValueError("stream must have value i for fact i")

    def average(F: int) -> float:
        facts = FactSet(stream.keys[:F], stream.values[:F], stream.targets[:F])
        coefficient = ridge_coefficient(facts, ridge)
        learned = learn(facts, loss, ridge=coefficient, tolerance=1e-1)
        return (learned.value - coefficient / 2 * (learned.W**2).sum().item()) / F

    if average(len(stream)) <= level:
        raise ValueError(f"stream must be longer: all {len(stream)} facts are learned to {level:g}")
    return last_before(3, len(stream), lambda F: average(F) <= level)
