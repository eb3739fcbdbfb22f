from dataclasses import replace

import pytest
import torch

from lib.constructions.decoder import (
    RECIPE,
    Code,
    johnson_lindenstrauss,
    random_code,
    trained_code,
)
from lib.constructions.encoder import baum_encoder, plain_encoder
from lib.constructions.encoder_decoder import (
    EncoderDecoder,
    encoder_decoder,
    exact_parameters,
    margin_optimal,
    naive,
    with_exact_encoder,
    with_trained_encoder,
)
from lib.constructions.gradient import Recipe
from lib.constructions.ntk import ntk
from lib.decodability import achieved_radii, decodability, fold_whitening, whitened, whitening
from lib.decoding import retrieve, stores_all
from lib.facts import FactSet, gaussian, ill_condition, random_facts, sphere
from lib.mlp import GatedMLP, PlainMLP
from lib.numerics import generator

FACTS = random_facts(128, 16, generator=generator(0))
OPTIMAL = decodability(FACTS.values)
ENOUGH = 60  # entries with which a random code of these values decodes


def same(one, other):
    fresh = sphere(20, 16, generator=generator(1))
    torch.testing.assert_close(one(fresh), other(fresh), rtol=1e-8, atol=1e-8)


# --- decoders ----------------------------------------------------------------------------------


def test_a_code_decodes_when_every_value_wins():
    code = johnson_lindenstrauss(OPTIMAL.outputs, ENOUGH, generator=generator(2))
    scores = code.codes @ code.D.T @ FACTS.values.T
    assert torch.equal(scores.argmax(1), torch.arange(128))
    assert code.decodes(FACTS.values)
    assert not johnson_lindenstrauss(OPTIMAL.outputs, 3, generator=generator(2)).decodes(
        FACTS.values
    )
    assert not Code(-code.codes, code.D).decodes(FACTS.values)


def test_random_decoders_preserve_inner_products_in_the_mean():
    U, W = sphere(5, 16, generator=generator(3)), sphere(5, 16, generator=generator(4))
    code = johnson_lindenstrauss(U, 100_000, generator=generator(5))
    torch.testing.assert_close(code.codes @ (W @ code.D).T, U @ W.T, rtol=0, atol=0.02)


def test_a_code_as_long_as_the_outputs_with_an_orthogonal_decoder_loses_nothing():
    Q, _ = torch.linalg.qr(gaussian(16, 16, generator=generator(6)))
    code = random_code(OPTIMAL.outputs, 4 * Q)
    torch.testing.assert_close(code.codes @ code.D.T, OPTIMAL.outputs)
    radii = achieved_radii(code.codes @ code.D.T, FACTS.values)
    torch.testing.assert_close(radii, OPTIMAL.radii)


def test_trained_codes_are_shorter():
    code = trained_code(FACTS.values, 8, generator=generator(7))
    assert code.decodes(FACTS.values)
    assert not johnson_lindenstrauss(OPTIMAL.outputs, 8, generator=generator(7)).decodes(
        FACTS.values
    )
    again = trained_code(FACTS.values, 8, generator=generator(7))
    assert torch.equal(code.codes, again.codes) and torch.equal(code.D, again.D)


def test_training_ends_when_every_value_decodes(monkeypatch):
    looked = []
    monkeypatch.setattr(Code, "decodes", lambda code, values: looked.append(code) or True)
    code = trained_code(FACTS.values, 8, generator=generator(7))
    assert len(looked) == 1 and code is looked[0]


def test_equal_codes_do_not_decode():
    code = johnson_lindenstrauss(OPTIMAL.outputs, ENOUGH, generator=generator(2))
    code.codes[3] = code.codes[5]
    assert not code.decodes(FACTS.values)


def test_a_code_of_one_number_cannot_be_trained():
    code = trained_code(FACTS.values, 1, generator=generator(8), recipe=replace(RECIPE, steps=50))
    assert not code.decodes(FACTS.values)


# --- whole MLPs --------------------------------------------------------------------------------


@pytest.mark.parametrize("gate", ["silu", "gelu"])
@pytest.mark.parametrize("shared", [False, True])
def test_the_closed_construction_stores_its_facts(gate, shared):
    mlp = encoder_decoder(
        FACTS, ENOUGH, generator=generator(9), gate=gate, shared=shared, optimal=OPTIMAL
    )
    assert retrieve(mlp, FACTS).accuracy == 1
    code = johnson_lindenstrauss(OPTIMAL.outputs, ENOUGH, generator=generator(9))
    goals = (code.codes @ code.D.T)[FACTS.targets]
    torch.testing.assert_close(mlp(FACTS.keys), goals, rtol=1e-9, atol=1e-9)
    assert mlp.parameter_count == exact_parameters(ENOUGH, 128, 16, 16, shared=shared)
    assert not any(weight.requires_grad for weight in mlp.parameters())


def test_it_folds_into_one_gated_mlp():
    mlp = encoder_decoder(FACTS, ENOUGH, generator=generator(10), optimal=OPTIMAL)
    folded = mlp.folded()
    assert isinstance(folded, GatedMLP) and folded.width == mlp.width
    torch.testing.assert_close(folded.features(FACTS.keys), mlp.features(FACTS.keys))
    same(folded, mlp)
    assert stores_all(folded, FACTS)


