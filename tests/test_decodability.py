import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from lib.constructions.hebbian import sketched_k2
from lib.decodability import (
    achieved_radii,
    coherence,
    decodability,
    fold_whitening,
    whitened,
    whitening,
)
from lib.decoding import retrieve
from lib.facts import gaussian, ill_condition, random_facts, sphere, spike
from lib.numerics import generator

SPHERE = sphere(200, 16, generator=generator(0))
AXIS = sphere(1, 16, generator=generator(1))[0]
TABLES = {
    "isotropic": SPHERE,
    "spiked": spike(SPHERE, AXIS, 50.0),
    "far from the origin": SPHERE + 100 * AXIS,
    "condition number 1e3": ill_condition(SPHERE, 1e3),
    "condition number 1e6": ill_condition(SPHERE, 1e6),
}


def directions(values, i):
    """w_ij of one value."""
    W = values[i] - np.delete(values, i, axis=0)
    return W / np.linalg.norm(W, axis=1, keepdims=True)


def by_enumeration(values, i):
    """The best margin among the points that are held by some set of constraints."""
    W, best = directions(values, i), 0.0
    for size in range(1, min(values.shape[1], len(W)) + 1):
        for subset in combinations(range(len(W)), size):
            x = np.linalg.pinv(W[list(subset)]) @ np.ones(size)
            best = max(best, (W @ x).min() / np.linalg.norm(x))
    return best


