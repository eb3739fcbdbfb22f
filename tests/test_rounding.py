import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.constructions.hebbian import sketched_k2
from lib.decoding import retrieve
from lib.facts import FactSet, random_facts, sphere
from lib.mlp import GatedMLP, random_mlp
from lib.numerics import generator
from lib.rounding import (
    RARE,
    RMS_ROUNDING,
    code_length,
    expected_bits,
    output_tolerance,
    parameter_lipschitz,
    quantized,
    readout_norm_bound,
    round_integer,
    round_mantissa,
    rounded_margin_floors,
    rounding_deviations,
    sufficient_bits,
)

SEEDS = st.integers(0, 10_000)
FORMATS = [(23, torch.float32), (10, torch.float16), (7, torch.bfloat16)]


def memory(seed, F=20, d=24, m=256):
    """A memory that stores its facts at the default sizes."""
    facts = random_facts(F, d, generator=generator(seed))
    return facts, sketched_k2(facts, m, generator=generator(seed, 1))


# --- rounding


@pytest.mark.parametrize(("bits", "dtype"), FORMATS)
def test_formats_are_mantissas_in_their_normal_range(bits, dtype):
    g = generator(bits)
    sizes = torch.randn(300, 300, generator=g).exp()  # torch itself rounds float64 twice
    x = (sizes * torch.randn(300, 1, generator=g).sign()).double()
    ties = 1 + torch.arange(300, dtype=torch.float64)[None] / 2 ** (bits + 1)
    for numbers in (x, ties, torch.zeros(1, 1).double()):
        assert torch.equal(round_mantissa(numbers, bits), numbers.to(dtype).double())


@given(SEEDS, st.integers(0, 52))
def test_the_relative_error_of_a_mantissa_is_bounded(seed, bits):
    x = torch.randn(20, 20, dtype=torch.float64, generator=generator(seed)).exp()
    assert ((round_mantissa(x, bits) - x).abs() <= 2.0 ** -(bits + 1) * x).all()


def test_the_root_mean_square_error_of_a_mantissa_is_what_it_is_taken_for():
    x = torch.logspace(0, math.log10(2), 1_000_000, dtype=torch.float64)[:-1, None]
    for bits in (3, 8):
        error = (round_mantissa(x, bits) / x - 1) * 2 ** (bits + 1)
        assert error.square().mean().sqrt().item() == pytest.approx(RMS_ROUNDING, rel=0.01)


@given(SEEDS, st.integers(2, 16), st.booleans())
def test_integers_are_nearest_multiples_with_the_largest_kept(seed, bits, by_row):
    x = torch.randn(6, 9, dtype=torch.float64, generator=generator(seed))
    x[0] = 0
    largest = x.abs().amax(1, keepdim=True) if by_row else x.abs().amax()
    rounded = round_integer(x, bits, by_row=by_row)
    scale = largest / (2 ** (bits - 1) - 1)
    assert ((rounded - x).abs() <= scale / 2 * (1 + 1e-9)).all()
    assert torch.allclose(
        rounded.abs().amax(1, keepdim=True) if by_row else rounded.abs().amax(), largest, rtol=1e-12
    )
    multiples = rounded / torch.where(scale > 0, scale, 1)
    assert torch.allclose(multiples, multiples.round(), rtol=0, atol=1e-9)


# --- Lemmas B.4 and B.5, Theorem B.6


@given(SEEDS)
def test_outputs_within_the_tolerance_keep_half_of_the_margin(seed):
    facts, mlp = memory(seed % 5)
    margin = retrieve(mlp, facts).minimum_margin
    radius = facts.values.norm(dim=1).max().item()
    moves = output_tolerance(margin, radius) * sphere(20, 24, generator=generator(seed))
    assert retrieve(lambda k: mlp(k) + moves, facts).minimum_margin >= margin / 2
    worst = retrieve(mlp, facts)
    w = facts.values[worst.competitors] - facts.answers
    moves = output_tolerance(margin, radius) * w / w.norm(dim=1, keepdim=True)
    assert retrieve(lambda k: mlp(k) + moves, facts).minimum_margin >= margin / 2


@given(SEEDS, st.integers(1, 6), st.integers(1, 6), st.floats(-6, 1))
def test_outputs_are_lipschitz_in_the_parameters(seed, d, m, size):
    first = random_mlp(d, m, 3, "identity", generator=generator(seed))
    step = random_mlp(d, m, 3, "identity", generator=generator(seed, 1))
    second = GatedMLP(
        *(
            a.detach() + 10**size * b.detach()
            for a, b in zip(first.parameters(), step.parameters(), strict=True)
        )
    )
    norm = max(
        torch.linalg.matrix_norm(w.detach(), 2).item()
        for mlp in (first, second)
        for w in mlp.parameters()
    )
    distance = math.sqrt(
        sum(
            (a - b).square().sum().item()
            for a, b in zip(first.parameters(), second.parameters(), strict=True)
        )
    )
    x = sphere(10, d, generator=generator(seed, 2))
    moved = (first(x) - second(x)).detach().norm(dim=1).max().item()
    assert moved <= parameter_lipschitz(norm, 1.0) * distance * (1 + 1e-9)


def test_the_lipschitz_constant_is_attained_by_one_unit():
    def unit(w):
        return GatedMLP(*(torch.tensor([[w]], dtype=torch.float64) for _ in range(3)))

    x, step = torch.ones(1, 1).double(), 1e-6
    moved = (unit(1.0)(x) - unit(1.0 - step)(x)).item()
    assert moved == pytest.approx(parameter_lipschitz(1.0, 1.0) * math.sqrt(3) * step, rel=1e-5)


