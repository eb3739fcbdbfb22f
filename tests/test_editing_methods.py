import math
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lib.constructions.hebbian import sketched_k2
from lib.editing import methods, metrics
from lib.editing.language import invented_corpus
from lib.editing.methods import (
    Descent,
    Edit,
    alpha_edit,
    least_squares_update,
    memit,
    null_space_update,
    permuted,
    rank_one_update,
    residuals,
    rome,
    swap,
)
from lib.editing.model import LanguageModel, corpus_facts, draw_embeddings
from lib.facts import FactSet
from lib.mlp import random_mlp
from lib.numerics import generator, unit_rows

D, M = 16, 24
CORPUS = invented_corpus(12, generator=generator(0))
EMBEDDINGS = draw_embeddings(CORPUS, D, generator=generator(1)).double()
FACTS = corpus_facts(CORPUS, EMBEDDINGS)
MODEL = LanguageModel(
    EMBEDDINGS, random_mlp(D, M, D, "identity", generator=generator(2)), generator=generator(3)
)
NO_EDIT = permuted(FACTS, torch.arange(0), generator=generator(4))
EDIT = permuted(FACTS, torch.tensor([7, 2, 9]), generator=generator(4))


def questions(model=MODEL):
    numbers = torch.arange(12)
    template = torch.full((12,), methods.TEMPLATE)
    x = model.questions(CORPUS.sentences(numbers, template, CORPUS.answers)).detach()
    return x, model.mlp.features(unit_rows(x))


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=generator(9, seed, *shape))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


# --- edits ---------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 11), min_size=2), st.integers(0, 99))
def test_a_permuted_edit_changes_exactly_the_altered_facts(altered, seed):
    edit = permuted(FACTS, torch.tensor(sorted(altered)), generator=generator(seed))
    changed = (edit.facts.targets != FACTS.targets).nonzero().squeeze(1)
    assert set(changed.tolist()) == altered
    assert sorted(edit.facts.targets.tolist()) == sorted(FACTS.targets.tolist())
    assert sorted([*edit.altered.tolist(), *edit.preserved.tolist()]) == list(range(12))
    assert torch.equal(edit.tokens, 12 + edit.facts.targets[edit.altered])


@pytest.mark.parametrize("altered", [[3, 3], [-1], [12]])
def test_edits_of_unknown_or_repeated_facts_are_refused(altered):
    with pytest.raises(ValueError, match=r"distinct numbers in 0\.\.11"):
        Edit(FACTS, torch.tensor(altered))


def test_one_fact_cannot_be_permuted():
    with pytest.raises(ValueError, match="no number, or at least 2; got 1"):
        permuted(FACTS, torch.tensor([3]), generator=generator(0))


# --- the three updates ---------------------------------------------------------------------------


def test_a_rank_one_update_satisfies_its_constraint_with_the_least_change():
    K, r, v = draw(40, M), draw(D), draw(M)
    C = K.T @ K / 40
    update = rank_one_update(v, r, torch.linalg.inv(C))
    close(update @ v, r)
    assert torch.linalg.matrix_rank(update) == 1
    least = torch.trace(update @ C @ update.T)
    for seed in range(5):
        other = draw(D, M, seed=seed)
        other = update + other - torch.outer(other @ v, v) / (v @ v)
        close(other @ v, r)
        assert torch.trace(other @ C @ other.T) > least


def test_memit_is_least_squares_on_altered_and_preserved_keys_together():
    K, R, K_0, weight = draw(5, M), draw(5, D), draw(30, M), 7.0
    update = least_squares_update(K, R, weight * K_0.T @ K_0 / 30)
    rows = torch.cat([K, math.sqrt(weight / 30) * K_0])
    targets = torch.cat([R, torch.zeros(30, D).double()])
    close(update, torch.linalg.lstsq(rows, targets).solution.T)


def test_memit_without_preserved_keys_is_the_least_norm_solution():
    K, R = draw(5, M), draw(5, D)
    update = least_squares_update(K, R, torch.zeros(M, M).double())
    close(update, (torch.linalg.pinv(K) @ R).T)
    close(K @ update.T, R)


def test_a_null_space_update_vanishes_on_the_span_of_preserved_keys():
    K, R, K_0 = draw(5, M), draw(5, D), draw(10, M)
    for ridge in (0.0, 1.0):
        update = null_space_update(K, R, K_0, tolerance=0.0, ridge=ridge)
        close(K_0 @ update.T, torch.zeros(10, D).double())
        assert update.norm() > 0.1
    close(K @ null_space_update(K, R, K_0, tolerance=0.0, ridge=0.0).T, R)


