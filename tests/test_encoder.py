import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.constructions.encoder import (
    GadgetEncoder,
    baum_encoder,
    gadget_matrix,
    gated_encoder,
    hidden_size,
    plain_encoder,
    solve_gadgets,
    two_hot_bits,
    two_hot_encoder,
    two_hot_keys,
    two_hot_projections,
)
from lib.facts import gaussian, ill_condition, sphere
from lib.mlp import GATES, GatedMLP
from lib.numerics import generator

ANALYTIC = ("silu", "gelu")  # and no polynomials
KEYS = sphere(150, 16, generator=generator(0))
CODES = gaussian(150, 5, generator=generator(1))


def worst(encoder, keys=KEYS, codes=CODES):
    return ((encoder(keys) - codes).abs().max() / codes.abs().max()).item()


@pytest.mark.parametrize(("F", "d"), [(150, 16), (64, 32), (240, 8), (33, 5)])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("gate", ANALYTIC)
def test_generic_keys_get_any_code_exactly(gate, shared, F, d):
    for seed in range(3):
        keys = sphere(F, d, generator=generator(2, seed))
        codes = gaussian(F, 4, generator=generator(3, seed))
        h = hidden_size(F, d)
        encoder = gated_encoder(
            keys, codes, h, generator=generator(4, seed), gate=gate, shared=shared
        )
        assert worst(encoder, keys, codes) < 1e-9
        assert h == math.ceil(1.1 * F / d)
        assert not any(weight.requires_grad for weight in encoder.parameters())


def test_the_length_of_keys_does_not_matter():
    for scale in (1e-3, 1e3):
        encoder = gated_encoder(scale * KEYS, CODES, 11, generator=generator(5))
        assert worst(encoder, scale * KEYS) < 1e-9
        usual = gated_encoder(KEYS, CODES, 11, generator=generator(5))
        torch.testing.assert_close(scale * encoder.G, usual.G)


def test_a_few_long_keys_do_not_close_the_gates_of_the_others():
    keys, codes = sphere(30, 5, generator=generator(20)), CODES[:30]
    keys[:5] *= 1e4
    for h in (7, 20):
        assert worst(gated_encoder(keys, codes, h, generator=generator(21)), keys, codes) < 1e-5


@pytest.mark.parametrize("row", [torch.zeros(16).double(), KEYS[4]])
def test_zero_and_repeated_keys_are_named_as_the_reason(row):
    keys = torch.cat([KEYS[:9], row[None]])
    with pytest.raises(ValueError, match="distinct and not zero, or no h helps; 9 of 10 are"):
        gated_encoder(keys, CODES[:10], 30, generator=generator(0))


def test_the_gadget_matrix_is_the_gadgets_own_linear_map():
    A, G = gaussian(3, 16, generator=generator(6)), gaussian(3, 16, generator=generator(7))
    gadget = GadgetEncoder(A[None], G[None], "silu")
    M = gadget_matrix(KEYS, torch.nn.functional.silu(KEYS @ G.T))
    torch.testing.assert_close(M @ A.flatten(), gadget(KEYS)[:, 0], rtol=1e-12, atol=1e-12)
    assert M.shape == (150, 48)


@given(st.integers(2, 5), st.integers(1, 5), st.integers(0, 10**6))
def test_the_rank_of_the_gadget_matrix_is_that_of_the_matroid_union(d, h, seed):
    """rank M = min over subsets S of keys of d rank Sigma[:, S] + F - |S| (Lemma B.4.4)."""
    F = 7
    rng = np.random.default_rng(seed)
    keys = torch.from_numpy(rng.standard_normal((F, d)))
    pattern = torch.from_numpy((rng.random((F, h)) < 0.4) * rng.standard_normal((F, h)))
    expected = min(
        d * int(np.linalg.matrix_rank(pattern[list(S)].numpy())) + F - len(S) if S else F
        for size in range(F + 1)
        for S in itertools.combinations(range(F), size)
    )
    assert np.linalg.matrix_rank(gadget_matrix(keys, pattern).numpy()) == expected


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("gate", ["silu", "relu"])
def test_folding_preserves_outputs(gate, shared):
    encoder = gated_encoder(KEYS, CODES, 20, generator=generator(8), gate=gate, shared=shared)
    folded = encoder.folded()
    fresh = sphere(30, 16, generator=generator(9))
    torch.testing.assert_close(folded(fresh), encoder(fresh), rtol=1e-9, atol=1e-9)
    assert folded.width == encoder.width == 5 * 20
    assert not any(weight.requires_grad for weight in folded.parameters())


def test_parameters_are_within_twice_the_degrees_of_freedom():
    """2 m F, and F m + F with shared gates, up to the ten per cent and the sums."""
    F, d, m = 150, 16, 5
    h = hidden_size(F, d)
    stacked = gated_encoder(KEYS, CODES, h, generator=generator(8))
    shared = gated_encoder(KEYS, CODES, h, generator=generator(8), shared=True)
    assert stacked.parameter_count == 2 * m * h * d + m * h
    assert shared.parameter_count == (m + 1) * h * d + m * h
    freedom = m * F
    slack = h * d / F * (1 + 1 / d)
    assert freedom < shared.parameter_count < stacked.parameter_count <= 2 * freedom * slack