def by_sequential_programming(values, i):
    W = directions(values, i)
    d = W.shape[1]
    u = W.mean(0) / np.linalg.norm(W.mean(0))
    found = minimize(
        lambda z: -z[-1],
        np.append(u, (W @ u).min()),
        jac=lambda z: np.append(np.zeros(d), -1.0),
        constraints=[
            {"type": "ineq", "fun": lambda z: W @ z[:-1] - z[-1]},
            {"type": "ineq", "fun": lambda z: 1 - z[:-1] @ z[:-1]},
        ],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    assert found.success
    return found.x[-1]


@pytest.mark.parametrize(("n", "d"), [(2, 1), (2, 3), (6, 2), (9, 2), (9, 3), (8, 4)])
def test_radii_are_those_of_an_enumeration(n, d):
    for seed in range(4):
        values = gaussian(n, d, generator=generator(2, n, d, seed))
        expected = [by_enumeration(values.numpy(), i) for i in range(n)]
        np.testing.assert_allclose(decodability(values).radii, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["isotropic", "spiked", "condition number 1e3"])
def test_radii_are_those_of_an_independent_convex_solver(name):
    values = TABLES[name][:40]
    radii = decodability(values).radii
    for i in range(0, 40, 8):
        assert radii[i].item() == pytest.approx(
            by_sequential_programming(values.numpy(), i), abs=1e-7
        )


@pytest.mark.parametrize("name", TABLES)
def test_every_radius_is_certified_to_nine_digits(name):
    """Weights of sum 1 bound from above, the output itself from below."""
    found = decodability(TABLES[name])
    assert found.decodable.all()
    assert (found.gaps <= 1e-9 * found.radii).all()
    assert found.gaps.any()  # two computations, which do not agree in every bit
    X = TABLES[name].numpy() - TABLES[name].mean(0).numpy()
    for i in range(0, len(X), 40):
        margins = directions(X, i) @ found.outputs[i].numpy()
        assert margins.min() == pytest.approx(found.radii[i].item(), rel=1e-9)
        active = directions(X[[i, *found.active[i].tolist()]], 0)
        np.testing.assert_allclose(
            active @ found.outputs[i].numpy(), found.radii[i].item(), rtol=1e-9
        )
        # u is a combination of the active directions with weights >= 0: nothing is better
        weights = np.linalg.lstsq(active.T, found.outputs[i].numpy())[0]
        assert (weights > 0).all()
        np.testing.assert_allclose(weights @ active, found.outputs[i], atol=1e-9)


def test_values_inside_the_hull_of_the_others_are_found():
    corners = torch.eye(4).double()
    values = torch.cat([corners, corners.mean(0, keepdim=True), corners[:2].mean(0)[None]])
    found = decodability(values)
    assert found.decodable.tolist() == [True] * 4 + [False] * 2
    assert found.rho == 0
    assert (found.outputs[4:] == 0).all()
    assert (found.gaps <= 1e-9).all()
    # the centre of a simplex is the mean of its corners, the middle of an edge that of two
    assert set(found.active[5].tolist()) == {0, 1}


def test_a_value_barely_outside_the_hull_is_decodable():
    corners = torch.eye(3).double()
    inside = corners.mean(0)
    for step in (1e-3, 1e-6):
        found = decodability(torch.cat([corners, inside[None] * (1 + step)]))
        assert found.decodable[3]
        # over the plane of the corners by a height of step / sqrt(3), sqrt(2/3) from each of them
        expected = step / 3**0.5 / (2 / 3 + step**2 / 3) ** 0.5
        assert found.radii[3].item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("height", [1e-3, 1e-7, 1e-11])
def test_a_value_over_the_middle_of_two_has_the_radius_of_its_height(height):
    values = torch.tensor([[-1, 0], [1, 0], [0, height]], dtype=torch.float64)
    assert decodability(values).radii[2].item() == pytest.approx(height, rel=height + 1e-9)


def test_a_radius_that_is_taken_for_zero_is_in_the_gap():
    values = torch.tensor([[-1, 0], [1, 0], [0, 1e-13]], dtype=torch.float64)
    found = decodability(values)
    assert not found.decodable[2]
    assert found.gaps[2].item() == pytest.approx(1e-13, rel=1e-2)


def test_the_exact_middle_of_two_close_values_is_in_their_hull():
    """Far from the mean of the table, where centring would bend the line."""
    step = torch.tensor([1.0, 3.0]) * 2**-20
    values = torch.stack([0 * step, step, 2 * step, torch.tensor([5.0, 1]), torch.tensor([7.0, 3])])
    found = decodability(values)
    assert found.decodable.tolist() == [True, False, True, True, True]
    assert found.gaps[1] < 1e-15


def exact_margin(values, u, i):
    """The smallest margin of an output in rational arithmetic, its roots to 50 digits."""
    rows = [[Fraction(x) for x in row] for row in values.tolist()]
    u = [Fraction(x) for x in u.tolist()]

    def decimal(x):
        return Decimal(x.numerator) / Decimal(x.denominator)

    def margin(row):
        w = [a - b for a, b in zip(rows[i], row, strict=True)]
        squares = sum(x * x for x in w) * sum(x * x for x in u)
        return decimal(sum(a * b for a, b in zip(w, u, strict=True))) / decimal(squares).sqrt()

    with localcontext() as context:
        context.prec = 50
        return min(margin(row) for j, row in enumerate(rows) if j != i)


def copies(distance):
    values = gaussian(20, 8, generator=generator(20))
    return torch.cat([values, values + distance * gaussian(20, 8, generator=generator(21))])


EXTREME = {
    "copies 1e-6 apart": copies(1e-6),
    "copies 1e-9 apart": copies(1e-9),
    "copies 1e-12 apart": copies(1e-12),
    "a few long rows": torch.cat([1e12 * SPHERE[:10], SPHERE[10:40]]),
    "ratio 1e100": torch.cat([1e100 * SPHERE[:10], SPHERE[10:40]]),
    "almost overflow": 1.7e308 * SPHERE[:30],
    "subnormal": 1e-310 * SPHERE[:30],
}


@pytest.mark.parametrize("name", EXTREME)
@pytest.mark.filterwarnings("error")
def test_outputs_attain_their_radii_in_exact_arithmetic_up_to_the_gap(name):
    values = EXTREME[name]
    found = decodability(values)
    assert (found.gaps <= 1e-13).all()
    assert found.decodable.any()
    outputs = torch.where(found.decodable[:, None], found.outputs, 1.0)
    short = (found.radii - achieved_radii(outputs, values))[found.decodable]
    assert (found.gaps[found.decodable] >= short - 1e-15).all()
    for i in found.decodable.nonzero()[:, 0].tolist():
        lower = exact_margin(values, found.outputs[i], i)
        certified = Decimal(found.radii[i].item()) - Decimal(found.gaps[i].item())
        assert lower >= certified - Decimal(4 * torch.finfo(torch.float64).eps)


@pytest.mark.filterwarnings("error")
def test_values_that_differ_by_a_rounding_are_told_apart():
    line = torch.tensor([[0], [1e-17], [1]], dtype=torch.float64)
    found = decodability(line)
    assert found.radii.tolist() == [1, 0, 1]
    assert achieved_radii(torch.tensor([[-1], [1], [1]]).double(), line).tolist() == [1, -1, 1]
    corner = torch.tensor([[0, 0], [1e-17, 0], [1, 1]], dtype=torch.float64)
    angle = math.pi / 8  # half of that between the directions -e_1 and -(e_1 + e_2)
    assert decodability(corner).radii[0].item() == pytest.approx(math.cos(angle), rel=1e-12)
    assert decodability(corner).radii[1].item() == pytest.approx(math.sin(angle), rel=1e-12)
    for seed in range(20):
        values = torch.randn(20, 3, dtype=torch.float64, generator=generator(22, seed))
        values[1] = torch.nextafter(values[0], values[0] + 1)
        assert (decodability(values).gaps <= 1e-13).all()


def test_the_papers_example_decodes_to_the_shorter_value_by_pointing_away():
    e = torch.tensor([1.0, 0.0], dtype=torch.float64)
    found = decodability(torch.stack([e, 2 * e]))
    torch.testing.assert_close(found.outputs, torch.stack([-e, e]))
    torch.testing.assert_close(found.radii, torch.ones(2).double())


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3), st.floats(-10, 10))
def test_radii_do_not_change_with_position_scale_and_rotation(seed, scale, shift):
    values = gaussian(12, 3, generator=generator(3, seed))
    Q, _ = torch.linalg.qr(gaussian(3, 3, generator=generator(4, seed)))
    moved = scale * (values + shift) @ Q
    torch.testing.assert_close(
        decodability(moved).radii, decodability(values).radii, rtol=1e-9, atol=1e-9
    )


