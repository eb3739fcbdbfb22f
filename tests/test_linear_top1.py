import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from lib.decoding import retrieve
from lib.facts import FactSet, gaussian_facts
from lib.linear.stores import linear_memory, outer_product_store
from lib.linear.top1 import (
    conjectured_number,
    critical_number_of_seed,
    facts_lost,
    independent_surrogate,
    matched_facts,
    sparse_repair,
)
from lib.numerics import generator


def test_scores_of_the_correlation_matrix_memory_have_their_moments():
    """Means 1 and 0; variances (1 + 2/d)^2 - 1 + (n-1)/d^2 and (n-2)/d^2 + 2 (1 + 2/d)/d."""
    n, d, draws = 60, 30, 300
    own, other = [], []
    for s in range(draws):
        facts = gaussian_facts(n, d, generator=generator(s))
        scores = facts.keys @ outer_product_store(facts.keys, facts.values).T @ facts.values.T
        own.append(scores.diagonal())
        other.append(scores[0, 1:])
    own, other = torch.stack(own).numpy(), torch.stack(other).numpy()

    def near(samples, expected):  # one sample per draw: rows are dependent
        per_draw = samples.mean(1)
        return abs(per_draw.mean() - expected) < 5 * per_draw.std() / draws**0.5

    assert near(own, 1)
    assert near(other, 0)
    assert near((own - 1) ** 2, (1 + 2 / d) ** 2 - 1 + (n - 1) / d**2)
    assert near(other**2, (n - 2) / d**2 + 2 * (1 + 2 / d) / d)


@pytest.mark.parametrize("seed", range(10))
def test_adaptive_repair_stores_everything_where_the_plain_memory_fails(seed):
    d = 200
    facts = gaussian_facts(matched_facts(d, 7.0), d, generator=generator(seed, d))
    plain = retrieve(linear_memory(outer_product_store(facts.keys, facts.values)), facts)
    repair = sparse_repair(facts, rounds=8)
    assert plain.accuracy < 1
    assert repair.after.accuracy == 1


def test_a_repair_is_what_it_says():
    d = 60
    facts = gaussian_facts(80, d, generator=generator(0))
    repair = sparse_repair(facts, reserve=0.2, gamma=0.1, lift=0.3)
    main = repair.main
    assert main == 48
    assert not repair.W[:main, main:].any()
    assert not repair.W[main:, :main].any()
    assert torch.equal(repair.base[:main, :main], repair.W[:main, :main])
    scores = facts.keys @ repair.base.T @ facts.values.T
    own = scores.diagonal()
    hardest = scores.clone().fill_diagonal_(-torch.inf).amax(1)
    assert torch.equal(repair.deficient, (own <= 0.9) | (hardest >= 0.8))
    lifted = (facts.keys @ (repair.W - repair.base).T @ facts.values.T).diagonal()
    reserve_keys, reserve_values = facts.keys[:, main:], facts.values[:, main:]
    crosstalk = (reserve_keys @ reserve_keys.T) * (reserve_values @ reserve_values.T)
    gains = crosstalk.diagonal()
    expected = crosstalk @ (repair.lifts / gains)
    torch.testing.assert_close(lifted, expected, rtol=1e-9, atol=1e-12)
    assert (repair.lifts[repair.deficient] == 0.3).all()
    assert not repair.lifts[~repair.deficient].any()
    torch.testing.assert_close(
        repair.after.margins, retrieve(linear_memory(repair.W), facts).margins
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reserve": 0.0}, "reserve must leave a coordinate on each side of 6; got 0.0"),
        ({"reserve": 0.99}, "reserve must leave a coordinate on each side of 6; got 0.99"),
        ({"gamma": 0.5}, r"gamma must be in \(0, 1/2\); got 0.5"),
        ({"lift": 0.0}, "lift must be positive and finite; got 0.0"),
        ({"rounds": 0}, "rounds must be an integer of at least 1; got 0"),
    ],
)
def test_repair_arguments_are_named(change, message):
    facts = gaussian_facts(5, 6, generator=generator(0))
    with pytest.raises(ValueError, match=message):
        sparse_repair(facts, **{"reserve": 0.3, "gamma": 0.1} | change)


def test_repair_needs_one_dimension():
    facts = gaussian_facts(5, 6, generator=generator(0))
    with pytest.raises(ValueError, match="keys and values must share a dimension; got 6, 5"):
        sparse_repair(
            FactSet(facts.keys, facts.values[:, :5], facts.targets), reserve=0.3, gamma=0.1
        )


def test_losses_are_counted_for_the_same_facts():
    facts = gaussian_facts(matched_facts(60, 6.0), 60, generator=generator(4, 2))
    W = outer_product_store(facts.keys, facts.values)
    assert facts_lost(60, 6.0, 4, 2) == int((~retrieve(linear_memory(W), facts).stored).sum()) > 0
    repaired = sparse_repair(facts, rounds=3).after
    assert facts_lost(60, 6.0, 4, 2, rounds=3) == int((~repaired.stored).sum())


@pytest.mark.parametrize("n", [2, 3, 10, 60])
def test_the_surrogate_minimises_over_its_threshold(n):
    estimate, error = independent_surrogate(n, draws=50, generator=generator(n))
    g = torch.randn(50, n, dtype=torch.float64, generator=generator(n)).numpy()
    distances = [
        minimize_scalar(
            lambda t, row=row: (t - row[0]) ** 2 + (np.maximum(row[1:] - t, 0) ** 2).sum(),
            bounds=(-10, 10),
            method="bounded",
            options={"xatol": 1e-10},
        ).fun
        for row in g
    ]
    assert estimate == pytest.approx(np.mean(distances), rel=1e-6)
    assert error == pytest.approx(np.std(distances, ddof=1) / 50**0.5, rel=1e-6)


def test_the_surrogate_of_two_facts_is_one_half():
    # min_t (t - g1)^2 + (g2 - t)_+^2 = (g2 - g1)_+^2 / 2, with mean 2 / 2 / 2.
    estimate, error = independent_surrogate(2, draws=40_000, generator=generator(0))
    assert abs(estimate - 0.5) < 5 * error


def test_numbers_of_facts_solve_their_equations():
    n = conjectured_number(50)
    assert n * (2 * math.log(n) - 3 * math.log(math.log(n))) == pytest.approx(2500)
    n = matched_facts(100, 4.0)
    assert 100**2 / (n * math.log(n)) == pytest.approx(4, rel=0.01)
    assert matched_facts(10, 1e-9) > 1e8
    with pytest.raises(ValueError, match="ratio must be in"):
        matched_facts(3, 10.0)
    with pytest.raises(ValueError, match="d must be at least 3; got 2"):
        conjectured_number(2)


def test_a_critical_number_lies_near_the_conjecture():
    n = critical_number_of_seed(12, 0)
    assert n == critical_number_of_seed(12, 0)
    assert 0.75 < n / conjectured_number(12) < 1.25
