"""How well an edit worked: on the edited facts, on the others, and on the language around them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from tqdm import tqdm

from lib.editing.language import Corpus
from lib.editing.methods import TEMPLATE, Edit
from lib.editing.model import LanguageModel, right_authors, token_losses
from lib.numerics import row_blocks


@dataclass(frozen=True)
class Scores:
    """What an edit did.

    Attributes:
        efficacy: share of altered facts answered with the new author, in the template in which
            the edit was made.
        paraphrase: the same, in the templates held out.
        specificity: share of preserved facts answered with their author, in the template of the
            edit; 1 where none is preserved, and then efficacy says more than the score.
        perplexity_ratio: perplexity after the edit over that before, on all tokens but authors.

    Source: Garcia et al., Appendix A.4.5.
    """

    efficacy: float
    paraphrase: float
    specificity: float
    perplexity_ratio: float

    @property
    def score(self) -> float:
        """Harmonic mean of efficacy, paraphrase and specificity."""
        return harmonic_mean(self.efficacy, self.paraphrase, self.specificity)


def evaluate(model: LanguageModel, before: LanguageModel, corpus: Corpus, edit: Edit) -> Scores:
    """Scores of an edited model.

    Args:
        model: after the edit.
        before: the same model before it.
        corpus: the facts before it, and the templates.
        edit: what should have changed.

    Raises:
        ValueError: as :func:`accuracies`.
    """
    ratio = perplexity_ratio(language_losses(before, corpus), language_losses(model, corpus))
    return Scores(*accuracies(model, corpus, edit), ratio)


def accuracies(model: LanguageModel, corpus: Corpus, edit: Edit) -> tuple[float, float, float]:
    """Efficacy, paraphrase and specificity.

    Raises:
        ValueError: the edit has another size than the corpus, or no template is held out.
    """
    edit.check_size(corpus)
    if not corpus.held_out:
        raise ValueError("held_out must have at least one template; got none")
    held_out = range(len(corpus.templates), len(corpus.templates) + len(corpus.held_out))
    asked = ((edit.altered, [TEMPLATE]), (edit.altered, held_out), (edit.preserved, [TEMPLATE]))
    return tuple(
        share(torch.cat([_right(model, corpus, facts, t, edit.facts.targets) for t in templates]))
        for facts, templates in asked
    )


def template_accuracies(model: LanguageModel, corpus: Corpus) -> dict[str, float]:
    """Share of authors that are right, by template, those held out last."""
    everything = torch.arange(len(corpus))
    return {
        template: share(_right(model, corpus, everything, t, corpus.answers))
        for t, template in enumerate((*corpus.templates, *corpus.held_out))
    }


@torch.no_grad()
def language_losses(model: LanguageModel, corpus: Corpus) -> Float[Tensor, " p"]:
    """Cross entropy of all tokens but authors, each fact in one template, these taking turns."""
    numbers = torch.arange(len(corpus))
    sentences = corpus.sentences(numbers, numbers % len(corpus.templates), corpus.answers)
    sentences = sentences.to(model.embeddings.device)
    losses = []
    for rows in row_blocks(len(numbers), sentences.tokens.shape[1] * len(model.embeddings)):
        each, _, authors = token_losses(model, sentences[rows])
        losses.append(each[~authors])
    return torch.cat(losses)


def tune(
    method: Callable[..., LanguageModel],
    grid: Iterable[Mapping[str, Any]],
    model: LanguageModel,
    corpus: Corpus,
    edit: Edit,
) -> tuple[Mapping[str, Any], float]:
    """The settings with the largest score on an edit, the first of equals, and that score.

    The edit must not be one that is reported: take other facts of the same model.

    Args:
        method: ``rome``, ``memit`` or ``alpha_edit``.
        grid: settings, keyword arguments of the method, at least one.

    Raises:
        ValueError: the grid is empty.
    """
    grid = list(grid)
    if not grid:
        raise ValueError("grid must have at least one setting; got none")
    scored = [
        (
            harmonic_mean(*accuracies(method(model, corpus, edit, **settings), corpus, edit)),
            settings,
        )
        for settings in tqdm(grid, disable=None, leave=False, desc=method.__name__)
    ]
    score, settings = max(scored, key=lambda pair: pair[0])
    return settings, score


def share(right: Bool[Tensor, " n"]) -> float:
    """Share of right answers; 1 if nothing was asked, since nothing is wrong."""
    return right.double().mean().item() if len(right) else 1.0


def harmonic_mean(*shares: float) -> float:
    """n / sum_i (1 / s_i); 0 if one of the shares is 0.

    Raises:
        ValueError: a share is not in [0, 1], or there is none.
    """
    if not shares or not all(0 <= s <= 1 for s in shares):
        raise ValueError(f"shares must be one or more numbers in [0, 1]; got {shares}")
    return len(shares) / sum(1 / s for s in shares) if min(shares) > 0 else 0.0


def perplexity_ratio(before: Float[Tensor, " p"], after: Float[Tensor, " p"]) -> float:
    """exp of the difference of mean cross entropies; 1 if there are no tokens, inf if too large."""
    return (after.double() - before.double()).mean().exp().item() if len(before) else 1.0


def _right(
    model: LanguageModel, corpus: Corpus, facts: Tensor, template: int, answers: Tensor
) -> Bool[Tensor, " k"]:
    facts = facts.cpu()
    sentences = corpus.sentences(facts, torch.full_like(facts, template), answers.cpu())
    return right_authors(model, sentences.to(model.embeddings.device))