@given(st.integers(0, 10**6))
def test_no_output_has_a_larger_radius(seed):
    values = gaussian(10, 4, generator=generator(5, seed))
    best = decodability(values)
    for outputs in (values, values - values.mean(0), gaussian(10, 4, generator=generator(6, seed))):
        assert (achieved_radii(outputs, values) <= best.radii + 1e-12).all()
    held = best.decodable
    if held.all():
        torch.testing.assert_close(achieved_radii(best.outputs, values), best.radii)


@pytest.mark.parametrize("entries", [1, 500, 10**6])
def test_coherence_does_not_depend_on_blocks(entries):
    values = SPHERE[:60]
    assert coherence(values, entries=entries) == pytest.approx(coherence(values), rel=1e-12)


def test_single_precision_is_solved_in_double():
    values = SPHERE[:50].float().requires_grad_()
    torch.testing.assert_close(decodability(values).radii, decodability(values.double()).radii)


def test_coherence_is_the_largest_cosine():
    V = gaussian(20, 5, generator=generator(7))
    X = V / V.norm(dim=1, keepdim=True)
    expected = max(abs((X[i] @ X[j]).item()) for i in range(20) for j in range(i))
    assert coherence(V) == pytest.approx(expected, rel=1e-12)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decodability(SPHERE[:1]), "values must have at least 2 rows; got 1"),
        (lambda: decodability(SPHERE[[0, 1, 2, 1]]), "distinct; rows 1 and 3 are equal"),
        (lambda: decodability(SPHERE * torch.nan), "values must be finite"),
        (lambda: achieved_radii(SPHERE[:5], SPHERE), r"one per value, \(200, 16\); got \(5, 16\)"),
        (lambda: achieved_radii(0 * SPHERE, SPHERE), "outputs must be nonzero"),
        (lambda: coherence(SPHERE[:1]), "values must be at least 2 rows"),
        (lambda: whitening(SPHERE, 1.5), r"strength must be in \[0, 1\].*got 1.5"),
        (lambda: whitening(SPHERE, ridge=-1.0), "ridge must be finite and >= 0; got -1.0"),
        (lambda: whitening(SPHERE[:10]), "its rank is 9 of 16"),
    ],
)
def test_what_cannot_be_done_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- whitening ---------------------------------------------------------------------------------


def covariance(V):
    return torch.cov(V.T, correction=0)


@pytest.mark.parametrize("name", TABLES)
def test_whitened_values_have_unit_covariance(name):
    V = TABLES[name]
    white = covariance(V @ whitening(V))
    torch.testing.assert_close(white, torch.eye(16).double(), rtol=0, atol=1e-9)


def test_whitening_has_the_inverse_scale_or_is_refused():
    whole = whitening(SPHERE)
    for scale in (1e-200, 1e200):
        torch.testing.assert_close(scale * whitening(scale * SPHERE), whole)
    with pytest.raises(ValueError, match="values must be longer"):
        whitening(1e-310 * SPHERE)
    with pytest.raises(ValueError, match="values must be shorter"):
        whitening(1e308 * torch.ones(3, 2).double(), ridge=0.1)


def test_the_strength_is_a_power_of_the_whole():
    V = ill_condition(SPHERE, 100.0)
    third, whole = whitening(V, 1 / 3, ridge=0.1), whitening(V, ridge=0.1)
    torch.testing.assert_close(third @ third @ third, whole)
    torch.testing.assert_close(whitening(V, 0.0), torch.eye(16).double())
    Sigma = covariance(V) + 0.1 * torch.eye(16)
    torch.testing.assert_close(whole @ Sigma @ whole, torch.eye(16).double())
    assert whitening(V[:10], ridge=0.1).isfinite().all()


def test_whitening_undoes_an_ill_conditioned_table():
    V = ill_condition(SPHERE, 1e3)
    radii = [decodability(V @ whitening(V, strength)).rho for strength in (0.0, 0.5, 1.0)]
    assert radii[0] < radii[1] < radii[2]
    assert radii[2] > 5 * radii[0]


@pytest.mark.parametrize("strength", [0.0, 0.3, 1.0])
def test_folding_whitening_into_the_last_layer_keeps_every_score(strength):
    facts = random_facts(40, 6, generator=generator(8))
    W = whitening(facts.values, strength)
    white = whitened(facts, W)
    mlp = sketched_k2(white, 60, generator=generator(9), whitening="full")
    folded = fold_whitening(mlp, W)
    torch.testing.assert_close(
        folded(facts.keys) @ facts.values.T, mlp(facts.keys) @ white.values.T, rtol=1e-9, atol=1e-9
    )
    assert torch.equal(retrieve(folded, facts).stored, retrieve(mlp, white).stored)
    assert not any(weight.requires_grad for weight in folded.parameters())
