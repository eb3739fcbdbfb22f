import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.constructions.hebbian import (
    WHITENINGS,
    feature_kernel,
    hebbian_form,
    k2_kernel,
    kernel_memory,
    signal_and_crosstalk,
    sketched_k2,
    whitened_kernel,
)
from lib.decoding import retrieve
from lib.facts import FactSet, gaussian, random_facts, sphere
from lib.mlp import GATES, random_mlp
from lib.numerics import generator

FACTS = random_facts(40, 6, generator=generator(0))


def close(actual, expected, rtol=1e-9):
    torch.testing.assert_close(actual, expected, rtol=0, atol=rtol * expected.abs().max().item())


def test_the_sketch_is_the_average_over_hidden_units():
    mlp = sketched_k2(FACTS, 15, generator=generator(1))
    A, G = mlp.A * 15**0.25, mlp.G * 15**0.25  # standard Gaussian rows
    for i, j in ((0, 1), (2, 2)):
        x, z = FACTS.keys[i], FACTS.keys[j]
        expected = np.mean(
            [((a @ x) * (a @ z) * (g @ x) * (g @ z)).item() for a, g in zip(A, G, strict=True)]
        )
        assert feature_kernel(mlp)(x[None], z[None]).item() == pytest.approx(expected, rel=1e-9)


def test_the_raw_mlp_is_the_memory_of_its_own_kernel():
    mlp = sketched_k2(FACTS, 15, generator=generator(1))
    memory = kernel_memory(feature_kernel(mlp), FACTS.keys, FACTS.answers)
    fresh = sphere(30, 6, generator=generator(2))
    close(mlp(fresh), memory(fresh))


def test_the_mlp_tends_to_the_exact_quadratic_memory():
    memory = kernel_memory(k2_kernel, FACTS.keys, FACTS.answers)
    exact = memory(FACTS.keys)
    errors = [
        (sketched_k2(FACTS, m, generator=generator(3))(FACTS.keys) - exact).norm() / exact.norm()
        for m in (100, 10_000)
    ]
    assert errors[1] < errors[0] / 5  # m^(-1/2) says 10


@pytest.mark.parametrize("entries", [1, 50, 10**6])
def test_a_kernel_memory_is_its_sum_whatever_the_block(entries):
    queries = sphere(7, 6, generator=generator(2))
    memory = kernel_memory(k2_kernel, FACTS.keys, FACTS.answers, entries=entries)
    expected = sum(
        torch.outer((queries @ k) ** 2, c) for k, c in zip(FACTS.keys, FACTS.answers, strict=True)
    )
    close(memory(queries), expected)


@pytest.mark.parametrize("width", [10, 40, 80])
@pytest.mark.parametrize("whitening", WHITENINGS)
def test_readouts_follow_algorithm_1(whitening, width):
    ridge, F = 1e-3, len(FACTS)
    mlp = sketched_k2(FACTS, width, generator=generator(1), whitening=whitening, ridge=ridge)
    Phi, C = mlp.features(FACTS.keys), FACTS.answers
    raw, Sigma = C.T @ Phi / F, Phi.T @ Phi / F
    expected = {
        "none": raw * F,
        "diag": raw / (Sigma.diagonal() + ridge),
        "full": raw @ torch.linalg.inv(Sigma + ridge * torch.eye(width, dtype=Phi.dtype)),
    }[whitening]
    close(mlp.B.detach(), expected)


def test_a_whitened_readout_interpolates_once_it_is_wide_enough():
    facts = random_facts(
        15, 6, generator=generator(5)
    )  # F < d (d + 1)/2: features can separate all
    mlp = sketched_k2(facts, 30, generator=generator(1), whitening="full", ridge=0.0)
    close(mlp(facts.keys), facts.answers, rtol=1e-8)


