"""A one-layer language model that keeps its facts in an MLP which can be exchanged.

    z = RMSNorm(E[tokens])                                    embeddings E, frozen
    q, k = W_2 GELU(W_1 LayerNorm(z)), rotated by position    each with its own weights
    x = softmax(q k^T / sqrt(d), causal) z                    no residual, V and O the identity
    a = sigmoid(router(x))
    y = a fact(unit(x)) + (1 - a) aux(x)                      a frozen memory; rank 8
    scores = RMSNorm(y) E^T                                   the same embeddings

The norm before the memory is frozen with gains 1/sqrt(d), so that keys are the unit vectors along
the embeddings of titles, as everywhere in this book.
"""

import copy
import math
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lib.constructions.gradient import Recipe
from lib.decoding import Memory, score_margins
from lib.editing.language import Corpus, Sentences
from lib.facts import FactSet, gaussian
from lib.mlp import frozen, with_memory
from lib.numerics import check_nonnegative, check_positive, row_blocks, unit_rows
from lib.transformer.rope import rotate
from lib.transformer.training import History, Plan, descend

#: Rank of the auxiliary expert. Garcia et al., Appendix A.4.5.
RANK = 8

#: Ours, for a laptop. The source has 147,456 steps of 32 sentences at a rate of 2e-4.
FAST = Plan(steps=1200, batch=64, rate=3e-3, checked_every=300)

#: How a memory is trained on the squared error; ours, a tenth of the published steps.
RECIPE = Recipe(steps=1000, rate=2e-2, final_rate=2e-5, checked_every=50)


