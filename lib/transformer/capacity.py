"""What a block learns around a fact MLP, and the smallest MLP with which it recalls facts."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from lib import capacity
from lib.capacity import embedded_facts, nested_normal, smallest_width
from lib.constructions.decoder import random_code
from lib.constructions.encoder import hidden_size
from lib.constructions.encoder_decoder import (
    exact_parameters,
    margin_optimal,
    with_exact_encoder,
)
from lib.constructions.gradient import Recipe, gradient_descent
from lib.decodability import (
    Decodability,
    decodability,
    fold_whitening,
    whitened,
    whitening,
)
from lib.decoding import Memory, retrieve, unit_outputs
from lib.facts import FactSet, bijection, gaussian, ill_condition, other_facts
from lib.mlp import GatedMLP
from lib.noisy_queries import score_lipschitz
from lib.numerics import check_choice, check_count, generator, unit_rows
from lib.transformer.block import RecallBlock
from lib.transformer.recall import RecallTask, recall_task
from lib.transformer.training import Plan, key_accuracies, train

#: Random streams of an insertion: the other facts, both memories, initial weights, the training
#: run, and both measurements.
OTHER, FIRST, SECOND, WEIGHTS, STEPS, TRAINING, ADAPTIVE = range(7)

#: Random stream of an encoder, within that of its memory.
CODED = 0

#: Contexts of every key in a measurement.
CONTEXTS = 4

#: Ours: the accuracy changes little after half of these steps.
PLAN = Plan(steps=200, batch=512, rate=3e-3, checked_every=200)

#: Trained MLPs that are to be asked imprecisely: as long as it takes to store, then on for margins.
RECIPE = Recipe(steps=500, rate=2e-2, final_rate=2e-5, checked_every=25)


@dataclass(frozen=True)
class Insertion:
    """Shares of right answers of a block that was trained around a memory.

    Attributes:
        training: about the facts of the training, with their memory.
        adaptive: about facts that were never seen, with a memory of those in its place.
        block: the trained block, with its first memory.
        other: the facts that were never seen.
        exchanged: the block with the memory of those.
    """

    training: float
    adaptive: float
    block: RecallBlock
    other: FactSet
    exchanged: RecallBlock


def insert(
    task: RecallTask,
    construct: Callable[[FactSet, tuple[int, ...]], Memory],
    *,
    stream: tuple[int, ...],
    plan: Plan = PLAN,
    make_block: Callable[..., RecallBlock] = RecallBlock,
) -> Insertion:
    """Train a block around a frozen memory of a task's facts; then exchange memory and facts.

    The other facts have the same keys and values, and share no pair with those of the training.

    Args:
        task: its facts need distinct targets.
        construct: (facts, stream) -> memory.
        stream: names the random numbers.
        plan: of the training.
        make_block: (task, memory, generator) -> block.

    Source: Garcia et al., Appendices A.1.2 ("inserted MLP") and A.4.3; Dugan et al., Section 5.1.
    """
    other = other_facts(task.facts, generator=generator(*stream, OTHER))
    block = make_block(
        task, construct(task.facts, (*stream, FIRST)), generator=generator(*stream, WEIGHTS)
    )
    train(block, task, plan, stream=(*stream, STEPS))
    exchanged = block.with_mlp(construct(other, (*stream, SECOND)), other)

    def accuracy(block: RecallBlock, task: RecallTask, name: int) -> float:
        g = generator(*stream, name)
        return key_accuracies(block, task, contexts=CONTEXTS, generator=g).mean().item()

    return Insertion(
        accuracy(block, task, TRAINING),
        accuracy(exchanged, task.with_facts(other), ADAPTIVE),
        block,
        other,
        exchanged,
    )


def _encoder_decoder(
    facts: FactSet, width: int, stream: tuple[int, ...], optimal: Decodability | None = None
) -> GatedMLP:
    F, d = facts.keys.shape
    m = max(1, width // hidden_size(F, d))
    normal, _ = nested_normal(m, facts.values.shape[1], *stream)
    code = random_code(margin_optimal(facts, optimal).values, normal.T.contiguous())
    return with_exact_encoder(facts, code, generator=generator(*stream, CODED)).folded()


#: Those of :mod:`lib.capacity`, and the encoder-decoder: (facts, width, stream) -> MLP, and c of
#: its width c F log F / d, roughly, where searches begin.
CONSTRUCTIONS = capacity.CONSTRUCTIONS | {"encoder-decoder": (_encoder_decoder, 6.0)}


def constructor(
    construction: str, width: int, *, optimal: Decodability | None = None
) -> Callable[[FactSet, tuple[int, ...]], GatedMLP]:
    """(facts, stream) -> MLP of a width, by one of :data:`CONSTRUCTIONS`.

    The encoder-decoder, folded into one MLP, has 1.1 F / d hidden units for every entry of its
    random code, and as many entries as the width allows; whether the code decodes is left open.

    Closed forms compute in float64. Gradient descent goes on after all facts are stored, since
    inside a block margins count.

    Args:
        construction: a key of :data:`CONSTRUCTIONS`.
        width: m >= 1.
        optimal: the decodability of the values, if it is known; for the encoder-decoder.

    Raises:
        ValueError: the construction is unknown, or the width below 1.
    """
    check_choice("construction", construction, CONSTRUCTIONS)
    check_count(width=width)
    closed_form, _ = CONSTRUCTIONS[construction]
    if construction == "encoder-decoder":
        closed_form = partial(_encoder_decoder, optimal=optimal)

    def construct(facts: FactSet, stream: tuple[int, ...]) -> GatedMLP:
        if construction == "gradient descent":
            g = generator(*stream, width)
            return gradient_descent(facts, width, generator=g, recipe=RECIPE)
        return closed_form(facts.to(dtype=torch.float64), width, stream).to(facts.keys.dtype)

    return construct


#: The share of right answers that is enough (Dugan et al., Section 5.1).
ENOUGH = 0.99

#: Whose answers have to be right: the MLP's by itself, or those of a block that was trained around
#: such an MLP, about facts it has never seen.
CRITERIA = ("alone", "adaptive")

#: Names of the entries of a point of a capacity sweep.
CAPACITY_POINT = ("construction", "criterion", "d", "F", "seed", "largest")


def block_capacity(
    construction: str, criterion: str, d: int, F: int, seed: int, largest: int
) -> dict[str, int | float]:
    """The smallest width that is enough, and its number of weights; NaN if none is found.

    Args:
        construction: a key of :data:`CONSTRUCTIONS`.
        criterion: one of :data:`CRITERIA`.
        d, F: dimension of untied isotropic keys and values, and their number.
        seed: names facts, tokens and weights.
        largest: the last width that is tried.

    Raises:
        ValueError: construction or criterion is unknown, or the embeddings are not possible.

    Source: Garcia et al., Appendix A.4.3, with :func:`lib.capacity.smallest_width` for the binary
    search.
    """
    check_choice("criterion", criterion, CRITERIA)
    constructor(construction, 1)
    task, stream = random_task(d, F, seed)
    encoded = construction == "encoder-decoder"
    optimal = decodability(task.facts.values) if encoded else None  # for every width the same

    def enough(width: int) -> bool:
        construct = constructor(construction, width, optimal=optimal)
        if criterion == "alone":
            memory = construct(task.facts, (*stream, FIRST))
            return retrieve(memory, task.facts).accuracy >= ENOUGH
        return insert(task, construct, stream=stream).adaptive >= ENOUGH

    unit = hidden_size(F, d) if encoded else 1  # hidden units come in gadgets of this size
    guess = round(CONSTRUCTIONS[construction][1] * F * math.log(F) / d / unit)
    count = smallest_width(
        lambda n: enough(n * unit), guess=max(1, guess), largest=max(largest // unit, 4)
    )
    if count is None:
        return {"width": math.nan, "parameters": math.nan}
    parameters = exact_parameters(count, F, d, d) if encoded else 3 * d * count
    return {"width": count * unit, "parameters": parameters}


#: Names of the entries of a point of an ablation.
ABLATION_POINT = ("construction", "residual", "free_values", "d", "F", "width", "seed")

#: Free projections have to find the identity first, or their own way: longer, until that is done.
LONG_PLAN = Plan(steps=2000, batch=512, rate=3e-3, checked_every=50, enough=ENOUGH)


def ablated(
    construction: str,
    residual: bool,
    free_values: bool,
    d: int,
    F: int,
    width: int,
    seed: int,
) -> dict[str, float]:
    """What an MLP stores alone, and what blocks with and without two liberties make of it.

    Args:
        construction, d, F, seed: as in :func:`block_capacity`.
        residual, free_values: of :class:`lib.transformer.block.RecallBlock`.
        width: m >= 1.

    Source: Garcia et al., Appendix A.4.3.
    """
    task, stream = random_task(d, F, seed)
    construct = constructor(construction, width)
    found = insert(
        task,
        construct,
        stream=stream,
        plan=LONG_PLAN,
        make_block=partial(RecallBlock, residual=residual, free_values=free_values),
    )
    alone = retrieve(found.block.mlp, task.facts).accuracy
    return {"alone": alone, "training": found.training, "adaptive": found.adaptive}


#: Names of the entries of a point of a whitening sweep.
WHITENING_POINT = ("condition", "strength", "d", "F", "width", "seed")

#: Ill-conditioned embeddings are learned more slowly.
WHITENING_PLAN = Plan(steps=600, batch=512, rate=3e-3, checked_every=600)


def whitened_usability(
    condition: float, strength: float, d: int, F: int, width: int, seed: int
) -> dict[str, float]:
    """Capacity and usability of MLPs that were trained on values whitened to some degree.

    Keys and values are ill-conditioned Gaussians; keys are then normalised, as a block does. The
    MLP is trained for values V W of unit mean norm, and W is folded into its last layer.

    Args:
        condition: of keys and of values, at least 1.
        strength: of the whitening, in [0, 1].
        d, F: dimension and number of facts.
        width: m >= 1.
        seed: names embeddings, facts, tokens and weights.

    Returns:
        The share ``stored`` of facts that were never seen, by the MLP made for them; the share
        ``adaptive`` of right answers of the block about them; and the measured Lipschitz constant
        of the scores, of raw and of unit outputs.

    Source: Dugan et al., Sections 5.2 and 5.3, Appendices A.2.4 and A.2.5.
    """
    keys, values = (
        ill_condition(gaussian(F, d, generator=generator(seed, d, F, name)), condition)
        for name in range(2)
    )
    W = whitening(values, strength)
    W = (W / (values @ W).norm(dim=1).mean()).float()
    targets = bijection(F, generator=generator(seed, d, F, 2))
    facts = FactSet(unit_rows(keys).float(), values.float(), targets)
    task = recall_task(facts, generator=generator(seed, d, F, 3))
    on_whitened = constructor("gradient descent", width)

    def construct(facts: FactSet, stream: tuple[int, ...]) -> GatedMLP:
        return fold_whitening(on_whitened(whitened(facts, W), stream), W)

    found = insert(task, construct, stream=(seed, d, F, 4), plan=WHITENING_PLAN)
    memory = found.exchanged.mlp
    return {
        "stored": retrieve(memory, found.other).accuracy,
        "adaptive": found.adaptive,
        "Lipschitz": score_lipschitz(memory, found.other).max().item(),
        "unit Lipschitz": score_lipschitz(unit_outputs(memory), found.other).max().item(),
    }


def random_task(d: int, F: int, seed: int) -> tuple[RecallTask, tuple[int, ...]]:
    """A task about untied isotropic facts, in single precision, and a stream for what follows."""
    facts = embedded_facts("isotropic", d, F, seed, d, F, 0).to(dtype=torch.float32)
    return recall_task(facts, generator=generator(seed, d, F, 1)), (seed, d, F, 2)
