import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.editing import metrics
from lib.editing.language import Corpus, invented_corpus
from lib.editing.methods import Edit, permuted
from lib.editing.model import LanguageModel, corpus_facts, draw_embeddings
from lib.mlp import random_mlp
from lib.numerics import generator

D = 16
CORPUS = invented_corpus(12, generator=generator(0))
EMBEDDINGS = draw_embeddings(CORPUS, D, generator=generator(1)).double()
FACTS = corpus_facts(CORPUS, EMBEDDINGS)
MODEL = LanguageModel(
    EMBEDDINGS, random_mlp(D, 20, D, "identity", generator=generator(2)), generator=generator(3)
)


def test_shares_and_their_harmonic_mean():
    right = torch.tensor([True, True, False, True])
    assert metrics.share(right) == 0.75 and metrics.share(right[:0]) == 1
    assert metrics.harmonic_mean(1.0, 0.5, 0.25) == pytest.approx(3 / 7, rel=1e-12)
    assert metrics.harmonic_mean(1.0, 0.0, 1.0) == 0
    scores = metrics.Scores(0.482, 0.482, 0.766, 1.0)  # AlphaEdit at 10 %, as published
    assert round(scores.score, 3) == 0.55
    for wrong in ((), (1.1,), (math.nan,)):
        with pytest.raises(ValueError, match="shares must be one or more numbers in"):
            metrics.harmonic_mean(*wrong)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=5))
def test_the_harmonic_mean_is_at_most_the_mean_and_at_least_the_smallest(shares):
    mean = metrics.harmonic_mean(*shares)
    assert min(shares) - 1e-12 <= mean <= sum(shares) / len(shares) + 1e-12


def test_a_perplexity_ratio_is_that_of_perplexities():
    before, after = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 2.5])
    expected = math.exp(2.0) / math.exp(1.5)
    assert metrics.perplexity_ratio(before, after) == pytest.approx(expected, rel=1e-12)
    assert metrics.perplexity_ratio(before[:0], after[:0]) == 1
    assert metrics.perplexity_ratio(before, after + 1000) == math.inf


def scripted(monkeypatch, answers, wrong):
    """right_authors as hand-made predictions: ``answers``, and 0 for (fact, template) in wrong."""
    forms, _ = CORPUS._forms

    def right_authors(model, sentences):
        right = []
        for tokens, last in zip(sentences.tokens.tolist(), sentences.last.tolist(), strict=True):
            fact = next(t for t in tokens if t < 12)
            template = next(
                i
                for i, form in enumerate(forms.tolist())
                if [fact if t == -1 else t for t in form][:last] == tokens[:last]
            )
            predicted = -1 if (fact, template) in wrong else 12 + answers[fact]
            right.append(predicted == tokens[last])
        return torch.tensor(right, dtype=torch.bool)

    monkeypatch.setattr(metrics, "right_authors", right_authors)


def test_efficacy_paraphrase_and_specificity_of_hand_made_predictions(monkeypatch):
    edit = permuted(FACTS, torch.tensor([1, 5, 6, 8]), generator=generator(4))
    new, first_held_out = edit.facts.targets.tolist(), len(CORPUS.templates)
    scripted(monkeypatch, new, set())
    assert metrics.accuracies(MODEL, CORPUS, edit) == (1, 1, 1)
    scripted(monkeypatch, FACTS.targets.tolist(), set())  # nothing was edited
    assert metrics.accuracies(MODEL, CORPUS, edit) == (0, 0, 1)
    wrong = {(1, 0), (5, first_held_out), (5, first_held_out + 1), (0, 0), (2, 0), (3, 5)}
    scripted(monkeypatch, new, wrong)
    assert metrics.accuracies(MODEL, CORPUS, edit) == (3 / 4, 14 / 16, 6 / 8)
    by_template = metrics.template_accuracies(MODEL, CORPUS)
    assert list(by_template) == [*CORPUS.templates, *CORPUS.held_out]
    assert by_template[CORPUS.templates[0]] == (12 - 4 - 2) / 12  # of the facts before the edit


def test_language_losses_leave_authors_out():
    losses = metrics.language_losses(MODEL, CORPUS)
    numbers = torch.arange(12)
    sentences = CORPUS.sentences(numbers, numbers, CORPUS.answers)
    logs = MODEL(sentences.tokens).log_softmax(-1)
    expected = [
        -logs[i, t - 1, sentences.tokens[i, t]].item()
        for i, last in enumerate(sentences.last.tolist())
        for t in range(1, last)
    ]
    torch.testing.assert_close(
        losses, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9
    )


def test_tuning_picks_the_first_of_the_best_and_uses_the_given_edit_only(monkeypatch):
    edit = Edit(FACTS, torch.arange(0))
    shares = {"a": 0.2, "b": 0.8, "c": 0.8, "d": 0.5}

    def accuracies(model, corpus, asked):
        assert corpus is CORPUS and asked is edit
        return shares[model], 1.0, 1.0

    def method(model, corpus, asked, *, letter):
        assert model is MODEL and corpus is CORPUS and asked is edit
        return letter

    monkeypatch.setattr(metrics, "accuracies", accuracies)
    grid = [{"letter": letter} for letter in shares]
    settings, score = metrics.tune(method, iter(grid), MODEL, CORPUS, edit)
    assert settings is grid[1] and score == metrics.harmonic_mean(0.8, 1.0, 1.0)
    with pytest.raises(ValueError, match="grid must have at least one setting"):
        metrics.tune(method, [], MODEL, CORPUS, edit)


def test_a_paraphrase_needs_a_template_that_is_held_out():
    corpus = Corpus(CORPUS.titles, CORPUS.authors, CORPUS.answers, held_out=())
    with pytest.raises(ValueError, match="held_out must have at least one template"):
        metrics.accuracies(MODEL, corpus, Edit(FACTS, torch.arange(2)))
