"""The fitted construction of lib.constructions.hebbian, against dense algebra."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.constructions.hebbian import (
    data_dependent,
    hebbian_mlp,
    sketch_weights,
    sketched_k2,
    solved_mlp,
)
from lib.decoding import retrieve
from lib.facts import FactSet, ill_condition, random_facts, sphere
from lib.mlp import GatedMLP
from lib.numerics import generator, least_squares

SEEDS = st.integers(0, 10_000)


def dense_factor(K, C, P, B):
    """X minimising ||C - (P * (K X^T)) B^T||_F from the matrix of the problem."""
    m, d = B.shape[1], K.shape[1]
    columns = [
        ((P * (K @ X.reshape(m, d).T)) @ B.T).flatten() for X in torch.eye(m * d, dtype=K.dtype)
    ]
    solution = torch.linalg.lstsq(torch.stack(columns, 1), C.flatten()[:, None], driver="gelsd")
    return solution.solution.reshape(m, d)


def dense_construction(facts, A, G, ridge):
    """Equations 17 and 18 by dense least squares, features scaled to mean square norm 1."""
    K, C, F = facts.keys, facts.answers, len(facts)
    B = C.T @ ((K @ A.T) * (K @ G.T)) / F
    G = dense_factor(K, C, K @ A.T, B)
    A = dense_factor(K, C, K @ G.T, B)
    Phi = (K @ A.T) * (K @ G.T)
    scale = math.sqrt(F / Phi.square().sum())
    A, Phi = scale * A, scale * Phi
    m = len(A)
    B = torch.linalg.solve(Phi.T @ Phi + ridge * F * torch.eye(m).double(), Phi.T @ C).T
    return GatedMLP(A, G, B).requires_grad_(False)


@pytest.mark.parametrize(("F", "d", "m"), [(30, 5, 4), (40, 6, 12), (25, 4, 9)])
def test_it_is_two_least_squares_and_a_whitened_readout(F, d, m):
    facts = random_facts(F, d, generator=generator(F))
    A, G = sketch_weights(facts, m, generator=generator(F, 1))
    ours = solved_mlp(facts, A, G, tolerance=1e-12)
    dense = dense_construction(facts, A, G, 1e-6)
    assert torch.allclose(ours.G, dense.G, rtol=1e-7, atol=1e-7 * dense.G.abs().max())
    expected, found = dense(facts.keys), ours(facts.keys)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_the_gradient_of_each_solve_is_as_small_as_asked():
    facts = random_facts(60, 8, generator=generator(0))
    A, G = sketch_weights(facts, 16, generator=generator(1))
    B = hebbian_mlp(facts, A, G).B
    K, C, P = facts.keys, facts.answers, facts.keys @ A.T
    curvature = (P**2).T @ K**2 * (B**2).sum(0)[:, None]

    def gradient(X):
        return (P * ((C - (P * (K @ X.T)) @ B.T) @ B)).T @ K / curvature.sqrt()

    for tolerance in (1e-2, 1e-6, 1e-10):
        X = least_squares(
            lambda X: (P * (K @ X.T)) @ B.T,
            lambda R: (P * (R @ B)).T @ K,
            C,
            curvature=curvature,
            tolerance=tolerance,
            limit=1000,
        )
        start = gradient(torch.zeros_like(X)).norm()
        assert gradient(X).norm() <= tolerance * start * (1 + 1e-3)


@given(SEEDS, st.integers(2, 12), st.integers(1, 12))
def test_least_squares_agrees_with_a_dense_solver(seed, n, p):
    M = torch.randn(n, p, dtype=torch.float64, generator=generator(seed))
    y = torch.randn(n, 1, dtype=torch.float64, generator=generator(seed, 1))
    curvature = M.square().sum(0)[None]
    X = least_squares(
        lambda X: M @ X.T, lambda R: R.T @ M, y, curvature=curvature, tolerance=1e-12, limit=500
    )
    scaled = M / curvature.sqrt()
    expected = torch.linalg.pinv(scaled) @ y
    condition = torch.linalg.cond(scaled).item()
    got = X.T * curvature.sqrt().T
    assert torch.allclose(got, expected, rtol=0, atol=1e-9 * condition**2 * (1 + y.norm()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("condition", [1e2, 1e5])
def test_ill_conditioned_keys_give_finite_weights(dtype, condition):
    facts = random_facts(80, 16, generator=generator(0))
    keys = ill_condition(facts.keys, condition)
    facts = FactSet(keys, facts.values, facts.targets).to(dtype=dtype)
    with pytest.warns(UserWarning, match="least squares stopped at"):
        mlp = data_dependent(facts, 60, generator=generator(1), tolerance=1e-12, limit=400)
    assert all(weight.isfinite().all() for weight in mlp.parameters())
    assert retrieve(mlp, facts).accuracy > 0.5


def test_a_target_of_zero_and_a_map_to_zero_are_solved_at_once():
    zero = torch.zeros(3, 1).double()
    M = torch.ones(3, 2).double()
    kwargs = {"curvature": torch.tensor([[3.0, 0.0]]).double(), "tolerance": 1e-6, "limit": 5}
    X = least_squares(lambda X: M @ X.T, lambda R: R.T @ M, zero, **kwargs)
    assert (X == 0).all()
    X = least_squares(lambda X: 0 * M @ X.T, lambda R: 0 * R.T @ M, zero + 1, **kwargs)
    assert (X == 0).all()


def test_single_and_double_precision_store_the_same():
    facts = random_facts(128, 32, generator=generator(3))
    double = data_dependent(facts, 48, generator=generator(4))
    single = data_dependent(facts.to(dtype=torch.float32), 48, generator=generator(4))
    a, b = retrieve(double, facts), retrieve(single, facts.to(dtype=torch.float32))
    assert torch.allclose(a.margins, b.margins.double(), atol=5e-3)
    assert a.accuracy == b.accuracy == 1.0


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_the_length_of_keys_does_not_matter(size):
    facts = random_facts(64, 32, generator=generator(3)).to(dtype=torch.float32)
    long = FactSet(size * facts.keys, facts.values, facts.targets)
    one, other = (data_dependent(f, 30, generator=generator(4))(f.keys) for f in (facts, long))
    assert torch.allclose(one, other, atol=1e-3)


def test_it_stores_with_fewer_units_than_the_whitened_sketch():
    facts = random_facts(128, 32, generator=generator(5))
    fitted = retrieve(data_dependent(facts, 40, generator=generator(6)), facts)
    whitened = retrieve(sketched_k2(facts, 40, generator=generator(6), whitening="full"), facts)
    assert fitted.accuracy == 1.0 > whitened.accuracy


def test_the_whitened_readout_is_continuous_where_width_passes_facts():
    """One formula, with ridge F, holds on both sides of m = F."""
    facts = random_facts(30, 12, generator=generator(0))
    A, G = sketch_weights(facts, 40, generator=generator(1))
    for m in range(20, 41):
        mlp = hebbian_mlp(facts, A[:m], G[:m], whitening="full", ridge=1e-2)
        Phi, ridge = mlp.features(facts.keys), 30 * 1e-2
        dual = torch.linalg.solve(Phi @ Phi.T + ridge * torch.eye(30).double(), facts.answers)
        assert torch.allclose(mlp.B, dual.T @ Phi, rtol=1e-9, atol=1e-12)


def test_blocks_do_not_change_the_readouts(monkeypatch):
    facts = random_facts(50, 8, generator=generator(0))
    A, G = sketch_weights(facts, 20, generator=generator(1))
    whole = {w: hebbian_mlp(facts, A, G, whitening=w) for w in ("none", "diag", "full")}
    monkeypatch.setattr("lib.numerics.row_blocks.__kwdefaults__", {"entries": 60})
    for whitening, mlp in whole.items():
        parts = hebbian_mlp(facts, A, G, whitening=whitening)
        assert torch.allclose(parts.B, mlp.B, rtol=1e-9, atol=1e-12), whitening


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"width": 0}, "width must be an integer of at least 1; got 0"),
        ({"ridge": -1.0}, "ridge must be finite and >= 0; got -1"),
        ({"tolerance": 0.0}, r"tolerance must be in \(0, 1\); got 0.0"),
        ({"limit": 0}, "limit must be an integer of at least 1; got 0"),
    ],
)
def test_arguments_are_checked(kwargs, message):
    facts = random_facts(10, 4, generator=generator(0))
    with pytest.raises(ValueError, match=message):
        data_dependent(facts, **({"width": 3} | kwargs), generator=generator(1))
    zero = FactSet(
        sphere(4, 3, generator=generator(0)), torch.zeros(4, 3).double(), torch.arange(4)
    )
    with pytest.raises(ValueError, match="keys and values must not all be zero"):
        data_dependent(zero, 3, generator=generator(1))
