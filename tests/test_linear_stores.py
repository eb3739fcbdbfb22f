"""Identities of *Linear Memory, Reconstruction and Recall*, Appendices B to H."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.facts import gaussian, sphere
from lib.linear import stores
from lib.numerics import generator

SHAPES = [(5, 8), (8, 8), (20, 8)]  # fewer facts than dimensions, as many, more


def close(actual, expected, rtol=1e-9):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol)


def pairs(F, d, *, rank=None, seed=0):
    keys = sphere(F, d, generator=generator(seed, 0))
    if rank is not None:
        keys = gaussian(F, rank, generator=generator(seed, 1)) @ gaussian(
            rank, d, generator=generator(seed, 2)
        )
    return keys, sphere(F, 4, generator=generator(seed, 3))


def projectors(keys):
    """P and Q, onto the column space and the row space of the table of keys."""
    inverse = torch.linalg.pinv(keys, rtol=1e-11)
    return keys @ inverse, inverse @ keys


def test_a_single_pair_is_stored_by_the_smallest_matrix():
    keys, values = pairs(1, 6)
    W = stores.outer_product_store(keys, values)
    close(W @ keys[0], values[0])
    close(W, stores.least_squares_store(keys, values))


def test_outer_products_recall_through_the_gram_matrix():
    keys, values = pairs(9, 6)
    close(
        stores.linear_memory(stores.outer_product_store(keys, values))(keys), keys @ keys.T @ values
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [None, 3])
def test_least_squares_recalls_the_projected_values_with_the_least_norm(shape, rank):
    keys, values = pairs(*shape, rank=rank)
    W = stores.least_squares_store(keys, values)
    P, Q = projectors(keys)
    close(keys @ W.T, P @ values)
    close(W, (torch.linalg.pinv(keys, rtol=1e-11) @ values).T)
    close(W @ Q, W)  # zero off the span of the keys, hence of least norm
    for projector in (P, Q):
        close(projector @ projector, projector)
        close(projector.T, projector)


@pytest.mark.parametrize("shape", SHAPES)
def test_both_stores_share_directions_and_differ_in_gain(shape):
    keys, values = pairs(*shape)
    U, s, Vt = torch.linalg.svd(keys, full_matrices=False)
    close(stores.outer_product_store(keys, values), values.T @ U @ torch.diag(s) @ Vt)
    close(stores.least_squares_store(keys, values), values.T @ U @ torch.diag(1 / s) @ Vt)


def test_any_matrix_reads_as_a_store_of_its_singular_pairs():
    W = gaussian(5, 3, generator=generator(0)) @ gaussian(3, 7, generator=generator(1))
    keys, values = stores.svd_pairs(W)
    assert keys.shape == (3, 7)
    close(keys @ keys.T, torch.eye(3, dtype=torch.float64))
    close(keys @ W.T, values)
    close(stores.outer_product_store(keys, values), W)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [None, 3])
def test_leverages_are_the_diagonal_of_the_projector_and_sum_to_the_rank(shape, rank):
    keys, _ = pairs(*shape, rank=rank)
    h, (P, _) = stores.leverage_scores(keys), projectors(keys)
    close(h, P.diagonal())
    assert h.sum().item() == pytest.approx(rank or min(shape), rel=1e-9)
    close((P**2).sum(1), h)  # signal plus cross-talk power


@pytest.mark.parametrize("shape", SHAPES)
def test_recall_is_signal_plus_crosstalk(shape):
    keys, values = pairs(*shape)
    signal, crosstalk = stores.least_squares_recall(keys, values)
    P, _ = projectors(keys)
    for j in range(len(keys)):
        close(signal[j], P[j, j] * values[j])
        others = sum((P[i, j] * values[i] for i in range(len(keys)) if i != j), 0 * values[0])
        close(crosstalk[j], others)
    W = stores.least_squares_store(keys, values)
    close(signal + crosstalk, keys @ W.T)


def expectation_over_signs(function, F):
    """Exact mean over values that are independent signs, a case of unit-norm zero-mean values."""
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * F)
    return torch.stack([function(values[:, None]) for values in signs]).mean(0)


@pytest.mark.parametrize("d", [3, 8])
def test_expected_powers_are_exact_over_all_signs(d):
    keys = sphere(6, d, generator=generator(0))
    h = stores.leverage_scores(keys)

    def crosstalk_power(values):
        return (stores.least_squares_recall(keys, values)[1] ** 2).sum(1)

    def error(values):
        W = stores.least_squares_store(keys, values)
        return ((keys @ W.T - values) ** 2).sum(1)

    def outer_error(values):
        W = stores.outer_product_store(keys, values)
        return ((keys @ W.T - values) ** 2).sum(1)

    def norm(values):
        return (stores.least_squares_store(keys, values) ** 2).sum()

    close(expectation_over_signs(crosstalk_power, 6), h - h**2)
    close(expectation_over_signs(error, 6), 1 - h)
    close(
        expectation_over_signs(error, 6).mean(),
        torch.tensor(1 - min(6, d) / 6, dtype=torch.float64),
    )
    close(expectation_over_signs(outer_error, 6), stores.outer_product_crosstalk(keys))
    amplification = torch.tensor(stores.noise_amplification(keys), dtype=torch.float64)
    close(expectation_over_signs(norm, 6), amplification)


def test_crosstalk_of_outer_products_is_the_off_diagonal_energy():
    keys = gaussian(9, 6, generator=generator(0))
    gram = (keys @ keys.T) ** 2
    close(stores.outer_product_crosstalk(keys), gram.sum(1) - gram.diagonal())


def test_the_nonuniform_counterexample_is_exact():
    keys = torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1]], dtype=torch.float64)
    third = 1 / 3
    expected = torch.tensor([[third] * 3 + [0]] * 3 + [[0, 0, 0, 1]], dtype=torch.float64)
    close(projectors(keys)[0], expected)
    h = stores.leverage_scores(keys)
    close(h, torch.tensor([third, third, third, 1], dtype=torch.float64))
    snr = stores.signal_to_noise(h)
    close(snr[:3], torch.full((3,), 0.5, dtype=torch.float64))
    assert snr[3] == torch.inf
    close(1 - h, torch.tensor([2 * third] * 3 + [0], dtype=torch.float64))
    assert (1 - h).mean().item() == pytest.approx(0.5, rel=1e-9)


def test_query_noise_adds_the_squared_norm_of_the_store():
    keys, values = pairs(5, 4)
    W = stores.least_squares_store(keys, values)
    tau = 0.3
    # A random signed coordinate vector times sqrt(d) = 2 has covariance I.
    noises = tau * 2 * torch.cat([torch.eye(4), -torch.eye(4)]).double()
    errors = [((W @ (keys[0] + e) - values[0]) ** 2).sum() for e in noises]
    expected = ((W @ keys[0] - values[0]) ** 2).sum() + tau**2 * (W**2).sum()
    close(torch.stack(errors).mean(), expected)


@given(seed=st.integers(0, 1000), facts=st.integers(2, 30))
def test_values_that_follow_a_linear_rule_are_recalled_exactly(seed, facts):
    keys = sphere(facts, 5, generator=generator(seed, 0))
    A = gaussian(4, 5, generator=generator(seed, 1))
    W = stores.least_squares_store(keys, keys @ A.T)
    close(keys @ W.T, keys @ A.T)
    close(W, A @ projectors(keys)[1])
    assert stores.consistency_residual(keys, keys @ A.T) < 1e-9


def test_inconsistent_values_cannot_be_fitted():
    keys = torch.tensor([[1.0, 0], [1, 0]], dtype=torch.float64)
    values = torch.tensor([[1.0], [-1]], dtype=torch.float64)
    assert stores.consistency_residual(keys, values) == pytest.approx(1)
    assert stores.consistency_residual(keys, values * 0 + 1) < 1e-12
    with pytest.raises(ValueError, match="values must not all be zero"):
        stores.consistency_residual(keys, 0 * values)


@pytest.mark.parametrize("scale", [1e-170, 1e-30, 1e154, 1e200])
def test_stores_do_not_depend_on_the_scale_of_the_keys(scale):
    keys, values = pairs(5, 8)
    W = stores.least_squares_store(scale * keys, values)
    close(scale * W, stores.least_squares_store(keys, values))
    assert not stores.least_squares_store(0 * keys, values).any()
    assert stores.consistency_residual(keys, scale * values) < 1e-12


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("store", [stores.outer_product_store, stores.least_squares_store])
def test_pairs_are_checked(store):
    keys, values = pairs(5, 8)
    with pytest.raises(ValueError, match="keys must be finite; row 0, column 0 is nan"):
        store(keys * torch.nan, values)
    with pytest.raises(ValueError, match="values must be finite"):
        store(keys, values / 0)
    with pytest.raises(ValueError, match="keys and values must be as many; got 5 and 4"):
        store(keys, values[:4])
    with pytest.raises(ValueError, match="keys must be a nonempty matrix"):
        store(keys[:0], values[:0])


def test_crosstalk_survives_keys_of_different_sizes():
    keys = torch.tensor([[1e5, 0], [1e-3, 1]], dtype=torch.float64)
    close(stores.outer_product_crosstalk(keys), torch.full((2,), 1e4, dtype=torch.float64))


def test_spherical_keys_have_crosstalk_m_minus_1_over_d():
    d, F = 16, 400
    energies = [
        stores.outer_product_crosstalk(sphere(F, d, generator=generator(s))) for s in range(20)
    ]
    mean = torch.cat(energies).mean().item()
    spread = np.std([e.mean().item() for e in energies]) / 20**0.5
    assert abs(mean - (F - 1) / d) < 5 * spread
