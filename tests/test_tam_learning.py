import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from lib.facts import FactSet, gaussian_facts
from lib.linear import learning as solver
from lib.numerics import generator
from lib.tam import learning
from lib.tam.comparison import crossing_number, experiment
from lib.tam.functional import smoothed_tail_average, tail_average, tail_average_loss, tail_size
from lib.tam.learning import learn_list, rank, remove_fact, ridge_path

R, BETA = 0.3, 5.0
SMALL = gaussian_facts(9, 4, generator=generator(0))
PERMUTED = FactSet(SMALL.keys, SMALL.values, torch.tensor([3, 1, 4, 0, 8, 2, 7, 5, 6]))


@pytest.mark.parametrize("facts", [SMALL, PERMUTED])
@pytest.mark.parametrize("ridge", [1.0, 1e-2])
def test_learning_solves_the_problem_as_it_is_printed(facts, ridge):
    """An independent solver on eq. 31, with the thresholds as variables beside W."""
    n, d, k = 9, 4, tail_size(8, R)

    def objective(variables):
        x = torch.tensor(variables, requires_grad=True)
        W, mu = x[: d * d].reshape(d, d), x[d * d :]
        scores = facts.keys @ W.T @ facts.values.T
        right = scores[torch.arange(n), facts.targets]
        hinge = torch.nn.functional.softplus(scores - mu[:, None], beta=BETA)
        competitors = hinge.sum(1) - hinge[torch.arange(n), facts.targets]
        losses = torch.nn.functional.softplus(mu + competitors / k - right)
        value = losses.sum() + ridge * n / (2 * d**2) * (W**2).sum()
        value.backward()
        return value.item(), x.grad.numpy()

    exact = optimize.minimize(
        objective, np.zeros(d * d + n), jac=True, method="BFGS", options={"gtol": 1e-9}
    )
    learned = learn_list(facts, R, ridge=ridge, beta=BETA, tolerance=1e-8)
    np.testing.assert_allclose(learned.W.reshape(-1), exact.x[: d * d], atol=1e-6)
    assert learned.value == pytest.approx(exact.fun, rel=1e-10)


@pytest.mark.parametrize("r", [0.05, 0.3, 1.0])
def test_the_distance_is_certified_by_strong_convexity(r):
    rough = learn_list(SMALL, r, ridge=1e-2, beta=BETA, tolerance=0.3)
    exact = learn_list(SMALL, r, ridge=1e-2, beta=BETA, tolerance=1e-9)
    assert (rough.W - exact.W).norm() <= (rough.distance + 1e-9) * rough.W.norm()
    assert rough.distance <= 0.3
    assert exact.distance <= 1e-9


def test_a_path_of_ridges_ends_where_single_solutions_do_but_sooner():
    facts = gaussian_facts(100, 20, generator=generator(1))
    ridges = [1e-2, 1e-3, 1e-4, 1e-5]
    path = list(ridge_path(facts, R, ridges, beta=BETA, tolerance=1e-6))
    cold = [learn_list(facts, R, ridge=x, beta=BETA, tolerance=1e-6) for x in ridges]
    for along, alone in zip(path, cold, strict=True):
        assert (along.W - alone.W).norm() <= 2e-6 * alone.W.norm()
    assert sum(x.iterations for x in path) < sum(x.iterations for x in cold)


def test_a_neighbouring_load_is_a_good_start():
    facts = gaussian_facts(100, 20, generator=generator(2))
    fewer = FactSet(facts.keys[:98], facts.values[:98], facts.targets[:98])
    start = learn_list(fewer, R, ridge=1e-2, beta=BETA, tolerance=1e-6).W
    cold = learn_list(facts, R, ridge=1e-2, beta=BETA, tolerance=1e-6)
    warm = learn_list(facts, R, ridge=1e-2, beta=BETA, tolerance=1e-6, start=start)
    assert (warm.W - cold.W).norm() <= 2e-6 * cold.W.norm()
    assert warm.iterations < cold.iterations


