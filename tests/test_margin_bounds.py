import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.bounds import isotropic_margin_terms, kernel_variance
from lib.constructions.hebbian import feature_kernel, sketched_k2, whitened_kernel
from lib.facts import random_facts, sphere, spike
from lib.geometry import Spread, gram_geometry, kernel_geometry, value_spread
from lib.margin_bounds import (
    absorbed_bound,
    arbitrary_keys_bound,
    arbitrary_values_bound,
    column_energies,
    fit_terms,
    general_bound,
    lost_margin_floor,
    welch_floor,
)
from lib.numerics import generator

SEEDS = st.integers(0, 10_000)


def psd(F, m, seed):
    features = torch.randn(F, m, dtype=torch.float64, generator=generator(seed))
    return features @ features.T / m


@settings(max_examples=1000)
@given(SEEDS, st.integers(3, 12), st.integers(1, 20), st.integers(2, 8), st.booleans())
def test_the_deterministic_bounds_hold_for_every_memory(seed, F, m, d, spiked):
    """Also where condition 40 fails, as long as V_min is replaced by what it is."""
    values = sphere(F, d, generator=generator(seed, 1))
    if spiked:
        values = spike(values, torch.ones(d, dtype=torch.float64), 3.0)
    g = gram_geometry(psd(F, m, seed), values, centre=1 / d)
    assert g.positive  # unit vectors
    slack = 1e-12 * (1 + abs(g.margin))
    assert general_bound(g).value <= g.margin + slack
    assert absorbed_bound(g).value <= g.margin + slack
    crosstalk = math.sqrt(g.column_energy_truncated * g.value_energy_truncated)
    assert g.crosstalk_truncated <= crosstalk * g.coupling_truncated + slack  # eq. 35
    mean = g.centre * g.mean_alignment
    effective = mean + math.sqrt(g.value_energy_truncated) * g.coupling_effective
    centred = math.sqrt(g.column_energy_centred * g.value_energy_truncated) * g.coupling_centred
    assert g.crosstalk_truncated <= effective + slack  # Lemma B.18
    assert effective <= mean + centred + slack


@pytest.mark.parametrize("whitening", ["none", "full"])
def test_the_bounds_hold_for_real_memories(whitening):
    facts = random_facts(60, 16, generator=generator(0))
    mlp = sketched_k2(facts, 128, whitening="none", generator=generator(1))
    kernel = feature_kernel(mlp) if whitening == "none" else whitened_kernel(mlp, facts.keys)
    g = kernel_geometry(kernel, facts.keys, facts.answers)
    assert general_bound(g).value <= g.margin
    assert absorbed_bound(g).value <= g.margin
    assert general_bound(g).deterministic
    assert general_bound(g).assumptions == {"V_min ≥ 0": True}


def test_the_condition_is_reported_when_it_fails():
    values = torch.tensor([[1.0, 0], [2, 0], [0, 1]], dtype=torch.float64)
    bound = general_bound(gram_geometry(torch.eye(3).double(), values))
    assert bound.assumptions == {"V_min ≥ 0": False}
    assert bound.value == -1.0


def test_the_ladder_has_the_terms_of_the_table():
    facts = random_facts(200, 64, generator=generator(0))
    mlp = sketched_k2(facts, 512, whitening="none", generator=generator(1))
    g = kernel_geometry(feature_kernel(mlp), facts.keys, facts.answers)
    L = math.log(200**2 / 0.5)
    keys = arbitrary_keys_bound(g, 64)
    assert keys.terms["cross-talk"] == pytest.approx(
        -math.sqrt(g.column_energy) * math.sqrt(L / 63) * math.sqrt(1 + L / 198)
    )
    assert keys.terms["values"] == pytest.approx(-g.diagonal * math.sqrt(L / 63))
    spread = value_spread(facts.answers)
    values = arbitrary_values_bound(g, spread, 512, 64)
    isotropic = isotropic_margin_terms(np.array([200.0]), np.array([512.0]), 64)
    assert values.terms["diagonal"] == pytest.approx(-isotropic["diagonal"].item() * g.separation)
    sigma = isotropic["residual"].item() / math.sqrt(200 / 64 * L)
    assert values.terms["mean"] == pytest.approx(-g.mean_alignment * sigma * math.sqrt(L))
    assert values.terms["residual"] == pytest.approx(
        -math.sqrt(g.value_energy * spread.value * L) * sigma
    )
    assert values.assumptions == {
        "V_min ≥ 0": True,
        "F - 2 ≥ L": True,
        "m ≥ L³": False,
        "m ≤ d²/L": False,
    }