class LanguageModel(nn.Module):
    """The model, untrained.

    Args:
        embeddings: E, one row per token, frozen.
        mlp: the memory of facts, any map from (b, d) to (b, d); a copy is kept, frozen.
        generator: of the initial weights, N(0, 1/fan-in) each.

    Raises:
        ValueError: the memory does not map embeddings to vectors of their size and type.

    Source: Garcia et al., Appendix A.4.5.
    """

    def __init__(
        self, embeddings: Float[Tensor, "tokens d"], mlp: Memory, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        d = embeddings.shape[1]
        self.register_buffer("embeddings", embeddings)
        self.norm, self.head_norm = nn.RMSNorm(d), nn.RMSNorm(d)
        self.query, self.key = _projection(d, generator), _projection(d, generator)
        self.router = _two_layers(d, 1, generator)
        self.auxiliary = nn.Sequential(
            _linear(d, RANK, generator, bias=False), _linear(RANK, d, generator, bias=False)
        )
        self.sharpness = 1.0
        self.to(embeddings)
        self.mlp = frozen(_checked_copy(mlp, embeddings))

    def stream(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b n d"]:
        """x, what attention returns at every position."""
        z = self.norm(self.embeddings)[tokens]
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        q, k = rotate(self.query(z), positions), rotate(self.key(z), positions)
        scores = q @ k.mT / math.sqrt(z.shape[-1])
        future = positions > positions[:, None]
        return scores.masked_fill(future, -torch.inf).softmax(-1) @ z

    def routing(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b 1"]:
        """a, the weight of the memory."""
        return torch.sigmoid(self.sharpness * self.router(x))

    def scores(self, y: Float[Tensor, "b d"]) -> Float[Tensor, "b tokens"]:
        """Logits of all tokens, given what the experts return."""
        return self.head_norm(y) @ self.embeddings.T

    def predict(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b tokens"]:
        """Logits of the next token at positions whose stream is x."""
        return self.scores(self.mix(x, self.mlp(unit_rows(x))))

    def mix(self, x: Float[Tensor, "b d"], fact: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        """y, if the memory returns ``fact``."""
        a = self.routing(x)
        return a * fact + (1 - a) * self.auxiliary(x)

    def forward(self, tokens: Int[Tensor, "b n"]) -> Float[Tensor, "b n tokens"]:
        """Logits of the next token at every position."""
        return self.predict(self.stream(tokens).flatten(0, 1)).unflatten(0, tokens.shape)

    def questions(self, sentences: Sentences) -> Float[Tensor, "b d"]:
        """The stream before the author, where the fact is asked for."""
        x = self.stream(sentences.tokens[:, :-1])
        return x[torch.arange(len(x), device=x.device), sentences.last - 1]

    def with_mlp(self, mlp: Memory) -> "LanguageModel":
        """A copy with a copy of another memory, frozen; all else is the same.

        The two models share the frozen embeddings, and nothing else.

        Raises:
            ValueError: the memory is not as in :class:`LanguageModel`.
        """
        return with_memory(self, _checked_copy(mlp, self.embeddings))

    def with_sharpness(self, sharpness: float) -> "LanguageModel":
        """A copy with another factor before the router's sigmoid, which is 1 in training.

        Raises:
            ValueError: the factor is not positive and finite.
        """
        check_positive(sharpness=sharpness)
        model = self.with_mlp(self.mlp)
        model.sharpness = sharpness
        return model


def draw_embeddings(
    corpus: Corpus, d: int, *, generator: torch.Generator
) -> Float[Tensor, "tokens d"]:
    """Embeddings of a corpus, uniform in (-sqrt(6/d), sqrt(6/d)), float32.

    Args:
        d: even, at least 2.

    Raises:
        ValueError: d is not allowed.

    Source: Garcia et al., Appendix A.4.5 (Kaiming-uniform).
    """
    if d < 2 or d % 2:
        raise ValueError(f"d must be even and at least 2; got {d}")
    uniform = torch.rand(len(corpus.vocabulary), d, dtype=torch.float64, generator=generator)
    return ((2 * uniform - 1) * math.sqrt(6 / d)).float()


def corpus_facts(corpus: Corpus, embeddings: Float[Tensor, "tokens d"]) -> FactSet:
    """The facts as embeddings: unit vectors of titles, and embeddings of their authors."""
    F, N = len(corpus), len(corpus.authors)
    answers = corpus.answers.to(embeddings.device)
    return FactSet(unit_rows(embeddings[:F]), embeddings[F : F + N], answers)


def token_losses(
    model: LanguageModel, sentences: Sentences
) -> tuple[Float[Tensor, " p"], Float[Tensor, " p"], Bool[Tensor, " p"]]:
    """Of every token but the first of each sentence: cross entropy, routing, is it an author.

    Filling is not looked at.
    """
    kept = sentences.present[:, 1:]
    x = model.stream(sentences.tokens[:, :-1])[kept]
    losses = nn.functional.cross_entropy(
        model.predict(x), sentences.tokens[:, 1:][kept], reduction="none"
    )
    positions = torch.arange(1, kept.shape[1] + 1, device=kept.device)
    return losses, model.routing(x).squeeze(1), (positions == sentences.last[:, None])[kept]


@torch.no_grad()
def right_authors(model: LanguageModel, sentences: Sentences) -> Bool[Tensor, " b"]:
    """Whether the author is, among all tokens, the one that the model expects at the end."""
    right = torch.zeros(len(sentences.tokens), dtype=torch.bool, device=sentences.tokens.device)
    for rows in row_blocks(len(sentences.tokens), len(model.embeddings)):
        part = sentences[rows]
        authors = part.tokens.gather(1, part.last[:, None]).squeeze(1)
        right[rows] = score_margins(model.predict(model.questions(part)), authors)[0] > 0
    return right


def train_language(
    model: LanguageModel,
    corpus: Corpus,
    plan: Plan = FAST,
    *,
    stream: tuple[int, ...],
    leak_penalty: float = 0.0,
    checkpoint: Path | None = None,
) -> History:
    """Train all but embeddings and memory on random facts in random templates, in place.

    The loss is the mean cross entropy of all tokens but first ones.

    Args:
        model, corpus: in one another's size.
        plan, stream, checkpoint: as in :func:`lib.transformer.training.train`; the accuracy is
            that of authors, in a random template for every fact.
        leak_penalty: what the mean weight of the memory on other tokens than authors adds to the
            loss; ours, 0 in the source.

    Raises:
        ValueError: the penalty is negative, or the checkpoint belongs to another run.
    """
    check_nonnegative(leak_penalty=leak_penalty)
    device = model.embeddings.device

    def drawn(facts: Tensor, g: torch.Generator) -> Sentences:
        templates = torch.randint(len(corpus.templates), facts.shape, generator=g)
        return corpus.sentences(facts, templates, corpus.answers).to(device)

    def loss(g: torch.Generator) -> Tensor:
        sentences = drawn(torch.randint(len(corpus), (plan.batch,), generator=g), g)
        losses, routing, authors = token_losses(model, sentences)
        return losses.mean() + leak_penalty * routing[~authors].mean()

    def accuracy(g: torch.Generator) -> float:
        return right_authors(model, drawn(torch.arange(len(corpus)), g)).double().mean().item()

    fixed = [p for p in model.parameters() if not p.requires_grad]
    settings = torch.tensor([model.sharpness, leak_penalty])
    tables = (model.embeddings, corpus.answers, settings, *fixed)
    return descend(model, plan, loss, accuracy, stream=stream, tables=tables, checkpoint=checkpoint)


def _projection(d: int, generator: torch.Generator) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(d), *_two_layers(d, d, generator))


def _two_layers(d: int, outputs: int, generator: torch.Generator) -> nn.Sequential:
    return nn.Sequential(_linear(d, d, generator), nn.GELU(), _linear(d, outputs, generator))


def _linear(
    inputs: int, outputs: int, generator: torch.Generator, *, bias: bool = True
) -> nn.Linear:
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(gaussian(outputs, inputs, generator=generator))
        if bias:
            layer.bias.zero_()
    return layer


@torch.no_grad()
def _checked_copy(mlp: Memory, embeddings: Float[Tensor, "tokens d"]) -> Memory:
    """A copy of a memory, once it has answered a question of the right size."""
    question = unit_rows(embeddings[:1])
    try:
        answer = mlp(question)
    except RuntimeError as error:
        answer, why = None, error
    else:
        why = f"an answer of shape {tuple(answer.shape)}, {answer.dtype}"
    if answer is None or answer.shape != question.shape or answer.dtype != question.dtype:
        d, dtype = question.shape[1], question.dtype
        raise ValueError(f"mlp must map (b, {d}) to (b, {d}) in {dtype}; got {why}")
    return copy.deepcopy(mlp)
