import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.decoding import output_radii, retrieve, unit_outputs
from lib.facts import FactSet, gaussian, random_facts, sphere
from lib.numerics import generator


@st.composite
def memories(draw):
    """A fact set with shared targets and spare values, and a linear memory for it."""
    F, N, d, d_v = (draw(st.integers(low, 9)) for low in (1, 2, 1, 1))
    g = generator(draw(st.integers(0, 10_000)))
    targets = torch.randint(N, (F,), generator=g)
    facts = FactSet(gaussian(F, d, generator=g), gaussian(N, d_v, generator=g), targets)
    W = gaussian(d_v, d, generator=g)
    return facts, lambda keys: keys @ W.T


def brute_force_margins(memory, facts):
    """min over j of gamma_ij, pair by pair."""
    margins = []
    for key, target in zip(facts.keys, facts.targets, strict=True):
        y = memory(key[None])[0]
        gammas = [
            (y @ facts.values[target] - y @ v).item()
            for j, v in enumerate(facts.values)
            if j != target
        ]
        margins.append(min(gammas))
    return torch.tensor(margins, dtype=torch.float64)


@given(memories(), st.integers(1, 40))
def test_margins_equal_a_double_loop_whatever_the_block(case, entries):
    facts, memory = case
    retrieval = retrieve(memory, facts, entries=entries)
    expected = brute_force_margins(memory, facts)
    torch.testing.assert_close(retrieval.margins, expected, rtol=1e-9, atol=1e-12)
    assert retrieval.minimum_margin == pytest.approx(expected.min().item(), rel=1e-9, abs=1e-12)
    scores = memory(facts.keys) @ facts.values.T
    assert retrieval.accuracy == (scores.argmax(1) == facts.targets).double().mean().item()
    assert torch.equal(retrieval.predictions, scores.argmax(1))
    assert (retrieval.competitors != facts.targets).all()


def test_a_tie_is_a_failure():
    eye = torch.eye(2, dtype=torch.float64)
    facts = FactSet(eye, torch.cat([eye, eye[:1]]), torch.tensor([0, 1]))  # values 0 and 2 agree
    retrieval = retrieve(lambda k: k, facts)
    assert retrieval.margins.tolist() == [0, 1]
    assert retrieval.stored.tolist() == [False, True]
    assert retrieval.predictions.tolist() == [2, 1]
    assert retrieval.accuracy == 0.5


@given(seed=st.integers(0, 1000))
def test_a_repeated_value_is_never_stored(seed):
    values = sphere(38, 64, generator=generator(seed))
    facts = FactSet(values[:5], torch.cat([values, values[:5]]), torch.arange(5))
    assert not retrieve(lambda k: k, facts).stored.any()


@pytest.mark.parametrize("scale", [1e-150, 1e-10, 1e100])
def test_unit_outputs_do_not_depend_on_the_scale(scale):
    facts = random_facts(12, 5, generator=generator(0))
    expected = retrieve(unit_outputs(lambda k: k), facts).margins
    scaled = retrieve(unit_outputs(lambda k: scale * k), facts).margins
    torch.testing.assert_close(scaled, expected, rtol=1e-12, atol=1e-14)


def test_a_memory_must_answer_each_key_once():
    facts = random_facts(5, 3, generator=generator(0))
    with pytest.raises(ValueError, match=r"memory must return shape \(1, 3\).*got \(5, 3\)"):
        retrieve(lambda k: facts.keys, facts, entries=1)


def test_margins_of_a_trainable_memory_carry_no_graph():
    facts = random_facts(5, 3, generator=generator(0))
    W = torch.eye(3, dtype=torch.float64, requires_grad=True)
    assert not retrieve(lambda k: k @ W, facts).margins.requires_grad


def test_outputs_that_are_not_finite_are_refused():
    facts = random_facts(5, 3, generator=generator(0))
    with pytest.raises(ValueError, match="those of fact 3 are not"):
        retrieve(lambda k: k / (torch.arange(5)[:, None] != 3), facts)


@given(seed=st.integers(0, 1000))
def test_outputs_may_move_within_their_radius_and_not_beyond(seed):
    facts = random_facts(12, 4, generator=generator(seed, 0))
    memory = lambda k: facts.answers  # noqa: E731  every output is the right value itself
    radii = output_radii(memory, facts)
    moves = radii[:, None] * sphere(12, 4, generator=generator(seed, 1))
    inside = retrieve(lambda k: facts.answers + (1 - 1e-9) * moves, facts)
    assert inside.accuracy == 1

    # The nearest boundary belongs to the competitor of the smallest gamma_ij / |v_f(i) - v_j|.
    gaps = (facts.answers * facts.answers).sum(1, keepdim=True) - facts.answers @ facts.values.T
    normals = facts.values[None] - facts.answers[:, None]
    distances = gaps / normals.norm(dim=2)
    distances[torch.arange(12), facts.targets] = torch.inf
    nearest = distances.argmin(1)
    direction = normals[torch.arange(12), nearest]
    direction = direction / direction.norm(dim=1, keepdim=True)
    outside = facts.answers + (1 + 1e-9) * radii[:, None] * direction
    assert retrieve(lambda k: outside, facts).accuracy == 0


def test_radii_need_distinct_values():
    eye = torch.eye(2, dtype=torch.float64)
    facts = FactSet(eye, eye[[0, 1, 1]], torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="value 2 equals the target of fact 1"):
        output_radii(lambda k: k, facts)


@given(memories())
def test_unit_outputs_store_the_same_facts(case):
    facts, memory = case
    scaled = retrieve(unit_outputs(memory), facts)
    plain = retrieve(memory, facts)
    norms = memory(facts.keys).norm(dim=1)
    torch.testing.assert_close(scaled.margins * norms, plain.margins, rtol=1e-9, atol=1e-12)