def test_too_few_hidden_units_are_refused_with_how_many_are_missing():
    for h, grow in ((9, 1), (5, 5), (1, 9)):
        with pytest.raises(
            ValueError, match=f"rank {16 * h}.*h = {h} must grow by at least {grow}"
        ):
            gated_encoder(KEYS, CODES, h, generator=generator(10))


def test_a_key_with_all_gates_off_is_refused():
    activations = torch.relu(KEYS @ gaussian(12, 16, generator=generator(11)).T)
    assert solve_gadgets(KEYS, activations, CODES).shape == (5, 12, 16)
    activations[3] = 0
    with pytest.raises(ValueError, match=r"rank 149, below its 150 keys: h = 12 .* at least 1,"):
        solve_gadgets(KEYS, activations, CODES)


def test_the_rank_is_right_whatever_was_in_memory():
    """torch's gelsy sees too small a rank here now and then."""
    keys = sphere(256, 32, generator=generator(0))
    codes = gaussian(256, 1, generator=generator(1))
    for seed in range(10):
        G = gaussian(18, 32, generator=generator(12, seed))
        activations = torch.relu(keys @ G.T)
        M = gadget_matrix(keys, activations)
        assert np.linalg.matrix_rank(M.numpy()) == 256
        A = solve_gadgets(keys, activations, codes)
        torch.testing.assert_close(M @ A.flatten()[:, None], codes, rtol=1e-9, atol=1e-9)


def test_the_identity_gate_ends_at_its_rank():
    with pytest.raises(ValueError, match=r"at most d \(d \+ 1\) / 2 = 136 for the identity gate"):
        gated_encoder(KEYS, CODES, 100, generator=generator(13), gate="identity")
    encoder = gated_encoder(
        KEYS[:136], CODES[:136], 20, generator=generator(13), gate="identity", shared=True
    )
    assert worst(encoder, KEYS[:136], CODES[:136]) < 1e-8


def test_single_precision_keys_are_solved_in_double():
    encoder = gated_encoder(KEYS.float(), CODES.float(), 11, generator=generator(14))
    assert encoder.A.dtype == torch.float32
    assert worst(encoder, KEYS.float(), CODES.float()) < 1e-3


# --- two-hot keys ------------------------------------------------------------------------------


@given(st.integers(2, 9), st.integers(0, 10**6))
def test_two_hot_keys_get_their_codes_exactly_in_integers(d, seed):
    keys, (p, q) = two_hot_keys(d)
    assert (keys.sum(1) == 0).all() and (keys[torch.arange(len(p)), p] == 1).all()
    codes = torch.randint(-(10**9), 10**9, (len(keys), 3), generator=generator(seed))
    A = two_hot_projections(codes, d)
    assert A.dtype == torch.int64
    found = torch.stack([((keys @ Aj.T) * keys.clamp(min=0)).sum(1) for Aj in A], 1)
    assert torch.equal(found, codes)
    encoder = two_hot_encoder(codes, d)
    assert torch.equal(encoder(keys.double()), codes.double())
    assert torch.equal(encoder.folded()(keys.double()), codes.double())
    assert (p != q).all()