def test_codes_take_the_place_of_values_in_the_readout():
    codes = gaussian(40, 3, generator=generator(4))
    mlp = sketched_k2(FACTS, 15, generator=generator(1), codes=codes)
    close(mlp.B.detach(), codes[FACTS.targets].T @ mlp.features(FACTS.keys))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_single_and_double_precision_see_the_same_weights(dtype):
    mlp = sketched_k2(FACTS.to(dtype=dtype), 15, generator=generator(1), whitening="full")
    exact = sketched_k2(FACTS, 15, generator=generator(1), whitening="full")
    assert mlp.B.dtype == mlp.A.dtype == dtype
    torch.testing.assert_close(mlp.A.double(), exact.A.detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [1.0, 100.0, 300.0, 1000.0])
@pytest.mark.parametrize("width", [30, 100])
def test_a_ridge_too_small_for_normal_equations_is_still_solved(scale, width):
    facts = FactSet(scale * FACTS.keys, FACTS.values, FACTS.targets)
    mlp = sketched_k2(facts, width, generator=generator(1), whitening="full")
    U, s, Vt = torch.linalg.svd(mlp.features(facts.keys), full_matrices=False)
    expected = FACTS.answers.T @ U @ torch.diag(s / (s**2 + 1e-6 * len(facts))) @ Vt
    fresh = scale * sphere(30, 6, generator=generator(2))
    close(mlp(fresh), mlp.features(fresh) @ expected.T, rtol=1e-6)


def test_single_precision_knows_its_own_rank():
    mlp = random_mlp(6, 40, 4, "identity", generator=generator(0)).float()
    keys, fresh = (sphere(200, 6, generator=generator(i)).float() for i in (1, 2))
    memory = hebbian_form(mlp, keys, whitened_kernel(mlp, keys))
    close(memory(fresh), mlp(fresh), rtol=1e-3)
    exact = sketched_k2(FACTS, 40, generator=generator(1), whitening="full", ridge=0.0)
    single = sketched_k2(
        FACTS.to(dtype=torch.float32), 40, generator=generator(1), whitening="full", ridge=0.0
    )
    close(single.B.double(), exact.B.detach(), rtol=1e-2)


def test_constructed_mlps_are_frozen_and_use_the_papers_ridge():
    mlp = sketched_k2(FACTS, 15, generator=generator(1), whitening="full")
    assert not any(p.requires_grad for p in mlp.parameters())
    explicit = sketched_k2(FACTS, 15, generator=generator(1), whitening="full", ridge=1e-6)
    assert torch.equal(mlp.B, explicit.B)


def test_a_feature_that_is_always_zero_gets_no_weight():
    zero = FactSet(torch.zeros(2, 3).double(), FACTS.values, torch.tensor([0, 0]))
    mlp = sketched_k2(zero, 4, generator=generator(0), whitening="diag", ridge=0.0)
    assert (mlp.B == 0).all()


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_memory_of_no_queries_has_no_answers():
    assert kernel_memory(k2_kernel, FACTS.keys, FACTS.answers)(FACTS.keys[:0]).shape == (0, 6)
    with pytest.raises(ValueError, match="codes must have one row per key, 40; got 39"):
        kernel_memory(k2_kernel, FACTS.keys, FACTS.answers[:39])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "width must be an integer of at least 1; got 0"),
        ({"codes": FACTS.values * torch.nan}, "codes must be finite"),
        ({"codes": FACTS.values.float()}, "codes must be finite and torch.float64"),
        ({"whitening": "half"}, "whitening must be one of none, diag, full; got 'half'"),
        ({"ridge": -1.0, "whitening": "full"}, "ridge must be finite and >= 0; got -1.0"),
        ({"ridge": -1.0, "whitening": "diag"}, "ridge must be finite and >= 0; got -1.0"),
        (
            {"codes": torch.zeros(3, 2, dtype=torch.float64)},
            "codes must have 40 rows, as values; got 3",
        ),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"width": 4, "generator": generator(0)} | change
    with pytest.raises(ValueError, match=message):
        sketched_k2(FACTS, **arguments)