def test_a_null_space_update_is_the_formula_of_its_source():
    K, R, K_0, ridge, tolerance = draw(5, M), draw(5, D), draw(60, M), 0.3, 0.8
    C = K_0.T @ K_0 / 60
    values, vectors = torch.linalg.eigh(C)
    kept = vectors[:, values <= tolerance * values.mean()]
    assert 0 < kept.shape[1] < M
    P, scale = kept @ kept.T, ridge * torch.trace(C) / M
    formula = R.T @ K @ P @ torch.linalg.inv(K.T @ K @ P + scale * torch.eye(M).double())
    close(null_space_update(K, R, K_0, tolerance=tolerance, ridge=ridge), formula)


def test_a_full_memory_leaves_no_null_space():
    update = null_space_update(draw(5, M), draw(5, D), draw(60, M), tolerance=0.0, ridge=1.0)
    assert not update.any()


# --- residuals -----------------------------------------------------------------------------------


def test_residuals_make_the_model_say_the_new_author():
    x, K = questions()
    outputs, altered = K @ MODEL.mlp.B.T, EDIT.altered
    r = residuals(MODEL, x[altered], outputs[altered], EDIT.tokens, Descent(rate=0.1))
    scores = MODEL.scores(MODEL.mix(x[altered], outputs[altered] + r))
    assert torch.equal(scores.argmax(1), EDIT.tokens)
    assert torch.equal(residuals(MODEL, x[:0], outputs[:0], EDIT.tokens[:0], Descent()), r[:0])


def test_residuals_do_not_depend_on_each_other_and_rest_when_it_is_enough():
    x, K = questions()
    outputs, altered = K @ MODEL.mlp.B.T, EDIT.altered
    descent = Descent(rate=0.05, enough=1.5, decay=1e-4)
    together = residuals(MODEL, x[altered], outputs[altered], EDIT.tokens, descent)
    for row, i in enumerate(altered.tolist()):
        alone = residuals(MODEL, x[i, None], outputs[i, None], EDIT.tokens[row, None], descent)
        close(alone[0], together[row])
    scores = MODEL.scores(MODEL.mix(x[altered], outputs[altered] + together))
    losses = nn.functional.cross_entropy(scores, EDIT.tokens, reduction="none")
    assert (losses < 1.5).all() and (losses > 1.0).all()


def test_residuals_are_clipped():
    x, K = questions()
    outputs = (K @ MODEL.mlp.B.T)[EDIT.altered]
    r = residuals(MODEL, x[EDIT.altered], outputs, EDIT.tokens, Descent(rate=0.5, clip=0.25))
    assert (r.norm(dim=1) <= 0.25 * outputs.norm(dim=1) * (1 + 1e-9)).all()


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"rate": 0.0}, {"decay": -1.0}, {"clip": 0.0}])
def test_a_descent_is_checked(wrong):
    with pytest.raises(ValueError, match="steps must be at least 1, rate and clip positive"):
        Descent(**wrong)


# --- the methods ---------------------------------------------------------------------------------

UPDATES = [rome, memit, alpha_edit]
ALL = [*UPDATES, lambda model, corpus, edit: swap(model, edit, construct)]


def construct(facts: FactSet):
    return sketched_k2(facts, 60, generator=generator(5), whitening="full")


@pytest.mark.parametrize("method", ALL)
def test_without_edits_the_model_stays_and_counts_as_good_as_it_was(method):
    model = method(MODEL, CORPUS, NO_EDIT)
    assert model is not MODEL
    for p, q in zip(model.parameters(), MODEL.parameters(), strict=True):
        assert torch.equal(p, q)
    scores = metrics.evaluate(model, MODEL, CORPUS, NO_EDIT)
    assert scores.efficacy == scores.paraphrase == scores.perplexity_ratio == 1


@pytest.mark.parametrize("method", ALL)
def test_a_method_changes_the_memory_of_a_copy_only(method):
    before = {name: p.clone() for name, p in MODEL.state_dict().items()}
    model = method(MODEL, CORPUS, EDIT)
    assert all(torch.equal(p, before[name]) for name, p in MODEL.state_dict().items())
    after = model.state_dict()
    for name in before:
        if not name.startswith("mlp"):
            assert torch.equal(after[name], before[name])
    assert not torch.equal(after["mlp.B"], before["mlp.B"])