def test_constants_of_terms_are_recovered_and_stay_nonnegative():
    x = np.linspace(0, 1, 6)
    terms = {"signal": 1 + x, "loss": -(x**2)}
    fit = fit_terms(terms, 0.9 * terms["signal"] + 2 * terms["loss"])
    assert fit.constants == {"signal": pytest.approx(0.9), "loss": pytest.approx(2.0)}
    assert fit.r_squared == pytest.approx(1)
    assert fit_terms(terms, 1 + x + x**2).constants["loss"] == 0
    with pytest.raises(ValueError, match="fitting 2 constants takes as many points; got 1"):
        fit_terms({n: t[:1] for n, t in terms.items()}, np.array([0.3]))
    with pytest.raises(ValueError, match="terms must be finite"):
        fit_terms({"signal": (x + 1) * np.inf}, x)
    with pytest.raises(ValueError, match="observed must vary"):
        fit_terms(terms, np.ones(6))


@given(SEEDS, st.integers(2, 15), st.integers(1, 20))
def test_no_kernel_of_rank_m_has_less_energy_than_the_welch_floor(seed, F, m):
    K = psd(F, m, seed)
    energies = column_energies(K)
    floor = welch_floor(K.diagonal(), m)
    assert energies.mean() >= floor - 1e-10 * K.square().sum() / F
    assert energies.max() >= energies.mean() - 1e-12


@pytest.mark.parametrize(("F", "m"), [(12, 5), (30, 30), (40, 7)])
def test_tight_frames_meet_the_floor(F, m):
    basis = torch.linalg.qr(torch.randn(F, m, dtype=torch.float64, generator=generator(F, m))).Q
    K = basis @ basis.T
    floor = welch_floor(K.diagonal(), m)
    assert column_energies(K).mean().item() == pytest.approx(floor, rel=1e-10, abs=1e-14)


def test_the_floor_under_lost_margins_is_that_of_the_energy_which_rank_forces():
    ranks = np.array([10.0, 30, 90, 200])
    energy = [welch_floor(torch.ones(90).double(), int(m)) for m in ranks]
    expected = np.sqrt(np.maximum(energy, 0) * math.log(90) / 16)
    np.testing.assert_allclose(lost_margin_floor(90, ranks, 16), expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="m positive; got F = 90, d = 16, m = 0"):
        lost_margin_floor(90, 0, 16)


@pytest.mark.parametrize(("F", "d", "m"), [(64, 48, 128), (128, 64, 256), (256, 96, 512)])
def test_statistics_of_isotropic_facts_are_within_constants_of_their_bounds(F, d, m):
    """The four inequalities of Theorem B.20, with C_0 = 1.

    A difference of unit vectors is at most 2 long, and the largest of e^L Gaussians about
    sqrt(2 L): 2 sqrt(2) in B_Y, 4 in E_v, and 2 for the two that have no such factors.
    """
    L = math.log(F**2 / 0.5)
    sigma = math.sqrt(kernel_variance(m, d))
    for seed in range(5):
        facts = random_facts(F, d, generator=generator(seed))
        mlp = sketched_k2(facts, m, generator=generator(seed, 1))
        g = kernel_geometry(feature_kernel(mlp), facts.keys, facts.answers, centre=1 / d)
        assert g.mean_alignment <= 2 * math.sqrt(2 * F * L / d)
        assert g.value_energy_truncated <= 4 * (F - 2 + L) / (d - 1)
        assert math.sqrt(g.column_energy_centred) <= 2 * sigma * math.sqrt(F - 2 + L)
        assert g.coupling_centred <= 2 * math.sqrt(L / (F - 2))
        residual = (
            4 * sigma * math.sqrt(L * (F - 2 + L) / (d - 1)) * math.sqrt((F - 2 + L) / (F - 2))
        )
        assert g.crosstalk_truncated <= 2 * math.sqrt(2 * F * L / d**3) + residual


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: arbitrary_keys_bound(g, 1), "d must be an integer of at least 2; got 1"),
        (lambda g: arbitrary_values_bound(g, Spread(1.0, True), 0, 4), "m must be an integer"),
        (lambda g: welch_floor(torch.ones(3), 0), "m must be an integer of at least 1; got 0"),
        (lambda g: welch_floor(-torch.ones(3), 2), "diagonal must be finite and not negative"),
    ],
)
def test_arguments_are_checked(call, message):
    g = gram_geometry(torch.eye(4).double(), torch.eye(4).double())
    with pytest.raises(ValueError, match=message):
        call(g)