@given(st.integers(0, 1000), st.sampled_from([0.01, 0.3, 1.0]))
def test_ranks_are_what_sorting_says(seed, r):
    W = torch.randn(4, 4, dtype=torch.float64, generator=generator(seed))
    lists = rank(W, PERMUTED, r, beta=BETA)
    k = tail_size(8, r)
    for i in range(9):
        target = PERMUTED.targets[i].item()
        scores = (PERMUTED.values @ W @ PERMUTED.keys[i]).tolist()
        right = scores.pop(target)
        competitors = torch.tensor([scores], dtype=torch.float64)
        assert lists.right[i].item() == pytest.approx(right, rel=1e-12, abs=1e-12)
        smoothed = smoothed_tail_average(competitors, k, BETA).item()
        assert lists.margins[i].item() == pytest.approx(right - smoothed, rel=1e-9, abs=1e-9)
        assert lists.percentiles[i].item() == sum(s <= right for s in scores) / 8
        assert lists.certified[i].item() == (right > tail_average(competitors, k).item())
        if lists.certified[i]:
            assert sum(s > right for s in scores) < k
    assert lists.norm == pytest.approx(W.norm().item() / 4)
    loss = tail_average_loss(k, BETA)
    value = solver._objective(W, PERMUTED, loss, 0.0)[0]
    assert lists.loss == pytest.approx(value / 9, rel=1e-10)


@given(st.floats(0.1, 1.0), st.integers(1, 7))
def test_ties_are_not_certified(score, k):
    """The right value ties with all competitors, whose average may round below it."""
    facts = FactSet(torch.tensor([[score]]).double(), torch.ones(8, 1).double(), torch.tensor([0]))
    lists = rank(torch.eye(1).double(), facts, k / 7, beta=BETA)
    assert not lists.certified.any()
    assert lists.percentiles.item() == 1.0


def test_equal_values_rank_equally():
    twins = torch.cat([SMALL.values, SMALL.values])
    W = torch.randn(4, 4, dtype=torch.float64, generator=generator(3))
    lists = rank(W, FactSet(SMALL.keys, twins, SMALL.targets), 1 / 17, beta=BETA)
    assert not lists.certified.any()
    alone = rank(W, SMALL, R, beta=BETA).percentiles
    torch.testing.assert_close(lists.percentiles, (16 * alone + 1) / 17)


def test_blocks_of_queries_do_not_change_the_ranks(monkeypatch):
    W = torch.randn(4, 4, dtype=torch.float64, generator=generator(3))
    whole = rank(W, PERMUTED, R, beta=BETA)
    monkeypatch.setattr(learning, "CACHED_ENTRIES", 20)
    parts = rank(W, PERMUTED, R, beta=BETA)
    for name in ("right", "margins", "certified", "percentiles"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))