def test_any_fact_map_is_stored_not_only_bijections():
    values = FACTS.values[:20]
    facts = FactSet(FACTS.keys, values, torch.randint(20, (128,), generator=generator(11)))
    mlp = encoder_decoder(facts, 40, generator=generator(12))
    assert stores_all(mlp, facts)


def test_trained_codes_and_trained_encoders_store_too():
    facts, recipe = FACTS.to(dtype=torch.float32), Recipe(600, 2e-2, 2e-5, 25)
    trained = trained_code(facts.values, 8, generator=generator(13))
    random = johnson_lindenstrauss(OPTIMAL.outputs.float(), ENOUGH, generator=generator(9))
    assert stores_all(with_exact_encoder(facts, trained, generator=generator(14)), facts)
    for code in (trained, random):
        mlp = with_trained_encoder(facts, code, 64, generator=generator(15), recipe=recipe)
        assert stores_all(mlp, facts)
        assert stores_all(mlp.folded(), facts)
        m = code.codes.shape[1]
        assert mlp.parameter_count == 64 * (2 * 16 + m) + 16 * m
        distance = (mlp.encoder(facts.keys) - code.codes[facts.targets]).norm()
        assert distance < 0.5 * code.codes.norm()


@pytest.mark.parametrize(
    "encode",
    [baum_encoder, lambda K, C: plain_encoder(K, C, 20, generator=generator(10))],
    ids=["blocks", "random units"],
)
def test_an_encoder_without_gates_folds_into_a_plain_mlp(encode):
    code = johnson_lindenstrauss(OPTIMAL.outputs, ENOUGH, generator=generator(9))
    mlp = EncoderDecoder(encode(FACTS.keys, code.codes[FACTS.targets]), code.D)
    assert stores_all(mlp, FACTS)
    assert isinstance(mlp.folded(), PlainMLP)
    same(mlp.folded(), mlp)


def test_the_naive_mlp_answers_with_the_optimal_outputs():
    mlp = naive(FACTS)
    expected = OPTIMAL.outputs[FACTS.targets]
    torch.testing.assert_close(mlp(FACTS.keys), expected, rtol=1e-9, atol=1e-9)
    assert stores_all(mlp, FACTS)
    assert mlp.width == 128 and mlp.parameter_count == 128 * 33
    torch.testing.assert_close(mlp.features(FACTS.keys), torch.eye(128).double())


def test_margin_optimal_outputs_store_where_the_values_themselves_do_not():
    """Long values drown short ones, as v_2 = 2 e_1 does v_1 = e_1 in Section 3.2."""
    values = gaussian(128, 16, generator=generator(16))
    facts = FactSet(FACTS.keys, values, FACTS.targets)

    def stored(aims):
        code = Code(aims, torch.eye(16).double())
        return retrieve(with_exact_encoder(facts, code, generator=generator(17)), facts).accuracy

    assert stored(values) < 1
    assert stored(margin_optimal(facts).values) == 1


def test_ntk_takes_margin_optimal_outputs():
    facts = random_facts(64, 32, generator=generator(17))
    aims = margin_optimal(facts)
    mlp = ntk(aims, 2000, generator=generator(18))
    assert stores_all(mlp, facts)
    torch.testing.assert_close(aims.values.norm(dim=1), torch.ones(64).double())


def test_whitened_facts_fold_back():
    V = ill_condition(FACTS.values, 100.0)
    facts = FactSet(FACTS.keys, V, FACTS.targets)
    W = whitening(V)
    white = whitened(facts, W)
    mlp = encoder_decoder(white, ENOUGH, generator=generator(19)).folded()
    assert stores_all(mlp, white)
    assert stores_all(fold_whitening(mlp, W), facts)


def test_values_in_the_hull_of_the_others_are_refused():
    values = torch.cat([FACTS.values[:127], FACTS.values[:127].mean(0, keepdim=True)])
    facts = FactSet(FACTS.keys, values, FACTS.targets)
    with pytest.raises(
        ValueError, match=r"values must not be convex combinations.*row 127 is, and"
    ):
        margin_optimal(facts)
    with pytest.raises(ValueError, match="keys must not be convex combinations"):
        naive(FactSet(values, FACTS.values, FACTS.targets))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: encoder_decoder(FACTS, 3, generator=generator(0)),
            "m = 3 entries does not decode",
        ),
        (
            lambda: encoder_decoder(FACTS, 8, generator=generator(7)),
            "m = 8 entries does not decode",
        ),
        (
            lambda: EncoderDecoder(
                plain_encoder(FACTS.keys, FACTS.values, 20, generator=generator(0)),
                torch.eye(15).double(),
            ),
            r"D must be \(d, 16\).*got \(15, 15\)",
        ),
        (
            lambda: naive(
                FactSet(FACTS.keys[[0, 0]], FACTS.values, torch.zeros(2, dtype=torch.int64))
            ),
            "keys must be at least 2 and distinct",
        ),
        (
            lambda: naive(FactSet(FACTS.keys[:1], FACTS.values, FACTS.targets[:1])),
            "keys must be at least 2 and distinct",
        ),
        (lambda: encoder_decoder(FACTS, 0, generator=generator(0)), "m must be an integer"),
        (lambda: trained_code(FACTS.values, 0, generator=generator(0)), "m must be an integer"),
    ],
)
def test_what_cannot_be_done_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
