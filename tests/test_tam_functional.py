import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from lib.facts import gaussian_facts
from lib.linear import learning
from lib.linear.learning import NotConverged, learn
from lib.numerics import generator
from lib.tam.functional import (
    smoothed_tail_average,
    smoothed_threshold,
    tail_average,
    tail_average_loss,
    tail_size,
)

ROWS = st.integers(0, 10_000).map(
    lambda seed: torch.randn(3, 12, dtype=torch.float64, generator=generator(seed))
)


@pytest.mark.parametrize(
    ("m", "r", "k"),
    [
        (20, 0.15, 3),
        (7, 1 / 7, 1),
        (7, 1.0, 7),
        (10, 0.11, 2),
        (5, 1e-9, 1),
        (1000, 0.1, 100),
        (10**9, 0.3, 3 * 10**8),
        (100_000, 0.3000000005, 30_001),
    ],
)
def test_the_tail_size_is_the_ceiling_of_the_product(m, r, k):
    assert tail_size(m, r) == k


@given(ROWS, st.integers(1, 12))
def test_the_tail_average_is_the_mean_of_the_sorted_top(x, k):
    expected = np.sort(x.numpy(), axis=1)[:, ::-1][:, :k].mean(1)
    np.testing.assert_allclose(tail_average(x, k), expected, rtol=1e-12)
    assert (tail_average(x, k) >= x.sort(1, descending=True).values[:, k - 1] - 1e-12).all()


@given(ROWS)
def test_its_ends_are_the_maximum_and_the_mean(x):
    torch.testing.assert_close(tail_average(x, 1), x.amax(1))
    torch.testing.assert_close(tail_average(x, 12), x.mean(1))


@given(
    ROWS, st.integers(1, 11), st.sampled_from([0.5, 10.0, 1e3]), st.sampled_from([1e-3, 1.0, 1e4])
)
def test_the_threshold_solves_its_equation(x, k, beta, scale):
    mu = smoothed_threshold(scale * x, k, beta)
    # To the precision to which x - mu itself is known.
    slack = 12 * beta * 1e-14 * (scale * x.abs().amax(1) + 1 / beta) + 1e-12
    assert ((torch.sigmoid(beta * (scale * x - mu[:, None])).sum(1) - k).abs() <= slack).all()


@given(ROWS, st.integers(1, 12), st.sampled_from([0.5, 10.0, 1e3]))
def test_the_smoothed_average_is_the_minimum_over_thresholds(x, k, beta):
    value = smoothed_tail_average(x, k, beta)
    for row, smoothed in zip(x.numpy(), value.tolist(), strict=True):

        def objective(mu, row=row):
            return mu + np.logaddexp(0, beta * (row - mu)).sum() / (beta * k)

        low = row.min() - 60 / beta - 5
        found = optimize.minimize_scalar(
            objective,
            bounds=(low, row.max() + 60 / beta),
            method="bounded",
            options={"xatol": 1e-10},
        )
        assert smoothed <= found.fun + 1e-9
        assert k == 12 or smoothed == pytest.approx(found.fun, rel=1e-6, abs=1e-6)
    plain = tail_average(x, k)
    assert (value >= plain - 1e-9).all()
    assert (value <= plain + 12 / k * math.log(2) / beta + 1e-9).all()


def test_the_smoothed_average_of_many_scores():
    """More than fit one product of factors, in either precision."""
    x = 5 * torch.randn(2, 3000, dtype=torch.float64, generator=generator(5))
    mu = smoothed_threshold(x, 450, 1.0)
    shifted = x - mu[:, None]
    expected = mu + torch.logaddexp(shifted, 0 * shifted).sum(1) / 450
    torch.testing.assert_close(smoothed_tail_average(x, 450, 1.0), expected, rtol=1e-12, atol=0)
    coarse = smoothed_tail_average(x.float(), 450, 1.0)
    torch.testing.assert_close(coarse.double(), expected, rtol=1e-5, atol=0)


FACTS = gaussian_facts(9, 4, generator=generator(0))


def test_curvature_is_finite_where_the_tail_is_saturated():
    scores = torch.tensor([[0.3] + [10.0] * 7 + [-10.0] * 7], dtype=torch.float64)
    curvature = tail_average_loss(7, 5.0)(scores, torch.tensor([0])).curvature()
    assert curvature.diagonal.min() >= 0
    assert all(outer.abs().max() <= 1 for outer in curvature.outer)