@pytest.mark.parametrize("k", [1, 3, 8])
def test_products_with_the_hessian_are_those_of_the_dense_one(k):
    loss = tail_average_loss(k, BETA)
    W, X = torch.randn(2, 4, 4, dtype=torch.float64, generator=generator(4))
    dense = solver._hessian(W, PERMUTED, loss) @ X.reshape(-1)
    product = solver.hessian_product(W, PERMUTED, loss, X)
    torch.testing.assert_close(product.reshape(-1), dense, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("fact", [0, 4])
def test_removing_a_fact_learns_without_it(fact):
    ridge, n = 0.1, 9
    W = learn_list(PERMUTED, R, ridge=ridge, beta=BETA, tolerance=1e-8).W
    removal = remove_fact(W, PERMUTED, fact, R, ridge=ridge, beta=BETA, tolerance=1e-8)
    target = PERMUTED.targets[fact].item()
    keep = [i for i in range(n) if i != fact]
    candidates = [j for j in range(n) if j != target]
    others = FactSet(
        PERMUTED.keys[keep],
        PERMUTED.values[candidates],
        torch.tensor([candidates.index(PERMUTED.targets[i].item()) for i in keep]),
    )
    loss, coefficient = tail_average_loss(tail_size(n - 1, R), BETA), ridge * n / 16
    rest = solver.learn(others, loss, ridge=coefficient, tolerance=1e-8).W
    torch.testing.assert_close(removal.change, W - rest, rtol=0, atol=1e-6)
    hessian = solver._hessian(rest, others, loss) + coefficient * torch.eye(16).double()
    scores = PERMUTED.values @ W @ PERMUTED.keys[fact]
    level = smoothed_tail_average(scores[candidates][None], tail_size(n - 1, R), BETA)
    slope = 1 / (1 + math.exp(scores[target].item() - level.item()))
    feature = torch.outer(PERMUTED.values[target], PERMUTED.keys[fact]).reshape(-1)
    predicted = slope * torch.linalg.solve(hessian, feature)
    torch.testing.assert_close(removal.predicted.reshape(-1), predicted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("load", "ridge", "of_norm", "of_loss"),
    [(0.1, 1.0, 2, 5), (0.2, 1.0, 2, 2), (0.4, 1.0, 2, 1), (0.2, 1e-6, 6, 12)],
)
@pytest.mark.parametrize("d", [60, 90])
def test_order_parameters_agree_with_the_scalar_theory(d, load, ridge, of_norm, of_loss):
    """To a few times 1/d in the mean over three seeds, as in chapter 4."""
    runs = [experiment(load, 0.15, d, 1, seed, ridge=ridge, beta=5.0) for seed in range(3)]
    norm, loss = (np.mean([getattr(run.lists, name) for run in runs]) for name in ("norm", "loss"))
    theory = runs[0].theory
    assert abs(norm / theory.nu - 1) <= of_norm / d
    assert abs(loss / theory.loss - 1) <= of_loss / d


def test_a_row_says_how_far_simulation_and_theory_are_apart():
    run = experiment(0.2, 0.15, 20, 0, ridge=1e-2, beta=5.0)
    row = run.row()
    F = len(run.facts)
    assert (row["facts"], row["load"]) == (F, F / 400) == (80, 0.2)
    assert run.theory.r == tail_size(79, 0.15) / 79
    p = (np.arange(F) + 0.5) / F
    expected = run.theory.percentiles().ppf(p) - np.sort(run.lists.percentiles.numpy())
    assert row["percentiles"] == pytest.approx(abs(expected).mean(), rel=1e-12)
    margins = run.theory.margins().ppf(p) / run.theory.nu
    expected = margins - np.sort(run.lists.margins.numpy()) / run.lists.norm
    assert row["margins"] == pytest.approx(abs(expected).mean(), rel=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: learn_list(SMALL, 0.0, ridge=1.0, beta=1.0), r"r must be in \(0, 1\]; got 0.0"),
        (lambda: learn_list(SMALL, 0.5, ridge=0.0, beta=1.0), "ridge must be positive"),
        (lambda: learn_list(SMALL, 0.5, ridge=1.0, beta=-1.0), "beta must be positive"),
        (lambda: rank(torch.eye(4).double(), SMALL, 0.5, beta=0.0), "beta must be positive"),
        (
            lambda: rank(torch.eye(4).double() * torch.inf, SMALL, 0.5, beta=1.0),
            "W must be finite",
        ),
        (
            lambda: rank(torch.eye(3).double(), SMALL, 0.5, beta=1.0),
            r"W must be finite, of shape \(4, 4\)",
        ),
        (lambda: rank(torch.eye(4), SMALL, 0.5, beta=1.0), "in torch.float64; got"),
        (
            lambda: remove_fact(torch.eye(4).double(), SMALL, 9, 0.5, ridge=1.0, beta=1.0),
            r"fact must be in \[0, 9\); got 9",
        ),
        (
            lambda: remove_fact(
                torch.eye(4).double(),
                FactSet(SMALL.keys[:2], SMALL.values, SMALL.targets[:2]),
                0,
                0.5,
                ridge=1.0,
                beta=1.0,
            ),
            "every value must answer exactly one key",
        ),
        (
            lambda: remove_fact(torch.eye(4).double(), SMALL, 0, 1.0, ridge=1.0, beta=1.0),
            "r must leave a competitor out of the list; 1.0 of 9 does not",
        ),
        (lambda: experiment(0.0, 0.5, 10, 0, ridge=1.0, beta=1.0), "alpha must be positive"),
        (
            lambda: experiment(0.02, 0.5, 10, 0, ridge=1.0, beta=1.0),
            r"alpha d\^2 must be at least 3 facts; got 2",
        ),
        (
            lambda: experiment(0.03, 0.9, 10, 0, ridge=1.0, beta=1.0),
            "r must leave a competitor out of the list; 0.9 of 3 facts does not",
        ),
    ],
)
def test_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_crossing_number_brackets_the_level():
    stream = gaussian_facts(80, 8, generator=generator(7))
    loss, ridge = tail_average_loss(2, 1.0), 1e-4
    found = crossing_number(stream, loss, ridge=ridge, level=0.25)

    def average(F):
        facts = FactSet(stream.keys[:F], stream.values[:F], stream.targets[:F])
        W = solver.learn(facts, tail_average_loss(2, 1.0), ridge=ridge * F / 64).W
        return solver._objective(W, facts, tail_average_loss(2, 1.0), 0.0)[0] / F

    assert average(found) <= 0.25 < average(found + 1)
    with pytest.raises(ValueError, match="stream must be longer: all 10 facts"):
        short = FactSet(stream.keys[:10], stream.values[:10], stream.targets[:10])
        crossing_number(short, loss, ridge=ridge, level=0.25)
    with pytest.raises(ValueError, match="stream must have value i for fact i"):
        crossing_number(PERMUTED, loss, ridge=ridge, level=0.25)
    with pytest.raises(ValueError, match="level must be positive and finite; got 0"):
        crossing_number(stream, loss, ridge=ridge, level=0.0)