@given(st.integers(2, 9), st.integers(0, 10**6))
def test_bits_need_neither_gates_nor_numbers_other_than_one(d, seed):
    keys, _ = two_hot_keys(d)
    bits = torch.randint(0, 2, (len(keys),), generator=generator(seed))
    mlp = two_hot_bits(bits, d)
    assert torch.equal(mlp(keys.double())[:, 0], bits.double())
    assert set(mlp.A.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert mlp.width == d


def test_codes_of_few_bits_do_not_overflow():
    codes = torch.full((6, 1), -128, dtype=torch.int8)
    keys, _ = two_hot_keys(3)
    assert (two_hot_encoder(codes, 3)(keys.double()) == -128).all()


# --- without gates -----------------------------------------------------------------------------


def test_no_key_goes_more_than_half_the_way_to_the_kink():
    encoder = plain_encoder(KEYS, CODES, 22, generator=generator(15))
    before, after = (KEYS @ encoder.A.T).split([22, 22 * 5], dim=1)
    ratios = after.unflatten(1, (5, 22)) / before[:, None]
    assert ratios.min() > 0.5 - 1e-6


def test_keys_next_to_each_other_get_their_codes_or_are_refused():
    keys, codes = sphere(30, 5, generator=generator(22)), gaussian(30, 3, generator=generator(23))
    for distance in (1e-6, 1e-8):
        close = torch.cat([keys, keys[:1] + distance * keys[1:2]])
        opposite = torch.cat([codes, -codes[:1]])
        assert worst(baum_encoder(close, opposite), close, opposite) < 1e-5
    close[30] = keys[0] + 1e-10 * keys[1]
    with pytest.raises(ValueError, match="too close to each other"):
        baum_encoder(close, opposite)


def test_single_precision_is_enough_or_refused():
    keys, codes = KEYS.float(), CODES.float()
    assert worst(baum_encoder(keys, codes), keys, codes) < 5e-3
    for gate in ANALYTIC:
        smooth = plain_encoder(keys, codes, 11, generator=generator(16), gate=gate)
        assert smooth.A.dtype == torch.float32
        assert worst(smooth, keys, codes) < 0.05
    many = sphere(1000, 16, generator=generator(24)).float()
    with pytest.raises(ValueError, match=r"for torch\.float32: codes are off by"):
        baum_encoder(many, gaussian(1000, 1, generator=generator(25)).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entries_that_are_zero_for_all_keys_stay_zero(dtype):
    keys, codes = KEYS[:48].to(dtype), CODES[:48].to(dtype)
    codes[:, 2] = 0
    for some in (codes, 0 * codes):
        for encoder in (
            baum_encoder(keys, some),
            plain_encoder(keys, some, 22, generator=generator(15)),
            plain_encoder(keys, some, 22, generator=generator(15), gate="silu"),
        ):
            assert (encoder(keys)[:, 2] == 0).all()


@pytest.mark.parametrize("m", [1, 5])
def test_the_plain_relu_encoder_is_exact(m):
    codes = CODES[:, :m]
    encoder = plain_encoder(KEYS, codes, 22, generator=generator(15))
    assert worst(encoder, codes=codes) < 1e-8
    assert encoder.width == 22 * (m + 1)


@pytest.mark.parametrize("gate", ANALYTIC)
def test_the_error_of_a_smooth_activation_falls_like_its_step(gate):
    errors = [
        worst(plain_encoder(KEYS, CODES, 11, generator=generator(16), gate=gate, step=step))
        for step in (1e-3, 1e-4, 1e-5)
    ]
    assert errors[0] < 0.1
    np.testing.assert_allclose(np.divide(errors[:-1], errors[1:]), 10, rtol=0.05)


@pytest.mark.parametrize("m", [1, 5])
@pytest.mark.parametrize("F", [16, 144, 150])
def test_blocks_of_keys_on_hyperplanes_are_exact(F, m):
    keys, codes = KEYS[:F], CODES[:F, :m]
    encoder = baum_encoder(keys, codes)
    assert worst(encoder, keys, codes) < 1e-8
    assert encoder.width == (2 * m + 2) * math.ceil(F / 16)  # 4 ceil(F / d) at m = 1
    assert encoder.gate == "relu"


def test_anisotropic_keys_are_generic_too():
    keys = ill_condition(KEYS, 30.0)
    assert worst(gated_encoder(keys, CODES, 14, generator=generator(17)), keys) < 1e-9
    assert worst(baum_encoder(keys, CODES), keys) < 1e-6


def test_keys_on_the_hyperplane_of_others_are_refused():
    corners = torch.eye(3).double()
    keys = torch.cat([corners, corners.mean(0, keepdim=True)])
    with pytest.raises(ValueError, match="keys must be in general position; those from 0 on"):
        baum_encoder(keys, CODES[:4])


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gated_encoder(KEYS, CODES, 0, generator=generator(0)), "width must be an integer"),
        (lambda: gated_encoder(KEYS, CODES[:9], 9, generator=generator(0)), "per key, 150.*got 9"),
        (lambda: gated_encoder(0 * KEYS, CODES, 9, generator=generator(0)), "not all be zero"),
        (
            lambda: gated_encoder(KEYS, CODES, 9, generator=generator(0), gate="sine"),
            f"gate must be one of {', '.join(GATES)}; got 'sine'",
        ),
        (
            lambda: plain_encoder(KEYS, CODES, 9, generator=generator(0), gate="identity"),
            "but identity; got 'identity'",
        ),
        (
            lambda: plain_encoder(KEYS, CODES, 9, generator=generator(0), gate="silu", step=0.0),
            "step must be positive and finite; got 0.0",
        ),
        (lambda: hidden_size(10, 0), "d must be an integer of at least 1"),
        (lambda: two_hot_keys(1), "d must be an integer of at least 2; got 1"),
        (lambda: two_hot_projections(torch.ones(5, 1).long(), 3), r"d \(d - 1\) = 6 rows; got 5"),
        (lambda: two_hot_bits(2 * torch.ones(6).long(), 3), "bits must be 0 or 1"),
        (lambda: GadgetEncoder(KEYS[None], KEYS[None, :9]), r"G as A or \(1, h, d\)"),
        (lambda: GadgetEncoder(KEYS[None], KEYS[None], "sine"), "gate must be one of"),
        (lambda: GadgetEncoder(KEYS[None], KEYS[None].float()), "of one dtype"),
        (lambda: GadgetEncoder(KEYS[None][:0], KEYS[None]), "not empty"),
        (lambda: GadgetEncoder(KEYS[None] * torch.nan, KEYS[None]), "must be finite"),
    ],
)
def test_what_cannot_be_done_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_folded_encoder_is_a_gated_mlp():
    assert isinstance(gated_encoder(KEYS, CODES, 11, generator=generator(8)).folded(), GatedMLP)
