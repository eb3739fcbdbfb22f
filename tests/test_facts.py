import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.facts import (
    FactSet,
    bijection,
    gaussian,
    ill_condition,
    other_facts,
    random_facts,
    read_embeddings,
    read_facts,
    sphere,
    spike,
    trigram_embeddings,
)
from lib.numerics import generator

EYE = torch.eye(3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys": EYE[0]}, r"keys must be a nonempty matrix; got shape \(3,\)"),
        ({"keys": EYE[:0], "targets": torch.arange(0)}, "keys must be a nonempty matrix"),
        ({"values": EYE.int()}, "values must be floating point; got torch.int32"),
        ({"values": EYE.float()}, "keys and values must share one dtype"),
        ({"values": EYE[:1], "targets": torch.zeros(3, dtype=torch.int64)}, "at least 2 rows"),
        ({"keys": EYE / EYE}, "keys must be finite; row 0, column 1 is nan"),
        ({"values": EYE + torch.inf}, "values must be finite; row 0, column 0 is inf"),
        ({"targets": torch.arange(2)}, r"targets must have shape \(3,\); got \(2,\)"),
        ({"targets": torch.tensor([0, 1, 3])}, r"targets must be in \[0, 2\]; fact 2 has 3"),
        ({"targets": torch.tensor([0, -1, 2])}, r"targets must be in \[0, 2\]; fact 1 has -1"),
        ({"targets": torch.arange(3).int()}, "targets must be int64; got torch.int32"),
        (
            {"keys": EYE[[0, 1, 0]], "targets": torch.tensor([0, 1, 2])},
            "keys 0 and 2 are equal, with targets 0 and 2",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_a_fact_set_says_what_is_wrong_and_where(change, message):
    fields = {"keys": EYE, "values": EYE, "targets": torch.arange(3)} | change
    with pytest.raises(ValueError, match=message):
        FactSet(**fields)


def test_equal_keys_may_share_a_target():
    facts = FactSet(EYE[[0, 1, 0]], EYE, torch.tensor([2, 1, 2]))
    assert len(facts) == 3
    assert torch.equal(facts.answers, EYE[[2, 1, 2]])


def test_facts_move_between_dtypes():
    facts = random_facts(5, 3, generator=generator(0)).to(dtype=torch.float32)
    assert facts.keys.dtype == facts.values.dtype == torch.float32
    assert facts.targets.dtype == torch.int64


def test_samples_repeat_with_the_generator():
    draws = [random_facts(8, 4, generator=generator(3)) for _ in range(2)]
    assert torch.equal(draws[0].keys, draws[1].keys)
    assert torch.equal(draws[0].targets, draws[1].targets)


def test_the_sphere_is_isotropic_and_the_gaussian_has_unit_rows_on_average():
    n, d = 20_000, 8
    x = sphere(n, d, generator=generator(1))
    assert torch.allclose(x.norm(dim=1), torch.ones(n, dtype=torch.float64))
    # Entries of the covariance have standard error below 1/(d sqrt(n)); 5 of them.
    assert (x.T @ x / n - torch.eye(d) / d).abs().max() < 5 / (d * n**0.5)
    assert gaussian(n, d, generator=generator(2)).square().sum(1).mean().item() == pytest.approx(
        1, abs=5 * (2 / (d * n)) ** 0.5
    )


def test_random_facts_are_untied_and_shuffled():
    facts = random_facts(50, 6, generator=generator(0))
    assert (facts.keys @ facts.values.T).abs().max() < 1 - 1e-6
    assert not torch.equal(facts.targets, torch.arange(50))


@given(st.integers(2, 12), st.integers(0, 10**6))
def test_other_facts_share_keys_and_answers_but_no_fact(n, seed):
    facts = random_facts(n, 8, generator=generator(seed))
    other = other_facts(facts, generator=generator(seed, 1))
    assert torch.equal(other.keys, facts.keys) and torch.equal(other.values, facts.values)
    assert torch.equal(other.targets.sort().values, facts.targets.sort().values)
    assert (other.targets != facts.targets).all()


def test_other_facts_need_distinct_answers():
    keys = torch.eye(3)
    for n, targets in ((3, [0, 1, 1]), (1, [0])):
        with pytest.raises(ValueError, match="a target of its own for each"):
            other_facts(FactSet(keys[:n], keys, torch.tensor(targets)), generator=generator(0))


def test_a_bijection_hits_every_value_once():
    assert torch.equal(bijection(50, generator=generator(0)).sort().values, torch.arange(50))


@given(strength=st.floats(0, 50), seed=st.integers(0, 1000))
def test_a_spike_multiplies_the_component_along_its_direction(strength, seed):
    x = sphere(6, 4, generator=generator(seed, 0))
    u = sphere(1, 4, generator=generator(seed, 1))[0]
    spiked = spike(x, 3 * u, strength)
    along, across = spiked @ u, spiked - torch.outer(spiked @ u, u)
    before = x - torch.outer(x @ u, u)
    torch.testing.assert_close(
        along * before.norm(dim=1), (1 + strength) * (x @ u) * across.norm(dim=1)
    )
    torch.testing.assert_close(spiked.norm(dim=1), torch.ones(6, dtype=torch.float64))


def test_a_spike_does_not_depend_on_scales():
    x = sphere(6, 4, generator=generator(0))
    u = sphere(1, 4, generator=generator(1))[0]
    expected = spike(x, u, 2.0)
    torch.testing.assert_close(spike(1e-200 * x, 1e200 * u, 2.0), expected, rtol=1e-12, atol=1e-12)


def test_a_spike_needs_a_strength_and_a_direction():
    x = sphere(2, 3, generator=generator(0))
    with pytest.raises(ValueError, match="strength must be finite and >= 0; got -1"):
        spike(x, x[0], -1.0)
    with pytest.raises(ValueError, match="embeddings must not be zero; row 1 is"):
        spike(x * torch.tensor([[1.0], [0.0]]), x[0], 1.0)
    with pytest.raises(ValueError, match="direction must be finite"):
        spike(x, x[0] / 0, 1.0)
    with pytest.raises(ValueError, match="direction must not be zero"):
        spike(x, torch.zeros(3, dtype=torch.float64), 1.0)


@given(condition=st.floats(1, 1e6), rows=st.sampled_from([3, 5, 20]))
def test_ill_conditioning_sets_the_condition_number_and_keeps_the_rest(condition, rows):
    x = gaussian(rows, 5, generator=generator(rows))
    y = ill_condition(x, condition)
    s, t = torch.linalg.svdvals(x), torch.linalg.svdvals(y)
    assert t[0].item() == pytest.approx(s[0].item(), rel=1e-9)
    assert (t[0] / t[-1]).item() == pytest.approx(condition, rel=1e-8)
    log_s, log_t = s.log(), t.log()  # an affine map keeps ratios of differences
    torch.testing.assert_close(
        (log_t[0] - log_t) * (log_s[0] - log_s[-1]),
        (log_s[0] - log_s) * (log_t[0] - log_t[-1]),
        rtol=1e-7,
        atol=1e-9,
    )
    polar_x, polar_y = (
        U @ Vt for U, _, Vt in (torch.linalg.svd(z, full_matrices=False) for z in (x, y))
    )
    torch.testing.assert_close(polar_x, polar_y, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("matrix", "condition", "message"),
    [
        (EYE + 1, 0.5, "condition_number must be in"),
        (EYE, 10.0, "must have unequal singular values"),
        (EYE.float(), 10.0, "must have unequal singular values"),
        (EYE + 1, 1e30, "condition_number must be in"),
        (EYE * torch.nan, 10.0, "embeddings must be finite"),
        (torch.ones(3, 3, dtype=torch.float64), 10.0, "full rank"),
    ],
)
def test_ill_conditioning_refuses_what_it_cannot_do(matrix, condition, message):
    with pytest.raises(ValueError, match=message):
        ill_condition(matrix, condition)


def test_names_that_share_letters_have_close_embeddings():
    names = ["Niger", "Nigeria", "Iceland"]
    x = trigram_embeddings(names, 256, generator=generator(0))
    assert x[0] @ x[1] > 0.4
    assert abs(x[0] @ x[2]) < 0.3
    with pytest.raises(ValueError, match="number 2 repeats 'niger'"):
        trigram_embeddings(["Niger", "Niger"], 4, generator=generator(0))


@pytest.fixture
def files(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_readers_facts_are_read_in_the_order_of_the_pairs(files):
    keys = files("keys.csv", "name,x,y\nFrance,1,0\nPeru,0,1\nChad,1,1\n")
    values = files("values.csv", "name,x,y,z\nParis,1,0,0\nLima,0,1,0\nRome,0,0,1\n")
    pairs = files("pairs.csv", "\ufeffkey,value\nPeru,Lima\nFrance , Paris\n")
    named = read_facts(pairs, keys, values)
    assert named.key_names == ("Peru", "France")
    assert named.value_names == ("Paris", "Lima", "Rome")
    assert named.facts.targets.tolist() == [1, 0]
    np.testing.assert_array_equal(named.facts.keys, [[0, 1], [1, 0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,x\n", "a header line and at least one row"),
        ("", "a header line and at least one row"),
        ("name\nFrance\n", "line 1: at least 2 columns are needed; got 1"),
        ("name,x,y\nFrance,1\n", "line 2: 2 cells; the header has 3"),
        ("name,x\nFrance,1\nPeru,one\n", "line 3: 'one' is not a number"),
        ("France,1\nPeru,0\n", "line 1: a header line is needed; this one holds numbers"),
        ("name,x\nFrance,1_0\n", "line 2: '1_0' is not a number"),
        ("name,x\nFrance,nan\n", "line 2: 'nan' is not finite"),
        ("name,x\nFrance,-inf\n", "line 2: '-inf' is not finite"),
        ("name,x\nFrance,1\nFrance,2\n", "line 3 repeats 'France'"),
        ("name,x\n ,1\n", "must not be empty"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(files, text, message):
    with pytest.raises(ValueError, match=message):
        read_embeddings(files("keys.csv", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("key,value,note\nFrance,Paris,x\n", "line 1: the header must have 2 cells; got 3"),
        ("key,value\nSpain,Paris\n", "line 2: key 'Spain' is not in"),
        ("key,value\nFrance,Lima\n", "line 2: value 'Lima' is not in"),
        ("key,value\nFrance,Paris\nFrance,Rome\n", "line 3: key 'France' already has a value"),
    ],
)
def test_bad_pairs_are_refused_with_their_line(files, text, message):
    keys = files("keys.csv", "name,x\nFrance,1\n")
    values = files("values.csv", "name,x\nParis,1\nRome,2\n")
    with pytest.raises(ValueError, match=message):
        read_facts(files("pairs.csv", text), keys, values)
