"""Synthetic sequential factual recall: a key among junk, to be answered with its value.

A sequence is junk, a key, more junk, and at the end a query token, or none; the model answers at
the last position. Tokens are numbered keys first, then junk, then the query.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lib.facts import FactSet, check_embeddings, sphere
from lib.numerics import check_count


@dataclass(frozen=True, eq=False)
class RecallTask:
    """What is recalled, and among which distractors.

    Attributes:
        facts: keys, values and the map between them; every key is a token.
        junk: embeddings of the junk tokens.
        query: embedding of the query token that ends a sequence, or None for sequences that end
            in junk.
        prefix, suffix: smallest and largest number of junk tokens before and after the key; each
            sequence draws its own.

    Raises:
        ValueError: embeddings disagree in dimension or dtype, or lengths are not ordered; without
            a query the suffix must not be empty.

    Source: Garcia et al., Definition 3.2, with a query token; Dugan et al., Section 5.1, without.
    """

    facts: FactSet
    junk: Float[Tensor, "V_J d"]
    query: Float[Tensor, " d"] | None
    prefix: tuple[int, int]
    suffix: tuple[int, int]

    def __post_init__(self) -> None:
        tables = {"junk": self.junk}
        if self.query is not None:
            tables["query"] = self.query[None]
        for name, table in tables.items():
            check_embeddings(name, table)
            if table.shape[1] != self.facts.keys.shape[1] or table.dtype != self.facts.keys.dtype:
                raise ValueError(
                    f"{name} must have {self.facts.keys.shape[1]} columns of "
                    f"{self.facts.keys.dtype}, as keys; got {table.shape[1]} of {table.dtype}"
                )
        for name, (low, high) in (("prefix", self.prefix), ("suffix", self.suffix)):
            if not 0 <= low <= high:
                raise ValueError(f"{name} must be 0 <= low <= high; got {low}, {high}")
        if self.query is None and self.suffix[0] < 1:
            raise ValueError("without a query, suffix must be at least 1; got 0")

    @property
    def embeddings(self) -> Float[Tensor, "vocabulary d"]:
        """Input embeddings of all tokens: keys, junk, query."""
        parts = [self.facts.keys, self.junk]
        return torch.cat(parts if self.query is None else [*parts, self.query[None]])

    def with_facts(self, facts: FactSet) -> "RecallTask":
        """The same task about other facts."""
        return replace(self, facts=facts)


@dataclass(frozen=True, eq=False)
class Sequences:
    """A batch of sequences, filled up in front to one length.

    Attributes:
        tokens: numbers of the tokens.
        present: which of them are there, and not filling; the last always is.
        keys: the fact that is asked for.
    """

    tokens: Int[Tensor, "b n"]
    present: Bool[Tensor, "b n"]
    keys: Int[Tensor, " b"]


def recall_task(
    facts: FactSet,
    *,
    junk_tokens: int = 9,
    prefix: tuple[int, int] = (9, 9),
    suffix: tuple[int, int] = (9, 9),
    with_query: bool = True,
    generator: torch.Generator,
) -> RecallTask:
    """A task with junk and query tokens drawn from the unit sphere.

    Args:
        facts: what is recalled.
        junk_tokens: V_J >= 1.
        prefix, suffix: lengths, as in :class:`RecallTask`.
        with_query: whether sequences end in a query token.
        generator: on the CPU; not one that has drawn the keys from the same seed.

    Source: Garcia et al., Appendix A.2.1, whose lengths and vocabulary are the defaults.
    """
    check_count(junk_tokens=junk_tokens)
    extra = sphere(junk_tokens + 1, facts.keys.shape[1], generator=generator)
    extra = extra.to(facts.keys)
    return RecallTask(facts, extra[1:], extra[0] if with_query else None, prefix, suffix)


def draw_sequences(
    task: RecallTask, keys: Int[Tensor, " b"], *, generator: torch.Generator
) -> Sequences:
    """One sequence for each given key, with junk drawn uniformly and lengths likewise.

    Args:
        task: what is recalled.
        keys: numbers of the facts.
        generator: on the CPU.

    Raises:
        ValueError: a number is not that of a fact.
    """
    b, F = len(keys), len(task.facts)
    if ((keys < 0) | (keys >= F)).any():
        raise ValueError(f"keys must be in 0..{F - 1}; got {keys.min()} to {keys.max()}")
    before = _lengths(task.prefix, b, generator)
    after = _lengths(task.suffix, b, generator)
    n = task.prefix[1] + 1 + task.suffix[1]
    tokens = F + torch.randint(len(task.junk), (b, n), generator=generator)
    column = n - 1 - after  # of the key
    tokens[torch.arange(b), column] = keys.cpu()
    present = torch.arange(n) >= (column - before)[:, None]
    if task.query is not None:
        tokens = torch.cat([tokens, torch.full((b, 1), F + len(task.junk))], 1)
        present = torch.cat([present, torch.ones(b, 1, dtype=torch.bool)], 1)
    device = task.facts.keys.device
    return Sequences(tokens.to(device), present.to(device), keys.to(device))


def _lengths(limits: tuple[int, int], b: int, generator: torch.Generator) -> Tensor:
    return torch.randint(limits[0], limits[1] + 1, (b,), generator=generator)