@pytest.mark.parametrize("whitening", ["none", "full"])
@pytest.mark.parametrize("seed", range(4))
def test_rounding_to_the_sufficient_bits_keeps_half_of_the_margin(seed, whitening):
    facts = random_facts(20, 24, generator=generator(seed))
    mlp = sketched_k2(facts, 256, whitening=whitening, generator=generator(seed, 1))
    retrieval = retrieve(mlp, facts)
    margin = retrieval.minimum_margin
    sufficient = sufficient_bits(mlp, facts, margin)

    def rounded(bits):
        return retrieve(quantized(mlp, lambda w: round_mantissa(w, bits)), facts)

    assert rounded(sufficient).minimum_margin >= margin / 2
    floors = [rounded_margin_floors(mlp, facts, bits) for bits in range(sufficient + 1)]
    for bits, floor in enumerate(floors):
        assert (floor <= rounded(bits).margins).all()
    # entry by entry is never worse than norm by norm
    assert floors[sufficient].min() >= margin / 2
    assert expected_bits(mlp, facts, retrieval) <= next(
        bits for bits, floor in enumerate(floors) if floor.min() >= margin / 2
    )


@given(SEEDS)
def test_the_floors_hold_for_any_errors_of_the_allowed_size(seed):
    facts, mlp = memory(seed % 5, F=8, d=5, m=12)
    bits, g = seed % 7, generator(seed)

    def disturb(w):
        return w * (1 + 2.0 ** -(bits + 1) * (2 * torch.rand(w.shape, generator=g).double() - 1))

    floors = rounded_margin_floors(mlp, facts, bits)
    assert (floors <= retrieve(quantized(mlp, disturb), facts).margins + 1e-12).all()
    assert torch.allclose(floors, rounded_margin_floors(mlp, facts, bits, entries=1), rtol=1e-12)


def test_the_floors_are_attained_to_first_order():
    """Errors of the worst sign for one fact reach the bound up to terms of second order."""
    facts, mlp = memory(0, F=8, d=5, m=12)
    bits, i = 30, 3
    retrieval = retrieve(mlp, facts)
    loss = retrieval.margins[i] - rounded_margin_floors(mlp, facts, bits)[i]
    free = GatedMLP(*(w.detach().clone() for w in mlp.parameters()))
    w = facts.answers[i] - facts.values[retrieval.competitors[i]]
    (free(facts.keys[i : i + 1])[0] @ w).backward()
    worst = sum((p.grad * p).abs().sum() for p in free.parameters()) * 2.0 ** -(bits + 1)
    assert loss.item() == pytest.approx(worst.item(), rel=1e-6)


def test_deviations_are_those_of_random_errors():
    facts, mlp = memory(1)
    retrieval = retrieve(mlp, facts)
    size, draws, g = 1e-4, 4000, generator(5)
    w = facts.answers - facts.values[retrieval.competitors]

    def disturbed():
        noisy = quantized(
            mlp, lambda x: x * (1 + size * torch.randn(x.shape, generator=g, dtype=torch.float64))
        )
        return (noisy(facts.keys) * w).sum(1) - retrieval.margins

    measured = torch.stack([disturbed() for _ in range(draws)]).std(0) / size
    predicted = rounding_deviations(mlp, facts, retrieval)
    assert torch.allclose(measured, predicted, rtol=5 / math.sqrt(2 * draws))


def test_expected_bits_follow_their_definition():
    facts, mlp = memory(2)
    retrieval = retrieve(mlp, facts)
    bits = expected_bits(mlp, facts, retrieval)
    room = retrieval.margins - retrieval.minimum_margin / 2
    deviations = rounding_deviations(mlp, facts, retrieval)

    def lost(t):
        z = room / (RMS_ROUNDING * 2.0 ** -(t + 1) * deviations)
        return sum(0.5 * math.erfc(x / math.sqrt(2)) for x in z.tolist())

    assert lost(bits) <= RARE
    assert bits == 0 or lost(bits - 1) > RARE


@given(SEEDS, st.floats(0.1, 10))
def test_the_raw_readout_stays_within_its_bound(seed, size):
    facts, _ = memory(seed % 5)
    facts = FactSet(size * facts.keys, facts.values, facts.targets)
    mlp = sketched_k2(facts, 30, generator=generator(seed))
    norm = torch.linalg.matrix_norm(mlp.B, 2).item()
    assert mlp.B.abs().max() <= norm <= readout_norm_bound(mlp, facts) * (1 + 1e-12)


def test_a_code_has_a_sign_a_mantissa_and_an_exponent():
    assert code_length(10, 0) == 10 * (1 + 0 + 2)  # two exponents or zero
    assert code_length(10, 5) == 10 * (1 + 5 + 3)  # seven or zero


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, m: round_mantissa(f.keys, 53), "bits must be in 0..52; got 53"),
        (lambda f, m: round_integer(f.keys, 1), "bits must be in 2..32; got 1"),
        (
            lambda f, m: sufficient_bits(m, f, 0.0),
            "the memory must store its facts and values must not be zero; got margin 0",
        ),
        (
            lambda f, m: rounded_margin_floors(m, f, -1),
            "bits must be an integer of at least 0; got -1",
        ),
        (lambda f, m: code_length(0, 3), "parameters must be an integer of at least 1; got 0"),
        (
            lambda f, m: sufficient_bits(GatedMLP(m.A, m.G, m.B, "relu"), f, 1.0),
            "mlp must be bilinear, with the gate 'identity'; got 'relu'",
        ),
    ],
)
def test_arguments_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call(*memory(0))
