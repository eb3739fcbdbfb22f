"""MLPs trained on their facts by gradient descent."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from lib.decoding import retrieve
from lib.facts import FactSet, gaussian
from lib.mlp import GATES, GatedMLP
from lib.numerics import check_choice, check_count

LOSSES = ("cross entropy", "squared")


@dataclass(frozen=True)
class Recipe:
    """Full-batch Adam with a learning rate that falls along half a cosine.

    Attributes:
        steps: number of updates.
        rate: first learning rate.
        final_rate: last learning rate.
        checked_every: steps between two looks at the smallest margin.
    """

    steps: int
    rate: float
    final_rate: float
    checked_every: int

    def __post_init__(self) -> None:
        if self.steps < 1 or self.checked_every < 1 or not 0 <= self.final_rate <= self.rate:
            raise ValueError(
                "steps and checked_every must be at least 1 and 0 <= final_rate <= rate; "
                f"got {self.steps}, {self.checked_every}, {self.final_rate}, {self.rate}"
            )


#: Garcia et al., Appendix A.1.1.
PUBLISHED = Recipe(steps=10_000, rate=1e-3, final_rate=1e-6, checked_every=100)

#: Ours: a seventh of the steps, and widths at least as small.
FAST = Recipe(steps=1500, rate=2e-2, final_rate=2e-5, checked_every=25)


def descent(
    weights: Iterable[Tensor], loss: Callable[[], Float[Tensor, ""]], recipe: Recipe
) -> Iterator[None]:
    """Train weights in place; hands over when the recipe wants them looked at, and at the end."""
    optimizer = torch.optim.Adam(weights, lr=recipe.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, recipe.steps, eta_min=recipe.final_rate
    )
    for step in tqdm(range(1, recipe.steps + 1), disable=None, leave=False, desc="training"):
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()
        schedule.step()
        if step % recipe.checked_every == 0 or step == recipe.steps:
            yield


def gradient_descent(
    facts: FactSet,
    width: int,
    *,
    generator: torch.Generator,
    gate: str = "identity",
    loss: str = "cross entropy",
    codes: Float[Tensor, "N d_v"] | None = None,
    recipe: Recipe = FAST,
    enough: float = math.inf,
    start: GatedMLP | None = None,
) -> GatedMLP:
    """Train an MLP to answer every key, and return the checkpoint with the largest minimum margin.

    The loss is the cross entropy of the scores <g(k_i), v_j>, or the squared distance of g(k_i)
    from the target's code. Weights start as N(0, 1/d) in A and G, and N(0, 1/m) in B.

    Args:
        facts: what to store.
        width: m >= 1.
        gate: of the MLP.
        loss: ``cross entropy`` or ``squared``.
        codes: c_j, one row per value, what the squared loss aims at; by default the values.
        recipe: how long, and at which rates.
        enough: training ends at the first checkpoint whose minimum margin exceeds this.
        start: weights to begin from instead of random ones, of this width and gate.

    Returns:
        A frozen MLP in the dtype of the facts.

    Raises:
        ValueError: width, gate, loss or codes is not allowed, or start has another width or gate.

    Source: Garcia et al., Appendix A.1.1.
    """
    check_count(width=width)
    check_choice("gate", gate, GATES)
    check_choice("loss", loss, LOSSES)
    if codes is not None and (loss != "squared" or codes.shape != facts.values.shape):
        raise ValueError(
            f"codes must be {tuple(facts.values.shape)}, as values, with the squared loss; "
            f"got {tuple(codes.shape)} and {loss!r}"
        )
    aims = (facts.values if codes is None else codes)[facts.targets]
    mlp = _initial(facts, width, gate, generator) if start is None else _copy(start, width, gate)

    def value() -> Tensor:
        outputs = mlp(facts.keys)
        if loss == "squared":
            return (outputs - aims).square().sum(1).mean()
        return nn.functional.cross_entropy(outputs @ facts.values.T, facts.targets)

    best, largest = _weights(mlp), -math.inf
    for _ in descent(mlp.parameters(), value, recipe):
        margin = retrieve(mlp, facts).minimum_margin
        if margin > largest:
            best, largest = _weights(mlp), margin
        if margin > enough:
            break
    return GatedMLP(*best, gate).requires_grad_(False)


def _initial(facts: FactSet, width: int, gate: str, generator: torch.Generator) -> GatedMLP:
    d, d_v = facts.keys.shape[1], facts.values.shape[1]
    sizes = ((width, d), (width, d), (d_v, width))
    A, G, B = (gaussian(n, k, generator=generator).to(facts.keys) for n, k in sizes)
    return GatedMLP(A, G, B, gate)


def _copy(start: GatedMLP, width: int, gate: str) -> GatedMLP:
    if (start.width, start.gate) != (width, gate):
        raise ValueError(
            f"start must have width {width} and gate {gate!r}; got {start.width}, {start.gate!r}"
        )
    return GatedMLP(*_weights(start), gate)


def _weights(mlp: GatedMLP) -> list[Tensor]:
    return [weight.detach().clone() for weight in (mlp.A, mlp.G, mlp.B)]
