"""Decoding: what a memory answers, and by which margin.

A memory is any function g from a batch of keys (b, d) to a batch of outputs (b, d_v). It answers
key k with the value whose embedding has the largest inner product with g(k). Scores are formed
in blocks of facts, never all at once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lib.facts import FactSet
from lib.numerics import BLOCK_ENTRIES, row_blocks, unit_rows

#: Scores formed before the first look at whether a fact is lost.
EARLY_ENTRIES = 2**20

Memory = Callable[[Float[Tensor, "b d"]], Float[Tensor, "b d_v"]]


@dataclass(frozen=True, eq=False)
class Retrieval:
    """Every fact's target against its hardest competitor.

    Attributes:
        targets: f(i).
        competitors: the j != f(i) with the largest score (the first one, when several tie).
        margins: gamma_i = min_{j != f(i)} <g(k_i), v_f(i) - v_j>.

    Source: Garcia et al., Definitions 2.1 and 2.2.
    """

    targets: Int[Tensor, " F"]
    competitors: Int[Tensor, " F"]
    margins: Float[Tensor, " F"]

    @property
    def predictions(self) -> Int[Tensor, " F"]:
        """The answer given to each key; a tie goes to the competitor."""
        return torch.where(self.stored, self.targets, self.competitors)

    @property
    def stored(self) -> Bool[Tensor, " F"]:
        """Which facts win strictly against every competitor."""
        return self.margins > 0

    @property
    def accuracy(self) -> float:
        """Fraction of facts that are stored, in [0, 1]."""
        return self.stored.double().mean().item()

    @property
    def minimum_margin(self) -> float:
        """gamma_min; the fact set is stored exactly when it is positive."""
        return self.margins.min().item()


@torch.no_grad()
def retrieve(memory: Memory, facts: FactSet, *, entries: int = BLOCK_ENTRIES) -> Retrieval:
    """Query a memory with every stored key.

    Args:
        memory: g.
        facts: keys, values and targets.
        entries: bound on the number of scores held at once.

    Raises:
        ValueError: an output has the wrong shape, or scores are not finite.
    """
    margins, competitors = [], []
    for rows, scores in score_blocks(memory, facts, entries=entries):
        margin, competitor = score_margins(scores, facts.targets[rows])
        margins.append(margin)
        competitors.append(competitor)
    return Retrieval(facts.targets, torch.cat(competitors), torch.cat(margins))


@torch.no_grad()
def stores_all(memory: Memory, facts: FactSet) -> bool:
    """Whether every margin is positive; ends at the first block of facts in which one is not.

    Raises:
        ValueError: as :func:`retrieve`.
    """
    return all(
        (score_margins(scores, facts.targets[rows])[0] > 0).all()
        for rows, scores in score_blocks(memory, facts, entries=EARLY_ENTRIES)
    )


def score_margins(
    scores: Float[Tensor, "b N"], targets: Int[Tensor, " b"]
) -> tuple[Float[Tensor, " b"], Int[Tensor, " b"]]:
    """By how much each target's score exceeds the largest other one, and whose that is."""
    target = targets[:, None]
    competitor_score, competitor = scores.scatter(1, target, -torch.inf).max(1)
    return scores.gather(1, target).squeeze(1) - competitor_score, competitor


@torch.no_grad()
def output_radii(memory: Memory, facts: FactSet) -> Float[Tensor, " F"]:
    """How far each output may move and still decode right, min_j gamma_ij / |v_f(i) - v_j|.

    For a stored fact this is the distance to the nearest decision boundary; for others it is not
    positive.

    Raises:
        ValueError: as :func:`retrieve`, or a value equals a fact's target value.
    """
    radii = []
    for rows, scores in score_blocks(memory, facts):
        target = facts.targets[rows, None]
        gaps = scores.gather(1, target) - scores
        distances = torch.cdist(
            facts.answers[rows], facts.values, compute_mode="donot_use_mm_for_euclid_dist"
        )
        distances.scatter_(1, target, torch.inf)
        if (distances == 0).any():
            i, j = (distances == 0).nonzero()[0].tolist()
            raise ValueError(
                f"values must be distinct; value {j} equals the target of fact {rows.start + i}"
            )
        radii.append((gaps / distances).scatter(1, target, torch.inf).amin(1))
    return torch.cat(radii)


def unit_outputs(memory: Memory) -> Memory:
    """The memory with outputs scaled to unit norm, as the normalisation of a Transformer does.

    Which facts are stored stays the same; margins become comparable between memories whose
    outputs have different sizes. A zero output stays zero.
    """
    return lambda keys: unit_rows(memory(keys))


def score_blocks(
    memory: Memory, facts: FactSet, *, entries: int = BLOCK_ENTRIES
) -> Iterator[tuple[slice, Float[Tensor, "b N"]]]:
    """Scores s_ij = <g(k_i), v_j> for consecutive slices of facts; equal values score the same.

    Raises:
        ValueError: an output has the wrong shape, or scores are not finite.
    """
    d_v = facts.values.shape[1]
    values, copies = facts.distinct_values
    for rows in row_blocks(len(facts), len(facts.values), entries=entries):
        outputs = memory(facts.keys[rows])
        if outputs.shape != (rows.stop - rows.start, d_v):
            raise ValueError(
                f"memory must return shape {(rows.stop - rows.start, d_v)} for keys of shape "
                f"{tuple(facts.keys[rows].shape)}; got {tuple(outputs.shape)}"
            )
        scores = outputs @ values.T
        if not (finite := scores.isfinite().all(1)).all():
            i = rows.start + int((~finite).nonzero()[0])
            raise ValueError(f"memory must return finite outputs; those of fact {i} are not")
        yield rows, scores if copies is None else scores[:, copies]
