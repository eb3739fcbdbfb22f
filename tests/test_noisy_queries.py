import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.constructions.hebbian import feature_kernel, k2_kernel, kernel_memory, sketched_k2
from lib.decoding import retrieve, unit_outputs
from lib.facts import FactSet, random_facts, sphere
from lib.mlp import GatedMLP
from lib.noisy_queries import (
    noise_tolerance,
    noisy_margin_bound,
    noisy_margin_floors,
    noisy_minimum_margin,
    query_lipschitz,
    score_lipschitz,
)
from lib.numerics import generator, unit_rows

SEEDS = st.integers(0, 10_000)


def memory(seed, F, d, m):
    facts = random_facts(F, d, generator=generator(seed))
    return facts, sketched_k2(facts, m, generator=generator(seed, 1))


@given(SEEDS, st.floats(0.1, 3))
def test_the_query_lipschitz_constant_is_never_exceeded_and_is_attained(seed, radius):
    facts, mlp = memory(seed % 5, F=4, d=4, m=9)
    w = mlp.features(facts.keys)
    constants = query_lipschitz(mlp, w, radius)
    first, second = (radius * sphere(30, 4, generator=generator(seed, n)) for n in (0, 1))
    change = (w @ (mlp.features(first) - mlp.features(second)).T).abs()
    assert (change <= constants[:, None] * (first - second).norm(dim=1) * (1 + 1e-9)).all()
    S = mlp.A.T @ (w[0][:, None] * mlp.G)
    values, vectors = torch.linalg.eigh((S + S.T) / 2)
    q = radius * vectors[:, values.abs().argmax()][None].clone().requires_grad_()
    q.retain_grad()
    (gradient,) = torch.autograd.grad((mlp.features(q) @ w[0]).sum(), q)
    assert gradient.norm().item() == pytest.approx(constants[0].item(), rel=1e-9)


@given(SEEDS, st.floats(0, 0.5), st.booleans())
def test_noisy_margins_stay_above_their_floors(seed, epsilon, exact):
    facts, mlp = memory(seed % 5, F=10, d=8, m=40)
    kernel = k2_kernel if exact else feature_kernel(mlp)
    stored = kernel_memory(kernel, facts.keys, facts.answers)
    radius = 1 + epsilon
    if exact:
        lipschitz = torch.full((10,), 2 * radius, dtype=torch.float64)
    else:
        lipschitz = query_lipschitz(mlp, mlp.features(facts.keys), radius)
    floors = noisy_margin_floors(stored, facts, lipschitz, epsilon)
    noise = epsilon * sphere(10, 8, generator=generator(seed))
    noisy = retrieve(lambda k: stored(k + noise), facts).margins
    assert (floors <= noisy + 1e-12).all()
    blocked = noisy_margin_floors(stored, facts, lipschitz, epsilon, entries=1)
    assert torch.allclose(floors, blocked, rtol=1e-12)
    if epsilon == 0:
        assert torch.equal(floors, retrieve(stored, facts).margins)


def test_the_noisy_bound_has_the_terms_of_equation_70():
    L = math.log(50**2 / 0.5)
    bound = noisy_margin_bound(0.4, 2.0, 0.01, F=50, d=16, coherence=0.5)
    assert bound.terms == {
        "clean": 0.4,
        "own and competitor": pytest.approx(-2 * 1.5 * 0.02),
        "others": pytest.approx(-2 * math.sqrt(2) * 0.02 * math.sqrt(50 * L / 16)),
    }
    assert bound.assumptions == {"F L ≥ d": True}
    assert not bound.deterministic
    tolerance = noise_tolerance(0.4, 2.0, F=50, d=16, constant=3.0)
    assert 3.0 * 2.0 * tolerance * math.sqrt(50 * L / 16) == pytest.approx(0.4, rel=1e-12)