# --- Theorem B.1 -------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", GATES)
@given(seed=st.integers(0, 1000), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_whitened_hebbian_memory_equals_the_mlp(gate, seed, scale):
    mlp = random_mlp(6, 10, 4, gate, generator=generator(seed, 0))
    keys = gaussian(60, 6, generator=generator(seed, 1))
    memory = hebbian_form(mlp, keys, whitened_kernel(mlp, keys))
    for inputs in (keys, scale * gaussian(20, 6, generator=generator(seed, 2))):
        close(memory(inputs), mlp(inputs))


@given(seed=st.integers(0, 1000), F=st.integers(1, 9))
def test_with_fewer_facts_than_features_the_memory_is_the_mlp_on_their_span(seed, F):
    mlp = random_mlp(6, 10, 4, "silu", generator=generator(seed, 0))
    keys = gaussian(F, 6, generator=generator(seed, 1))
    fresh = gaussian(20, 6, generator=generator(seed, 2))
    memory = hebbian_form(mlp, keys, whitened_kernel(mlp, keys))
    close(memory(keys), mlp(keys))
    Phi = mlp.features(keys)
    projector = torch.linalg.pinv(Phi, rtol=1e-11) @ Phi
    close(memory(fresh), mlp.features(fresh) @ projector.T @ mlp.B.T, rtol=1e-8)


def test_a_ridge_shrinks_every_direction_by_its_share():
    mlp = random_mlp(6, 10, 4, "gelu", generator=generator(0))
    keys, fresh = gaussian(60, 6, generator=generator(1)), gaussian(20, 6, generator=generator(2))
    memory = hebbian_form(mlp, keys, whitened_kernel(mlp, keys, ridge=0.1))
    Sigma = mlp.features(keys).T @ mlp.features(keys) / 60
    ridge = 0.1 * torch.eye(10, dtype=torch.float64)
    missing = mlp.features(fresh) @ torch.linalg.inv(Sigma + ridge) @ ridge @ mlp.B.T
    close(mlp(fresh) - memory(fresh), missing)


@given(seed=st.integers(0, 1000))
def test_whitening_minimises_the_energy_of_the_gram_matrix(seed):
    """Lemma B.3: among preconditioners of equal mean self-kernel, the inverse covariance wins."""
    mlp = random_mlp(4, 5, 2, "identity", generator=generator(seed, 0))
    keys = gaussian(20, 4, generator=generator(seed, 1))
    Phi = mlp.features(keys)
    root = gaussian(5, 5, generator=generator(seed, 2))
    M = root @ root.T
    M = M * 5 / (M @ Phi.T @ Phi / 20).trace()
    energy = (Phi @ M @ Phi.T).norm()
    whitened = whitened_kernel(mlp, keys)(keys, keys)
    assert whitened.trace().item() / 20 == pytest.approx(5, rel=1e-9)
    assert whitened.norm() <= energy * (1 + 1e-9)


# --- Equation 6 --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel", [k2_kernel, feature_kernel(sketched_k2(FACTS, 9, generator=generator(1)))]
)
def test_signal_and_crosstalk_are_the_two_sums_of_the_margin(kernel):
    memory = kernel_memory(kernel, FACTS.keys, FACTS.answers)
    retrieval = retrieve(memory, FACTS)
    signal, crosstalk = signal_and_crosstalk(kernel, FACTS, retrieval, entries=7 * len(FACTS))
    close(signal + crosstalk, retrieval.margins)
    K = kernel(FACTS.keys, FACTS.keys)
    for i in range(len(FACTS)):
        difference = FACTS.answers[i] - FACTS.values[retrieval.competitors[i]]
        others = sum(K[t, i] * (difference @ FACTS.answers[t]) for t in range(len(FACTS)) if t != i)
        assert crosstalk[i].item() == pytest.approx(others.item(), rel=1e-8, abs=1e-9)
        assert signal[i].item() == pytest.approx(
            (K[i, i] * (difference @ FACTS.answers[i])).item(), rel=1e-9
        )
