import math

import pandas as pd
import pytest
import torch

from lib import capacity
from lib.chapter import data
from lib.constructions.decoder import Code
from lib.constructions.encoder_decoder import (
    exact_parameters,
    margin_optimal,
    with_exact_encoder,
    with_trained_encoder,
)
from lib.decodability import decodability
from lib.decoding import stores_all
from lib.encoder_capacity import (
    METHODS,
    POINT,
    conditioned_facts,
    encoder_capacity,
    smallest_random_code,
    smallest_trained_code,
)
from lib.numerics import generator

SMALL = (0, 0, 16, 24, 0)


def test_isotropic_tables_are_the_facts_of_chapter_10():
    facts = capacity.embedded_facts("isotropic", 16, 24, 0, 16, 24, 0)
    assert torch.equal(conditioned_facts(*SMALL).keys, facts.keys)
    assert torch.equal(conditioned_facts(*SMALL).values, facts.values)


def test_tables_have_the_condition_number_and_whitening_that_was_asked_for():
    def condition(V):
        return torch.linalg.cond(V - V.mean(0)).item()

    raw, half, white = (
        conditioned_facts(alpha, 50.0, 16, 64, 0).values for alpha in (0.0, 0.5, 1.0)
    )
    assert torch.linalg.cond(raw).item() == pytest.approx(50.0, rel=1e-9)
    assert condition(half) == pytest.approx(condition(raw) ** 0.5, rel=1e-9)
    assert condition(white) == pytest.approx(1.0, rel=1e-9)


def test_the_smallest_codes_decode():
    V = conditioned_facts(*SMALL).values
    random = smallest_random_code(V, decodability(V).outputs, 1)
    trained = smallest_trained_code(V, 1)
    assert random.decodes(V) and trained.decodes(V.float())
    assert trained.codes.shape[1] <= random.codes.shape[1]
    assert smallest_random_code(V, decodability(V).outputs, 1, largest=4) is None


@pytest.mark.parametrize("method", METHODS)
def test_a_point_is_a_size_with_its_parameters(method):
    found = encoder_capacity(method, *SMALL)
    assert set(found) == {"rho", "m", "width", "parameters"}
    m, width = found["m"], found["width"]
    expected = {
        "Bin": lambda: exact_parameters(m, 24, 16, 16),
        "GD +": lambda: (2 * 16 + m) * width + 16 * m,
        "GD": lambda: 3 * 16 * width,
        "NTK": lambda: 3 * 16 * width,
    }
    kind = "GD +" if method.startswith("GD +") else method[:3].strip(" ,")
    assert found["parameters"] == expected[kind]()


@pytest.mark.parametrize("method", METHODS)
def test_the_size_that_is_found_stores_the_facts(method):
    found = encoder_capacity(method, *SMALL)
    facts, stream = conditioned_facts(*SMALL), (0, 16, 24, 1)
    if method in ("GD", "NTK", "NTK, u*"):
        aims = margin_optimal(facts) if method == "NTK, u*" else facts
        construct, _ = capacity.CONSTRUCTIONS["gradient descent" if method == "GD" else "NTK"]
        assert stores_all(construct(aims, found["width"], stream), facts)
        return
    V = facts.values
    if method.endswith("JL"):
        code = smallest_random_code(V, decodability(V).outputs, 0, 16, 24, 2)
    else:
        code = smallest_trained_code(V, 0, 16, 24, 2)
    assert code.codes.shape[1] == found["m"]
    single = facts.to(dtype=torch.float32)
    code = Code(code.codes.float(), code.D.float())
    g = generator(*stream, found["width"])
    if method.startswith("Bin"):
        mlp = with_exact_encoder(single, code, generator=g)
        assert mlp.width == found["width"] and mlp.parameter_count == found["parameters"]
    else:
        mlp = with_trained_encoder(single, code, found["width"], generator=g, enough=0.0)
    assert stores_all(mlp, single)


def test_sizes_of_keys_that_gadgets_cannot_take_are_not_promised():
    found = encoder_capacity("Bin + GD", 0, 0, 2, 24, 0)
    assert math.isnan(found["width"]) and math.isnan(found["parameters"])


def test_random_codes_may_be_long():
    V = conditioned_facts(0, 1000.0, 16, 48, 0).values
    code = smallest_random_code(V, decodability(V).outputs, 1)
    assert code.codes.shape[1] > 64 and code.decodes(V)


def test_trained_sizes_are_those_of_chapter_10():
    ours = encoder_capacity("GD", *SMALL)["width"]
    theirs = capacity.capacity("gradient descent", "isotropic", 16, 24, 0, 2**14)["width"]
    assert ours == theirs


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="method must be one of Bin"):
        encoder_capacity("Bin", *SMALL)


def test_the_stored_file_has_what_the_library_computes():
    stored = pd.read_csv(data("encoder_decoder.csv"))
    assert list(stored.columns[: len(POINT)]) == list(POINT)
    row = stored[(stored["method"] == "Bin + JL") & (stored["condition_number"] == 1.1)].iloc[0]
    point = (int(row["whitening"]), 1.1, int(row["d"]), int(row["F"]), int(row["seed"]))
    found = encoder_capacity("Bin + JL", *point)
    for name in ("rho", "m", "parameters"):
        assert row[name] == pytest.approx(found[name], rel=1e-5)