def test_the_noisy_bound_holds_for_isotropic_facts():
    """Theorem B.62 with C_0 = 1, at its stated probability: in far more than half of the draws."""
    held = []
    for seed in range(20):
        facts = random_facts(60, 16, generator=generator(seed))
        stored = kernel_memory(k2_kernel, facts.keys, facts.answers)
        epsilon = 0.05
        noise = epsilon * sphere(60, 16, generator=generator(seed, 2))
        gram = (facts.values @ facts.values.T - torch.eye(60)).abs().max().item()
        clean = retrieve(stored, facts).minimum_margin
        bound = noisy_margin_bound(clean, 2 * (1 + epsilon), epsilon, F=60, d=16, coherence=gram)
        held.append(bound.value <= retrieve(lambda k: stored(k + noise), facts).minimum_margin)  # noqa: B023
    assert np.mean(held) >= 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, m: query_lipschitz(m, m.features(f.keys), -1.0), "radius must be finite"),
        (lambda f, m: noisy_margin_floors(m, f, torch.ones(6).double(), -1.0), "epsilon must be"),
        (
            lambda f, m: noisy_margin_bound(1.0, -1.0, 0.1, F=3, d=2, coherence=0.1),
            "lipschitz must be finite and >= 0; got -1.0",
        ),
        (
            lambda f, m: noise_tolerance(-1.0, 1.0, F=3, d=2),
            "margin must be positive and finite; got -1.0",
        ),
        (
            lambda f, m: query_lipschitz(GatedMLP(m.A, m.G, m.B, "relu"), m.features(f.keys), 1.0),
            "mlp must be bilinear, with the gate 'identity'; got 'relu'",
        ),
    ],
)
def test_arguments_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call(*memory(0, F=6, d=4, m=9))


def test_the_noisy_margin_starts_at_the_clean_one_and_falls():
    facts = random_facts(24, 32, generator=generator(1))
    memory = kernel_memory(k2_kernel, facts.keys, facts.answers)
    margins = [
        noisy_minimum_margin(memory, facts, epsilon, generator=generator(2))
        for epsilon in (0.0, 1.0, 2.0)
    ]
    assert margins[0] == retrieve(memory, facts).minimum_margin
    assert margins[0] > margins[1] > margins[2]
    with pytest.raises(ValueError, match="epsilon must be finite and >= 0; got -1"):
        noisy_minimum_margin(memory, facts, -1.0, generator=generator(0))


@pytest.mark.parametrize("seed", range(5))
def test_the_lipschitz_constant_of_scores_is_that_of_finite_differences(seed):
    facts, mlp = memory(seed, F=6, d=5, m=12)
    for function in (mlp, unit_outputs(mlp)):
        constants = score_lipschitz(function, facts)
        u = sphere(6, 5, generator=generator(seed, 1))
        step = 1e-5
        ahead, behind = (
            function(unit_rows(facts.keys + sign * step * u)) @ facts.values.T for sign in (1, -1)
        )
        change = (ahead - behind).norm(dim=1) / (2 * step)
        assert (change <= constants * (1 + 1e-4) + 1e-6).all()
    # a bilinear MLP's Jacobian in closed form, through the normalisation of a unit key
    k = facts.keys[0]
    J = mlp.B @ ((mlp.G @ k)[:, None] * mlp.A + (mlp.A @ k)[:, None] * mlp.G)
    J = facts.values @ J @ (torch.eye(5) - torch.outer(k, k))
    expected = torch.linalg.matrix_norm(J, 2).item()
    assert score_lipschitz(mlp, facts)[0].item() == pytest.approx(expected, rel=1e-9)


def test_lipschitz_constants_need_nonzero_keys_and_a_gradient():
    facts = random_facts(6, 4, generator=generator(40))
    keys = facts.keys.clone()
    keys[2] = 0
    with pytest.raises(ValueError, match="keys must not be zero; row 2 is"):
        score_lipschitz(lambda q: q, FactSet(keys, facts.values, facts.targets))
    with pytest.raises(ValueError, match="memory must be differentiable"):
        score_lipschitz(torch.no_grad()(lambda q: 2 * q), facts)