@pytest.mark.parametrize("method", UPDATES)
def test_an_update_changes_the_readout_only(method):
    after = method(MODEL, CORPUS, EDIT).mlp
    assert torch.equal(after.A, MODEL.mlp.A) and torch.equal(after.G, MODEL.mlp.G)


def test_rome_adds_its_residual_exactly_for_one_edit():
    targets = FACTS.targets.clone()
    targets[4] = 8
    edit = Edit(FactSet(FACTS.keys, FACTS.values, targets), torch.tensor([4]))
    descent = Descent(rate=0.1, steps=20)
    x, K = questions()
    r = residuals(MODEL, x[4, None], (K @ MODEL.mlp.B.T)[4, None], edit.tokens, descent)
    after = rome(MODEL, CORPUS, edit, descent=descent).mlp.B
    close((after - MODEL.mlp.B) @ K[4], r[0])


def test_memit_approaches_its_residuals_as_the_weight_of_the_others_falls():
    full = MODEL.with_mlp(random_mlp(D, 8, D, "identity", generator=generator(6)))  # 12 facts
    x, K = questions(full)
    outputs = (K @ full.mlp.B.T)[EDIT.altered]
    r = residuals(full, x[EDIT.altered], outputs, EDIT.tokens, Descent())
    misses = []
    for weight in (1e3, 1.0, 1e-8):
        update = memit(full, CORPUS, EDIT, weight=weight).mlp.B - full.mlp.B
        misses.append((K[EDIT.altered] @ update.T - r).norm() / r.norm())
    assert misses[0] > misses[1] > misses[2] and misses[2] < 1e-6


def test_alpha_edit_answers_preserved_questions_as_before_while_there_is_room():
    _, K = questions()
    assert torch.linalg.matrix_rank(K[EDIT.preserved]) == 9 < M
    update = alpha_edit(MODEL, CORPUS, EDIT, tolerance=0.0).mlp.B - MODEL.mlp.B
    close(K[EDIT.preserved] @ update.T, torch.zeros(9, D).double())
    assert (K[EDIT.altered] @ update.T).norm() > 0.1


def test_swapping_puts_in_what_is_constructed_for_the_edited_facts():
    asked = []
    swapped = swap(MODEL, EDIT, lambda facts: asked.append(facts) or construct(facts))
    assert asked == [EDIT.facts]
    for p, q in zip(swapped.mlp.parameters(), construct(EDIT.facts).parameters(), strict=True):
        assert torch.equal(p, q)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="weight must be finite and >= 0; got -1"):
        memit(MODEL, CORPUS, EDIT, weight=-1.0)
    for wrong in ({"tolerance": -1.0}, {"ridge": inf}):
        with pytest.raises(ValueError, match="must be finite and >= 0"):
            alpha_edit(MODEL, CORPUS, EDIT, **wrong)
    everything = permuted(FACTS, torch.arange(12), generator=generator(4))
    with pytest.raises(ValueError, match="preserved must have at least one key"):
        alpha_edit(MODEL, CORPUS, everything)


def test_the_mean_leverage_of_stored_keys_is_the_width_of_a_full_memory():
    K = draw(60, M)
    precision = torch.linalg.inv(K.T @ K / 60)
    assert ((K @ precision) * K).sum(1).mean().item() == pytest.approx(M, rel=1e-9)
    update = rank_one_update(K[0], draw(D), precision)
    change = (K @ update.T).square().sum(1).mean()
    expected = draw(D).square().sum() / (K[0] @ precision @ K[0])
    assert change.item() == pytest.approx(expected.item(), rel=1e-9)


def test_updates_need_a_gated_memory():
    model = MODEL.with_mlp(nn.Identity())
    with pytest.raises(ValueError, match="memory must be a GatedMLP; got Identity"):
        memit(model, CORPUS, EDIT)


def test_every_grid_holds_settings_of_its_method():
    for method, grid in (
        (rome, methods.ROME_GRID),
        (memit, methods.MEMIT_GRID),
        (alpha_edit, methods.ALPHA_EDIT_GRID),
    ):
        assert len(grid) == len({str(settings) for settings in grid}) >= 10
        method(MODEL, CORPUS, NO_EDIT, **grid[0])
    assert any(s["descent"].clip == inf for s in methods.MEMIT_GRID)
