import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from lib import bounds

F = np.array([32.0, 64, 128, 256, 512])
M = np.array([64.0, 128, 256, 512, 1024])


def test_bits_count_all_maps():
    assert 2 ** bounds.bits_to_store(3, 4) == pytest.approx(4**3)
    with pytest.raises(ValueError, match="F and N must be at least 1; got F = 0, N = 4"):
        bounds.bits_to_store(0, 4)


@given(st.floats(-1, 1))
def test_sketch_moments_agree_with_quadrature(rho):
    """One hidden unit's estimate has mean rho^2 and the stated variance (Lemmas B.2, B.44)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(4)  # exact to degree 7 in each variable
    weights = np.outer(weights, weights) / (2 * np.pi)
    x, z = nodes[:, None], rho * nodes[:, None] + np.sqrt(1 - rho**2) * nodes[None, :]
    mean, second = (weights * x * z).sum() ** 2, (weights * (x * z) ** 2).sum() ** 2
    assert mean == pytest.approx(rho**2, rel=1e-9, abs=1e-12)
    variance = bounds.sketch_variance(1.0, np.array([rho]))
    assert second - mean**2 == pytest.approx(variance[0], rel=1e-9)


@pytest.mark.parametrize("d", [2, 3, 8, 64])
@pytest.mark.parametrize("m", [1.0, 100.0, np.inf])
def test_kernel_variance_integrates_over_isotropic_keys(d, m):
    def density(rho):
        return (1 - rho**2) ** ((d - 3) / 2)

    def mean(f):
        # substitute rho = sin(t): no singularity at the ends for d = 2
        value = lambda t: f(np.sin(t)) * density(np.sin(t)) * np.cos(t)  # noqa: E731
        return integrate.quad(value, -np.pi / 2, np.pi / 2)[0]

    norm = mean(lambda rho: 1.0)
    expected = mean(lambda rho: (1 + 4 * rho**2 + 3 * rho**4) / m + (rho**2 - 1 / d) ** 2) / norm
    assert bounds.kernel_variance(np.array([m]), d)[0] == pytest.approx(expected, rel=1e-7)


def test_terms_of_the_isotropic_bound_are_those_of_equation_56():
    terms = bounds.isotropic_margin_terms(F, M, 64)
    L = np.log(F**2 / 0.5)
    np.testing.assert_allclose(terms["diagonal"], np.sqrt(L / M))
    np.testing.assert_allclose(terms["values"], np.sqrt(L / 63))
    np.testing.assert_allclose(terms["mean"], np.sqrt(L) * np.sqrt(F / 64**3))
    simplified = np.sqrt(L) * np.sqrt(F / (M * 64))
    assert (terms["residual"] >= simplified).all()  # sigma^2 >= 1/m
    wide = bounds.isotropic_margin_terms(F, np.full(5, 8.0), 1024)
    np.testing.assert_allclose(wide["residual"], np.sqrt(L * F / (8 * 1024)), rtol=0.01)


def test_the_exact_kernel_is_the_limit_of_infinite_width():
    exact = bounds.isotropic_margin_terms(F, np.full(5, np.inf), 32)
    wide = bounds.isotropic_margin_terms(F, np.full(5, 1e12), 32)
    assert (exact["diagonal"] == 0).all()
    np.testing.assert_allclose(exact["residual"], wide["residual"], rtol=1e-6)


def test_hypotheses_of_the_theorem_are_reported():
    assert bounds.isotropic_assumptions(256, 512, 64) == {
        "F ≥ 2L": True,
        "m ≥ L³": False,
        "m ≤ d²/L": False,
    }
    assert all(bounds.isotropic_assumptions(256, 2000, 256).values())


@pytest.mark.parametrize(("signal", "log_constant"), [(0.7, 30.0), (0.7, 1.0), (1.0, 1.0)])
def test_fits_recover_a_law_that_holds(signal, log_constant):
    L = bounds.log_factor(F, log_constant=log_constant)
    margins = signal - 2.5 * np.sqrt(F * L / (512 * 64))
    fit = bounds.fit_crosstalk_law(
        F, np.full(5, 512.0), 64, margins, free_signal=signal != 1, free_log=log_constant != 1
    )
    assert fit.r_squared == pytest.approx(1, abs=1e-8)
    assert fit.signal == pytest.approx(signal, rel=1e-3)
    assert fit.crosstalk == pytest.approx(2.5, rel=1e-2)
    np.testing.assert_allclose(fit.predicted, margins, atol=1e-4)


def test_every_freed_constant_can_only_improve_the_fit():
    margins = np.array([0.5, 0.45, 0.3, 0.2, -0.1])
    r2 = [
        bounds.fit_crosstalk_law(
            F, np.full(5, 512.0), 64, margins, free_signal=s, free_log=log
        ).r_squared
        for s, log in ((False, False), (True, False), (True, True))
    ]
    assert r2[0] < r2[1] <= r2[2] + 1e-9


def test_one_constant_needs_one_point_and_two_need_two():
    line = {"free_signal": False, "free_log": False}
    assert bounds.fit_crosstalk_law(F[:2], M[:2], 64, np.array([0.1, 0.2]), **line)
    with pytest.raises(ValueError, match="fitting 2 constants takes as many points; got 1"):
        bounds.fit_crosstalk_law(F[:1], M[:1], 64, np.array([0.1]), free_log=False)


def test_the_failure_probability_enters_the_logarithm():
    np.testing.assert_allclose(bounds.log_factor(F, delta=0.1), np.log(F**2 / 0.1))
    with pytest.raises(ValueError, match=r"delta must be in \(0, 1\)"):
        bounds.log_factor(F, delta=-1.0)


def test_a_hypothesis_changes_sides_at_its_edge():
    edge = next(n for n in range(2, 100) if n >= 2 * np.log(2 * n**2))
    assert bounds.isotropic_assumptions(edge, 10**4, 10**4)["F ≥ 2L"]
    assert not bounds.isotropic_assumptions(edge - 1, 10**4, 10**4)["F ≥ 2L"]


def test_nothing_that_is_not_finite_is_fitted():
    bad = np.array([0.5, 0.4, np.nan, 0.2, 0.1])
    with pytest.raises(ValueError, match="must be finite"):
        bounds.fit_one_constant({"x": F}, bad)
    with pytest.raises(ValueError, match="finite"):
        bounds.fit_crosstalk_law(F, M, 64, bad, free_signal=False, free_log=False)
    with pytest.raises(ValueError, match="not all zero"):
        bounds.fit_one_constant({"x": np.zeros(5)}, np.linspace(0, 1, 5))
    with pytest.raises(ValueError, match="observed must vary"):
        bounds.r_squared(np.full(3, 0.1), np.zeros(3))


def test_constants_do_not_change_sign():
    rising = np.linspace(0.1, 0.5, 5)  # margins that grow with F: the best allowed slope is 0
    assert bounds.fit_crosstalk_law(F, np.full(5, 512.0), 64, rising).crosstalk == 0
    C, _ = bounds.fit_one_constant({"x": F}, np.linspace(1.5, 2, 5))
    assert C == 0


def test_one_constant_is_recovered():
    terms = bounds.isotropic_margin_terms(F, M, 64)
    C, r2 = bounds.fit_one_constant(terms, 1 - 0.8 * sum(terms.values()))
    assert (C, r2) == (pytest.approx(0.8), pytest.approx(1))


def test_fits_refuse_too_few_points_and_equal_margins():
    with pytest.raises(ValueError, match="fitting 3 constants takes as many points; got 2"):
        bounds.fit_crosstalk_law(F[:2], M[:2], 64, np.array([0.1, 0.2]))
    with pytest.raises(ValueError, match="observed must vary"):
        bounds.r_squared(np.ones(3), np.zeros(3))
