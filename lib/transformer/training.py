"""Training a recall block, and what it has learned: accuracy, and the noise of its queries."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from lib.decoding import score_margins
from lib.facts import FactSet
from lib.files import replacing
from lib.numerics import check_count, generator
from lib.transformer.block import RecallBlock
from lib.transformer.recall import RecallTask, Sequences, draw_sequences, recall_task

#: Random streams of a training run: batches, and the evaluations on the way.
BATCHES, CHECKS = 0, 1

#: Random streams of a pretraining: junk tokens, initial weights, and the training run.
JUNK, WEIGHTS, STEPS = 0, 1, 2


@dataclass(frozen=True)
class Plan:
    """How a block is trained.

    Attributes:
        steps: updates of AdamW.
        batch: sequences in each.
        rate: learning rate, constant.
        weight_decay: of AdamW.
        checked_every: steps between two measurements of the accuracy.
        enough: training ends when a measured accuracy is at least this.
    """

    steps: int
    batch: int
    rate: float
    weight_decay: float = 0.1
    checked_every: int = 100
    enough: float = math.inf

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.checked_every) < 1 or not self.rate > 0:
            raise ValueError(
                "steps, batch and checked_every must be at least 1 and rate positive; "
                f"got {self.steps}, {self.batch}, {self.checked_every}, {self.rate}"
            )


#: Garcia et al., Appendix A.1.2.
PUBLISHED = Plan(steps=4000, batch=1280, rate=2e-4)

#: Ours, for a laptop.
FAST = Plan(steps=800, batch=512, rate=3e-3)


@dataclass(frozen=True)
class History:
    """Loss of every step, and accuracy at the steps where it was measured."""

    losses: tuple[float, ...]
    accuracies: tuple[tuple[int, float], ...]


def train(
    block: RecallBlock,
    task: RecallTask,
    plan: Plan = FAST,
    *,
    stream: tuple[int, ...],
    checkpoint: Path | None = None,
) -> History:
    """Train a block on a task, in place.

    Every step draws its own sequences, from a random stream of its own, so that a run which was
    interrupted and continued from its checkpoint is the same as one that was not.

    Args:
        block: whose free parameters are trained.
        task: sequences and answers.
        plan: how.
        stream: names the random numbers.
        checkpoint: a file that is written whenever the accuracy is measured; if it is there
            already, training goes on from it.

    Raises:
        ValueError: the checkpoint belongs to another block, task, plan or stream.
    """

    def loss(g: torch.Generator) -> Tensor:
        keys = torch.randint(len(task.facts), (plan.batch,), generator=g)
        scores = block(draw_sequences(task, keys, generator=g))
        return nn.functional.cross_entropy(scores, task.facts.targets[keys])

    def accuracy(g: torch.Generator) -> float:
        return key_accuracies(block, task, generator=g).mean().item()

    tables = (block.embeddings, block.values)
    return descend(block, plan, loss, accuracy, stream=stream, tables=tables, checkpoint=checkpoint)


def descend(
    model: nn.Module,
    plan: Plan,
    loss: Callable[[torch.Generator], Float[Tensor, ""]],
    accuracy: Callable[[torch.Generator], float],
    *,
    stream: tuple[int, ...],
    tables: Iterable[Tensor],
    checkpoint: Path | None = None,
) -> History:
    """Steps of AdamW as planned, in place, continued from the checkpoint if there is one.

    Args:
        model: whose free parameters are trained.
        plan: how.
        loss, accuracy: of a step, which draw from its own generator and nowhere else.
        stream, checkpoint: as in :func:`train`.
        tables: what a checkpoint belongs to, besides plan, stream and shapes of the weights.

    Raises:
        ValueError: the checkpoint belongs to another run.
    """
    free = [p for p in model.parameters() if p.requires_grad]
    run = _fingerprint(plan, stream, model.parameters(), tables)
    optimizer = torch.optim.AdamW(free, lr=plan.rate, weight_decay=plan.weight_decay)
    losses: list[float] = []
    accuracies: list[tuple[int, float]] = []
    if checkpoint and checkpoint.exists():
        losses, accuracies = _restore(checkpoint, free, optimizer, run)
    done = bool(accuracies) and accuracies[-1][1] >= plan.enough
    steps = range(len(losses) + 1, plan.steps + 1)
    for step in tqdm(steps, disable=None, leave=False, desc="training"):
        if done:
            break
        optimizer.zero_grad(set_to_none=True)
        value = loss(generator(*stream, BATCHES, step))
        value.backward()
        optimizer.step()
        losses.append(value.item())
        if step % plan.checked_every == 0 or step == plan.steps:
            accuracies.append((step, accuracy(generator(*stream, CHECKS, step))))
            done = accuracies[-1][1] >= plan.enough
            if checkpoint:
                _save(checkpoint, free, optimizer, run, losses, accuracies)
    return History(tuple(losses), tuple(accuracies))


def pretrained_attention(
    keys: Float[Tensor, "F d"],
    *,
    junk: int,
    plan: Plan = FAST,
    stream: tuple[int, ...],
    checkpoint: Path | None = None,
) -> tuple[RecallTask, RecallBlock]:
    """A block that has learned to return the key itself, with the identity in place of an MLP.

    Args:
        keys: one token each.
        junk: J = V_J, junk tokens in a sequence (half before the key) and in the vocabulary.
        plan, checkpoint: of :func:`train`.
        stream: names the random numbers.

    Returns:
        The task whose answers are the keys, and the trained block, whose memory can be exchanged
        by :meth:`RecallBlock.with_mlp`.

    Source: Garcia et al., Appendix A.1.2, "pretrained attention".
    """
    facts = FactSet(keys, keys, torch.arange(len(keys), device=keys.device))
    before, after = junk // 2, junk - junk // 2
    task = recall_task(
        facts,
        junk_tokens=junk,
        prefix=(before, before),
        suffix=(after, after),
        generator=generator(*stream, JUNK),
    )
    block = RecallBlock(task, nn.Identity(), generator=generator(*stream, WEIGHTS))
    train(block, task, plan, stream=(*stream, STEPS), checkpoint=checkpoint)
    return task, block


@torch.no_grad()
def key_accuracies(
    block: RecallBlock, task: RecallTask, *, contexts: int = 1, generator: torch.Generator
) -> Float[Tensor, " F"]:
    """Share of right answers for every key, over as many contexts of junk each.

    Args:
        contexts: at least 1.
    """
    right = torch.zeros(len(task.facts), device=task.facts.keys.device)
    for sequences in _all_keys(task, contexts, generator):
        right += score_margins(block(sequences), task.facts.targets)[0] > 0
    return right / contexts


@torch.no_grad()
def query_noise(
    block: RecallBlock, task: RecallTask, *, contexts: int, generator: torch.Generator
) -> Float[Tensor, "contexts F"]:
    """|q - k_i| for every key in each of as many contexts of junk.

    The keys must have unit norm, as queries have. The largest entry estimates the attention noise
    ceiling from below.

    Source: Garcia et al., Definition 5.1, Appendix A.4.1.
    """
    noise = [
        (block.queries(sequences) - task.facts.keys).norm(dim=1)
        for sequences in _all_keys(task, contexts, generator)
    ]
    return torch.stack(noise)


def _all_keys(task: RecallTask, contexts: int, generator: torch.Generator) -> Iterator[Sequences]:
    """Every key once, in as many random contexts."""
    check_count(contexts=contexts)
    for _ in range(contexts):
        yield draw_sequences(task, torch.arange(len(task.facts)), generator=generator)


def _fingerprint(
    plan: Plan, stream: tuple[int, ...], weights: Iterable[Tensor], tables: Iterable[Tensor]
) -> list:
    """What a checkpoint belongs to: plan, stream, shapes of all weights, entries of the tables."""
    frozen = b"".join(table.detach().cpu().numpy().tobytes() for table in tables)
    shapes = [list(w.shape) for w in weights]
    return [repr(plan), list(stream), shapes, hashlib.sha256(frozen).hexdigest()]


def _save(path, free, optimizer, run, losses, accuracies) -> None:
    with replacing(path) as partial:
        torch.save(
            {
                "run": run,
                "weights": [p.detach() for p in free],
                "optimizer": optimizer.state_dict(),
                "losses": losses,
                "accuracies": [list(a) for a in accuracies],
            },
            partial,
        )


def _restore(path, free, optimizer, run) -> tuple[list[float], list[tuple[int, float]]]:
    stored = torch.load(path, weights_only=True)
    if stored["run"] != run:
        raise ValueError(f"{path} is the checkpoint of another block, task, plan or stream")
    with torch.no_grad():
        for p, value in zip(free, stored["weights"], strict=True):
            p.copy_(value)
    optimizer.load_state_dict(stored["optimizer"])
    return stored["losses"], [(step, accuracy) for step, accuracy in stored["accuracies"]]
