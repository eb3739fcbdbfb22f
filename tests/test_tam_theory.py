"""The scalar theory of tail-average learning, against independent computations."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from lib.tam import phases, scalar
from lib.tam.scalar import saddle

FRACTIONS = [0.01, 0.15, 0.5, 0.9]


def gaussian_mean(function, *kinks):
    """E function(G) by adaptive quadrature, told where the function bends."""
    density = stats.norm.pdf
    ends = sorted({-12.0, 12.0, *(k for k in kinks if -12 < k < 12)})
    return sum(
        integrate.quad(
            lambda x: function(x) * density(x), a, b, epsabs=1e-15, epsrel=1e-12, limit=400
        )[0]
        for a, b in pairwise(ends)
    )


# --- phases ------------------------------------------------------------------------------------


@pytest.mark.parametrize("r", FRACTIONS)
def test_the_gaussian_tail_average_is_the_mean_of_the_top(r):
    edge = stats.norm.ppf(1 - r)
    expected = gaussian_mean(lambda x: x * (x > edge), edge) / r
    assert phases.gaussian_tail_average(r) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@given(st.floats(-8, 8))
def test_the_squared_excess_is_its_integral(t):
    expected = gaussian_mean(lambda x: max(t - x, 0) ** 2, t)
    assert phases.squared_excess(t) == pytest.approx(expected, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("r", FRACTIONS)
def test_the_critical_load_to_ten_digits(r):
    edge = stats.norm.ppf(1 - r)
    kappa = gaussian_mean(lambda x: x * (x > edge), edge) / r
    expected = 1 / gaussian_mean(lambda x: max(kappa - x, 0) ** 2, kappa)
    assert phases.critical_load(r) == pytest.approx(expected, rel=1e-10)


def test_the_critical_load_at_the_ends():
    assert phases.gaussian_tail_average(1.0) == 0.0
    assert phases.critical_load(1.0) == 2.0
    ratios = [phases.critical_load(r) / phases.short_list_load(r) for r in (1e-4, 1e-20, 1e-100)]
    assert abs(ratios[2] - 1) < abs(ratios[1] - 1) < abs(ratios[0] - 1)
    assert ratios[2] == pytest.approx(1, abs=0.02)


@given(st.floats(0.01, 50))
def test_the_satisfied_edge_solves_its_equation(alpha):
    rho = phases.satisfied_edge(alpha)
    assert phases.squared_excess(rho) == pytest.approx(1 / alpha, rel=1e-9)


@pytest.mark.parametrize("r", FRACTIONS)
def test_the_edge_meets_the_tail_average_at_the_critical_load(r):
    alpha, kappa = phases.critical_load(r), phases.gaussian_tail_average(r)
    assert phases.satisfied_edge(alpha) == pytest.approx(kappa, rel=1e-9)
    assert phases.satisfied_edge(0.9 * alpha) > kappa > phases.satisfied_edge(1.1 * alpha)


@pytest.mark.parametrize(
    ("function", "value", "message"),
    [
        (phases.gaussian_tail_average, 0.0, r"r must be in \(0, 1\]; got 0.0"),
        (phases.critical_load, 1.5, r"r must be in \(0, 1\]; got 1.5"),
        (phases.critical_load, float("nan"), r"r must be in \(0, 1\]; got nan"),
        (phases.satisfied_edge, 0.0, "alpha must be positive and finite; got 0.0"),
        (phases.short_list_load, 1.0, r"r must be in \(0, 1\); got 1.0"),
    ],
)
def test_arguments_of_the_phases_are_named(function, value, message):
    with pytest.raises(ValueError, match=message):
        function(value)


# --- competitors -------------------------------------------------------------------------------


@pytest.mark.parametrize("r", FRACTIONS)
@pytest.mark.parametrize("nu", [0.1, 3.0, 1e3])
@pytest.mark.parametrize("beta", [0.5, 10.0, 100.0])
def test_the_smoothed_tail_average_minimises_over_its_threshold(nu, r, beta):
    mu = scalar.tail_threshold(nu, r, beta)
    kink = mu / nu
    width = 40 / (beta * nu)

    def objective(m):
        return m + gaussian_mean(
            lambda z: np.logaddexp(0, beta * (nu * z - m)) / (beta * r),
            kink - width,
            kink,
            kink + width,
        )

    value = scalar.smoothed_tail_average(nu, mu, r, beta)
    assert value == pytest.approx(objective(mu), rel=1e-9)
    for shift in (-0.1, 0.1):
        assert objective(mu + shift * nu) >= value * (1 - 1e-9)
    # Between the plain tail average and log(2) / (beta r) above it.
    plain = nu * phases.gaussian_tail_average(r)
    assert plain * (1 - 1e-9) <= value <= plain + math.log(2) / (beta * r) + 1e-9


@pytest.mark.parametrize("nu", [0.3, 5.0])
def test_the_slope_of_the_tail_average_is_steins(nu):
    def level(n):
        return scalar.smoothed_tail_average(n, scalar.tail_threshold(n, 0.15, 10.0), 0.15, 10.0)

    step = 1e-5 * nu
    numerical = (level(nu + step) - level(nu - step)) / (2 * step)
    mu = scalar.tail_threshold(nu, 0.15, 10.0)
    assert nu / 0.15 * scalar.threshold_density(nu, mu, 10.0) == pytest.approx(numerical, rel=1e-7)


# --- the proximal map --------------------------------------------------------------------------


@given(st.floats(-300, 300), st.floats(-15, 60))
def test_the_prox_solves_its_equation(x, log_chi):
    t = scalar.log_prox_step(np.array([x]), log_chi)[0]
    step = math.exp(t)
    assert t == pytest.approx(log_chi - np.logaddexp(0, x + step), rel=1e-9, abs=1e-9)


def test_the_prox_minimises():
    for x, chi in ((-3.0, 2.0), (0.5, 0.1), (-10.0, 50.0)):
        y = x + math.exp(scalar.log_prox_step(np.array([x]), math.log(chi))[0])
        found = optimize.minimize_scalar(
            lambda v, x=x, chi=chi: (v - x) ** 2 / (2 * chi) + np.logaddexp(0, -v),
            bounds=(x - 1, x + chi + 1),
            method="bounded",
            options={"xatol": 1e-12},
        )
        assert y == pytest.approx(found.x, abs=1e-6)


# --- the saddle --------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.02, 0.29, 2.0])
@pytest.mark.parametrize("r", FRACTIONS)
@pytest.mark.parametrize("ridge", [1e-10, 1e-4, 1.0])
@pytest.mark.parametrize("beta", [0.1, 0.5, 100.0])
def test_both_printed_equations_hold_at_the_saddle(alpha, r, ridge, beta):
    assert max(map(abs, saddle(alpha, r, ridge=ridge, beta=beta).residuals())) < 1e-8


def potential(point, nu, chi):
    """P(nu, chi) by brute force: minimise over s at every node of an adaptive quadrature."""
    mu = scalar.tail_threshold(nu, point.r, point.beta)
    c = scalar.smoothed_tail_average(nu, mu, point.r, point.beta)

    def envelope(g):
        x = nu * g - c
        y = x + math.exp(scalar.log_prox_step(np.array([x]), math.log(chi))[0])
        return (y - x) ** 2 / (2 * chi) + np.logaddexp(0, -y)

    M = gaussian_mean(envelope, c / nu, (c - chi) / nu)
    return point.ridge * nu**2 / 2 - nu**2 / (2 * point.alpha * chi) + M


@pytest.mark.parametrize(("alpha", "ridge"), [(0.1, 1e-2), (0.5, 1e-2), (0.5, 1.0)])
def test_the_saddle_is_one_of_the_potential(alpha, ridge):
    point = saddle(alpha, 0.15, ridge=ridge, beta=5.0)
    nu, chi = point.nu, math.exp(point.log_chi)
    here = potential(point, nu, chi)
    for factor in (0.8, 1.25):
        assert potential(point, nu, factor * chi) < here
    for factor in (0.8, 1.25):  # the best response chi(nu) makes a valley
        best = max(potential(point, factor * nu, c * chi) for c in np.geomspace(0.3, 3, 25))
        assert best > here


POINTS = [saddle(0.1, 0.15, ridge=1e-3, beta=5.0), saddle(0.5, 0.15, ridge=1e-3, beta=5.0)]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", ["competitor_scores", "right_scores", "margins", "percentiles"])
def test_laws_are_consistent(point, name):
    law = getattr(point, name)()
    p = np.array([0.01, 0.3, 0.5, 0.9, 0.999])
    np.testing.assert_allclose(law.cdf(law.ppf(p)), p, rtol=1e-8)
    sample = law.forward(np.random.default_rng(0).standard_normal(200_000))
    assert abs(sample.mean() - law.mean) < 5 * sample.std() / 200_000**0.5
    assert stats.kstest(sample[:5000], law.cdf).pvalue > 1e-3


@pytest.mark.parametrize("point", POINTS)
def test_the_channel_by_monte_carlo(point):
    """Right scores minimise (s - nu g)^2 / (2 chi) + loss(s - c) for every draw of g."""
    g = np.random.default_rng(1).standard_normal(400_000)
    x, chi = point.nu * g - point.c, math.exp(point.log_chi)
    y = x + np.exp(scalar.log_prox_step(x, point.log_chi))
    A = 1 / (1 + np.exp(y))
    np.testing.assert_allclose(y - x, chi * A, rtol=1e-9, atol=1e-12)

    def near(samples, expected):
        return abs(samples.mean() - expected) < 5 * samples.std() / len(g) ** 0.5

    assert near((chi * A) ** 2, point.nu**2 / point.alpha)
    assert near(np.logaddexp(0, -y), point.loss)


def test_the_ridgeless_limit_is_the_phase_transition():
    r = 0.15
    critical = phases.critical_load(r)
    below = [saddle(0.7 * critical, r, ridge=ridge, beta=5.0) for ridge in (1e-4, 1e-7, 1e-10)]
    above = [saddle(1.4 * critical, r, ridge=ridge, beta=5.0) for ridge in (1e-4, 1e-7, 1e-10)]
    assert below[0].nu < below[1].nu < below[2].nu
    assert below[2].loss < 1e-6
    assert above[2].nu == pytest.approx(above[1].nu, rel=1e-3)
    assert above[2].loss > 0.1
    edge = phases.satisfied_edge(0.7 * critical) - phases.gaussian_tail_average(r)
    gaps = [abs(p.margins().ppf(0.1) / p.nu - edge) for p in below]
    assert gaps[2] < gaps[1] < gaps[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 0.0}, "alpha must be positive and finite; got 0.0"),
        ({"r": 0.0}, r"r must be in \(0, 1\]; got 0.0"),
        ({"r": 1.0}, r"r must be in \(0, 1\); at 1"),
        ({"ridge": 0.0}, "ridge must be positive and finite; got 0.0"),
        ({"beta": -1.0}, "beta must be positive and finite; got -1.0"),
        ({"beta": float("inf")}, "beta must be positive and finite; got inf"),
    ],
)
def test_arguments_of_the_saddle_are_named(change, message):
    arguments = {"alpha": 0.3, "r": 0.15, "ridge": 1e-3, "beta": 5.0} | change
    alpha, r = arguments.pop("alpha"), arguments.pop("r")
    with pytest.raises(ValueError, match=message):
        saddle(alpha, r, **arguments)


@given(st.integers(1, 40), st.integers(0, 1000))
def test_the_distance_from_a_law_is_how_far_samples_must_move(n, seed):
    law = saddle(0.4, 0.15, ridge=0.1, beta=5.0).competitor_scores()
    samples = np.random.default_rng(seed).normal(size=n)
    middles = law.ppf((np.arange(n) + 0.5) / n)
    assert law.distance(samples) == pytest.approx(
        stats.wasserstein_distance(samples, middles), rel=1e-9
    )
    assert law.distance(middles[::-1]) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("d", "k"), [(20, 1), (20, 32), (100, 7), (2, 5)])
def test_the_list_number_sits_at_the_critical_load(d, k):
    F = phases.list_number(d, k)
    assert pytest.approx(d * d * phases.critical_load(min(1, k / (F - 1))), rel=1e-9) == F
    with pytest.raises(ValueError, match="d and k must be at least 1; got 0 and 3"):
        phases.list_number(0, 3)
