import math

import pytest
import torch

from lib.editing.updates import least_squares_update, null_space_update, rank_one_update
from lib.numerics import generator

D, M = 16, 24


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=generator(9, seed, *shape))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_a_rank_one_update_satisfies_its_constraint_with_the_least_change():
    K, r, v = draw(40, M), draw(D), draw(M)
    C = K.T @ K / 40
    update = rank_one_update(v, r, torch.linalg.inv(C))
    close(update @ v, r)
    assert torch.linalg.matrix_rank(update) == 1
    least = torch.trace(update @ C @ update.T)
    for seed in range(5):
        other = draw(D, M, seed=seed)
        other = update + other - torch.outer(other @ v, v) / (v @ v)
        close(other @ v, r)
        assert torch.trace(other @ C @ other.T) > least


def test_memit_is_least_squares_on_altered_and_preserved_keys_together():
    K, R, K_0, weight = draw(5, M), draw(5, D), draw(30, M), 7.0
    update = least_squares_update(K, R, weight * K_0.T @ K_0 / 30)
    rows = torch.cat([K, math.sqrt(weight / 30) * K_0])
    targets = torch.cat([R, torch.zeros(30, D).double()])
    close(update, torch.linalg.lstsq(rows, targets).solution.T)


def test_memit_without_preserved_keys_is_the_least_norm_solution():
    K, R = draw(5, M), draw(5, D)
    update = least_squares_update(K, R, torch.zeros(M, M).double())
    close(update, (torch.linalg.pinv(K) @ R).T)
    close(K @ update.T, R)


def test_a_null_space_update_vanishes_on_the_span_of_preserved_keys():
    K, R, K_0 = draw(5, M), draw(5, D), draw(10, M)
    for ridge in (0.0, 1.0):
        update = null_space_update(K, R, K_0, tolerance=0.0, ridge=ridge)
        close(K_0 @ update.T, torch.zeros(10, D).double())
        assert update.norm() > 0.1
    close(K @ null_space_update(K, R, K_0, tolerance=0.0, ridge=0.0).T, R)


def test_a_null_space_update_is_the_formula_of_its_source():
    K, R, K_0, ridge, tolerance = draw(5, M), draw(5, D), draw(60, M), 0.3, 0.8
    C = K_0.T @ K_0 / 60
    values, vectors = torch.linalg.eigh(C)
    kept = vectors[:, values <= tolerance * values.mean()]
    assert 0 < kept.shape[1] < M
    P, scale = kept @ kept.T, ridge * torch.trace(C) / M
    formula = R.T @ K @ P @ torch.linalg.inv(K.T @ K @ P + scale * torch.eye(M).double())
    close(null_space_update(K, R, K_0, tolerance=tolerance, ridge=ridge), formula)


def test_a_full_memory_leaves_no_null_space():
    update = null_space_update(draw(5, M), draw(5, D), draw(60, M), tolerance=0.0, ridge=1.0)
    assert not update.any()


def test_the_mean_leverage_of_stored_keys_is_the_width_of_a_full_memory():
    K = draw(60, M)
    precision = torch.linalg.inv(K.T @ K / 60)
    assert ((K @ precision) * K).sum(1).mean().item() == pytest.approx(M, rel=1e-9)
    update = rank_one_update(K[0], draw(D), precision)
    change = (K @ update.T).square().sum(1).mean()
    expected = draw(D).square().sum() / (K[0] @ precision @ K[0])
    assert change.item() == pytest.approx(expected.item(), rel=1e-9)


def test_a_rank_one_update_needs_a_key_in_the_range_of_the_covariance():
    K = torch.cat([draw(40, M - 1), torch.zeros(40, 1).double()], dim=1)
    precision = torch.linalg.pinv(K.T @ K / 40, hermitian=True)
    for key in (torch.zeros(M), torch.eye(M)[-1]):
        with pytest.raises(ValueError, match="key must not be zero, nor outside of C's range"):
            rank_one_update(key.double(), draw(D), precision)
