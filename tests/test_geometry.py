"""The statistics of geometry against their definitions, one sum at a time."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib import geometry
from lib.constructions.hebbian import feature_kernel, k2_kernel, sketched_k2
from lib.decoding import retrieve
from lib.facts import random_facts
from lib.geometry import gram_geometry, kernel_geometry, penalties, value_spread
from lib.numerics import generator


def by_definition(K, v, c, mu):
    """Every statistic by explicit loops, in Python floats."""
    F = len(K)
    K, v, c = K.tolist(), v.tolist(), c.tolist()

    def inner(a, b, w):
        return math.fsum((x - y) * z for x, y, z in zip(a, b, w, strict=True))

    def cosine(x, y):
        norms = math.sqrt(math.fsum(a * a for a in x) * math.fsum(b * b for b in y))
        return abs(math.fsum(a * b for a, b in zip(x, y, strict=True))) / norms if norms else 0.0

    found = {name: [] for name in geometry.Geometry.__dataclass_fields__}
    ratios = []
    for i in range(F):
        found["diagonal"].append(K[i][i])
        for j in (j for j in range(F) if j != i):
            without = [t for t in range(F) if t != i]
            truncated = [t for t in without if t != j]
            Y, Y0 = ([inner(v[i], v[j], c[t]) for t in ts] for ts in (without, truncated))
            X, X0 = ([K[t][i] for t in ts] for ts in (without, truncated))
            Z0 = [x - mu for x in X0]
            own, other = inner(v[i], v[j], c[i]), inner(v[i], v[j], c[j])
            z = math.fsum(x * y for x, y in zip(X, Y, strict=True))
            z0 = math.fsum(x * y for x, y in zip(X0, Y0, strict=True))
            size, energy = math.fsum(map(abs, Y0)), math.fsum(y * y for y in Y0)
            ratios.append(size**2 / energy if energy else 1.0)
            centred = math.fsum(x * y for x, y in zip(Z0, Y0, strict=True))
            for name, value in {
                "off_diagonal": abs(K[i][j]),
                "column_energy": math.fsum(x * x for x in X),
                "separation": own,
                "interaction": abs(other),
                "mean_alignment": abs(math.fsum(Y0)),
                "value_energy": math.fsum(y * y for y in Y),
                "coupling": cosine(X, Y),
                "column_energy_truncated": math.fsum(x * x for x in X0),
                "value_energy_truncated": energy,
                "coupling_truncated": cosine(X0, Y0),
                "column_energy_centred": math.fsum(x * x for x in Z0),
                "coupling_centred": cosine(Z0, Y0),
                "coupling_effective": abs(centred) / math.sqrt(energy) if energy else 0.0,
                "crosstalk_truncated": abs(z0),
                "signal": K[i][i] * own + K[j][i] * other,
                "margin": K[i][i] * own + z,
            }.items():
                found[name].append(value)
    smallest = {"diagonal", "separation", "signal", "margin"}
    values = {n: (min if n in smallest else max)(x) for n, x in found.items() if x}
    return values, max(ratios)


@st.composite
def memories(draw):
    """A kernel matrix, values and codes; with ties, repetitions and exact orthogonality."""
    F, d = draw(st.integers(3, 7)), draw(st.integers(1, 4))
    g = generator(draw(st.integers(0, 10_000)))
    features = torch.randn(F, draw(st.integers(1, 9)), dtype=torch.float64, generator=g)
    values = torch.randn(F, d, dtype=torch.float64, generator=g)
    shape = draw(st.sampled_from(["generic", "repeated", "integer", "orthonormal", "zero kernel"]))
    if shape == "repeated":
        values[1] = values[0]
    if shape == "integer":
        features, values = features.round(), values.round()
    if shape == "orthonormal":
        values = torch.eye(F, dtype=torch.float64)
    K = features @ features.T
    if shape == "zero kernel":
        K = torch.diag(K.diagonal())
    codes = values
    if draw(st.booleans()):
        codes = torch.randn(F, values.shape[1], dtype=torch.float64, generator=g)
    return K, values, codes, draw(st.sampled_from([0.0, 0.3]))


@given(memories())
def test_every_statistic_is_what_its_definition_says(memory):
    K, values, codes, mu = memory
    expected, spread = by_definition(K, values, codes, mu)
    found = gram_geometry(K, values, codes, centre=mu)
    scale = 1 + K.abs().max().item() * values.square().sum().item()
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-9, abs=1e-13 * scale), name
    assert value_spread(values, codes).value == pytest.approx(spread, rel=1e-9)


@given(memories())
def test_blocks_do_not_change_the_statistics(memory):
    K, values, codes, mu = memory
    whole = gram_geometry(K, values, codes, centre=mu)
    entries = geometry.DIFFERENCE_ENTRIES
    geometry.DIFFERENCE_ENTRIES = 2 * values.numel()
    try:
        parts = gram_geometry(K, values, codes, centre=mu)
    finally:
        geometry.DIFFERENCE_ENTRIES = entries
    for name in geometry.Geometry.__dataclass_fields__:
        a, b = getattr(whole, name), getattr(parts, name)
        assert a == pytest.approx(b, rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize("F", [20, 90])
def test_a_kernel_gives_what_its_matrix_gives_and_the_margin_of_the_mlp(F):
    facts = random_facts(F, 8, generator=generator(0, F))
    mlp = sketched_k2(facts, 64, whitening="none", generator=generator(1, F))
    kernel = feature_kernel(mlp)
    found = kernel_geometry(kernel, facts.keys, facts.answers, centre=1 / 8)
    again = gram_geometry(kernel(facts.keys, facts.keys), facts.answers, centre=1 / 8)
    for name in geometry.Geometry.__dataclass_fields__:
        assert getattr(found, name) == pytest.approx(getattr(again, name), rel=1e-9), name
    assert found.margin == pytest.approx(retrieve(mlp, facts).minimum_margin, rel=1e-9)


def test_penalties_turn_the_bound_into_the_printed_form():
    facts = random_facts(40, 16, generator=generator(0))
    found = kernel_geometry(k2_kernel, facts.keys, facts.answers)
    p = penalties(found, m=100, d=16)
    crosstalk = p.keys * p.values * p.alignment * math.sqrt(40 * math.log(40) / (100 * 16))
    expected = math.sqrt(found.column_energy * found.value_energy) * found.coupling
    assert crosstalk == pytest.approx(expected, rel=1e-12)
    signal = p.signal * (1 - math.sqrt(math.log(40) / 16))
    assert signal == pytest.approx(found.diagonal * found.separation, rel=1e-12)


def test_the_spread_is_between_its_bounds_and_says_when_it_is_one():
    values = random_facts(30, 5, generator=generator(2)).values
    exact = value_spread(values)
    assert exact.exact
    assert 1 <= exact.value <= 28
    bound = value_spread(values, exact_limit=29)
    assert (bound.value, bound.exact) == (28.0, False)
    assert value_spread(torch.eye(5).double()).value == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda K, v: gram_geometry(K[:2, :2], v[:2]), "values must have at least 3 rows; got 2"),
        (lambda K, v: gram_geometry(K, v[:3]), r"gram must be 3 x 3; got \(4, 4\)"),
        (lambda K, v: gram_geometry(K.triu(), v), "gram must be symmetric"),
        (lambda K, v: gram_geometry(K * torch.nan, v), "gram"),
        (lambda K, v: gram_geometry(K, v, v[:, :1]), r"codes must have shape \(4, 2\)"),
        (lambda K, v: gram_geometry(K, v * torch.inf), "values"),
        (lambda K, v: gram_geometry(K, v, centre=math.nan), "centre must be finite; got nan"),
        (lambda K, v: kernel_geometry(k2_kernel, v[:3], v), "keys must have one row per value, 4"),
        (
            lambda K, v: kernel_geometry(lambda x, z: (x @ z.T) / 0, v, v),
            "kernel must be finite",
        ),
        (
            lambda K, v: penalties(gram_geometry(K, v), m=0, d=2),
            r"m must be at least 1 and d above log F = 1.39; got 0 and 2",
        ),
    ],
)
def test_arguments_are_checked(call, message):
    K = torch.eye(4, dtype=torch.float64) + 0.1
    v = torch.tensor([[1.0, 0], [0, 1], [1, 1], [-1, 0]], dtype=torch.float64)
    with pytest.raises(ValueError, match=message):
        call(K, v)