def test_a_loss_may_be_used_for_other_facts_and_after_overflow():
    loss = tail_average_loss(3, 5.0)
    fresh = learn(FACTS, tail_average_loss(3, 5.0), ridge=1e-2, dense_limit=0).W
    huge = torch.full((4, 4), 1.7e308, dtype=torch.float64)
    with pytest.raises(NotConverged):
        learn(FACTS, loss, ridge=1e-2, start=huge)
    learn(gaussian_facts(7, 4, generator=generator(1)), loss, ridge=1e-2)
    loss(torch.randn(9, 9), FACTS.targets)  # float32
    torch.testing.assert_close(learn(FACTS, loss, ridge=1e-2, dense_limit=0).W, fresh)


@pytest.mark.parametrize("r", [0.05, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("beta", [2.0, 20.0])
def test_derivatives_of_the_loss_agree_with_autograd_and_differences(r, beta):
    k = tail_size(8, r)
    loss = tail_average_loss(k, beta)
    W = 2 * torch.randn(4, 4, dtype=torch.float64, generator=generator(1))

    def total(w):  # autograd through the variational form, with mu held at its optimum
        scores = FACTS.keys @ w.T @ FACTS.values.T
        off = ~torch.eye(9, dtype=torch.bool)
        competitors = scores[off].reshape(9, 8)
        if k == 8:
            level = competitors.mean(1)
        else:
            mu = smoothed_threshold(competitors.detach(), k, beta)
            shifted = beta * (competitors - mu[:, None])
            level = mu + torch.logaddexp(shifted, 0 * shifted).sum(1) / (beta * k)
        return torch.nn.functional.softplus(level - scores.diagonal()).sum()

    value, gradient = learning._objective(W, FACTS, loss, 0.0)
    assert value == pytest.approx(total(W).item(), rel=1e-10)
    torch.testing.assert_close(
        gradient, torch.autograd.functional.jacobian(total, W), rtol=1e-8, atol=1e-10
    )
    hessian = learning._hessian(W, FACTS, loss)
    step = 1e-6
    for p in (0, 5, 11):
        shift = torch.zeros(16, dtype=torch.float64)
        shift[p] = step
        ahead, behind = (
            learning._objective(W + s * shift.reshape(4, 4), FACTS, loss, 0.0)[1].reshape(-1)
            for s in (1, -1)
        )
        torch.testing.assert_close(
            hessian[:, p], (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-6
        )


def test_the_shortest_list_is_the_hinge_on_the_hardest_competitor():
    scores = torch.randn(5, 9, dtype=torch.float64, generator=generator(3))
    targets = torch.arange(5)
    value = tail_average_loss(1, 1e4)(scores, targets).value
    hardest = scores.scatter(1, targets[:, None], -torch.inf).amax(1)
    expected = torch.nn.functional.softplus(hardest - scores.diagonal()[:5])
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-3)


def test_learning_under_the_loss_is_certified():
    learned = learn(FACTS, tail_average_loss(3, 5.0), ridge=1e-2, tolerance=1e-8)
    exact = optimize.minimize(
        lambda w: learning._objective(
            torch.tensor(w).reshape(4, 4), FACTS, tail_average_loss(3, 5.0), 1e-2
        )[0],
        np.zeros(16),
        method="BFGS",
        options={"gtol": 1e-7},
    )
    np.testing.assert_allclose(learned.W.reshape(-1), exact.x, atol=1e-4)
    assert learned.value <= exact.fun + 1e-9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: tail_size(5, 0.0), r"r must be in \(0, 1\]; got 0.0"),
        (lambda x: tail_size(0, 0.5), "m must be an integer of at least 1; got 0"),
        (lambda x: tail_average(x, 0), r"k must be in \[1, 4\]; got 0"),
        (lambda x: tail_average(x, 5), r"k must be in \[1, 4\]; got 5"),
        (lambda x: tail_average(x * torch.nan, 2), "scores must be finite"),
        (lambda x: smoothed_threshold(x, 4, 1.0), "k must be below m = 4"),
        (lambda x: smoothed_tail_average(x, 2, 0.0), "beta must be positive and finite; got 0.0"),
        (lambda x: tail_average_loss(0, 1.0), "k must be an integer of at least 1; got 0"),
        (
            lambda x: tail_average_loss(4, 1.0)(x, torch.tensor([0, 1])),
            r"k must be in \[1, N - 1\] = \[1, 3\]; got 4",
        ),
        (lambda x: tail_average_loss(2, -1.0), "beta must be positive and finite; got -1.0"),
    ],
)
def test_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.randn(2, 4, dtype=torch.float64, generator=generator(0)))
