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
    memit,
    permuted,
    residuals,
    rome,
    swap,
)
from lib.editing.model import LanguageModel, corpus_facts, draw_embeddings
from lib.facts import FactSet
from lib.mlp import GatedMLP, random_mlp
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


@pytest.mark.parametrize(
    "altered", [torch.tensor([True, False]), torch.tensor([0.5, 2.0]), torch.tensor([[0, 1]])]
)
def test_edits_are_lists_of_whole_numbers(altered, unchecked_shapes):
    with pytest.raises(ValueError, match="altered must be a vector of int64; got torch"):
        Edit(FACTS, altered)


def test_a_fact_may_be_handed_the_author_that_it_has_where_authors_have_several_books():
    targets = torch.tensor([0, 0, *range(2, 12)])
    facts = FactSet(FACTS.keys, FACTS.values, targets)
    edit = permuted(facts, torch.tensor([0, 1, 5]), generator=generator(0))
    assert sorted(edit.facts.targets[[0, 1, 5]].tolist()) == [0, 0, 5]
    assert (edit.facts.targets != targets).sum() == 2


def test_one_fact_cannot_be_permuted():
    with pytest.raises(ValueError, match="no number, or at least 2; got 1"):
        permuted(FACTS, torch.tensor([3]), generator=generator(0))


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


def test_zero_outputs_have_residuals_unless_these_are_measured_by_them():
    x, _ = questions()
    x, outputs = x[EDIT.altered], torch.zeros(3, D).double()
    r = residuals(MODEL, x, outputs, EDIT.tokens, Descent(rate=0.1))
    assert torch.equal(MODEL.scores(MODEL.mix(x, r)).argmax(1), EDIT.tokens)
    for descent in (Descent(decay=1e-3), Descent(clip=0.75)):
        with pytest.raises(ValueError, match="outputs must not be zero where decay or clip"):
            residuals(MODEL, x, outputs, EDIT.tokens, descent)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"steps": steps} for steps in (0, 1.5)),
        *({"rate": rate} for rate in (0.0, inf, math.nan)),
        *({name: x} for name in ("decay", "enough") for x in (-1.0, inf, math.nan)),
        *({"clip": clip} for clip in (0.0, math.nan)),
    ],
)
def test_a_descent_is_checked(wrong, unchecked_shapes):
    with pytest.raises(ValueError, match=r"steps must be an integer of at least 1.*got Descent"):
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


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("edit", [EDIT, NO_EDIT])
def test_an_edited_model_shares_no_weight_with_the_one_it_came_from(method, edit):
    before = {name: p.clone() for name, p in MODEL.named_parameters()}
    model = method(MODEL, CORPUS, edit)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    assert all(torch.equal(p, before[name]) for name, p in MODEL.named_parameters())


@pytest.mark.parametrize("method", UPDATES)
def test_edits_of_another_size_are_refused(method):
    fewer = FactSet(FACTS.keys[:10], FACTS.values, FACTS.targets[:10])
    edit = Edit(fewer, torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="the corpus's 12 facts and 12 values; got 10 and 12"):
        method(MODEL, CORPUS, edit)
    with pytest.raises(ValueError, match="the corpus's 12 facts and 12 values; got 10 and 12"):
        metrics.accuracies(MODEL, CORPUS, edit)


@pytest.mark.parametrize("method", UPDATES)
def test_a_memory_whose_readout_is_zero_can_be_edited(method):
    mlp = MODEL.mlp
    empty = MODEL.with_mlp(GatedMLP(mlp.A, mlp.G, torch.zeros_like(mlp.B)))
    assert method(empty, CORPUS, EDIT).mlp.B.norm() > 0.1


def test_keys_of_zero_cannot_be_updated_one_by_one_and_others_leave_the_readout():
    mlp = MODEL.mlp
    deaf = MODEL.with_mlp(GatedMLP(torch.zeros_like(mlp.A), mlp.G, mlp.B))
    with pytest.raises(ValueError, match="key must not be zero"):
        rome(deaf, CORPUS, EDIT)
    for method in (memit, alpha_edit):
        assert torch.equal(method(deaf, CORPUS, EDIT).mlp.B, mlp.B)


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
