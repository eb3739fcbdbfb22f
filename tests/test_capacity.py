from bisect import bisect_left

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib import capacity
from lib.capacity import (
    CONSTRUCTIONS,
    EMBEDDINGS,
    POINT,
    RUN,
    WIDTHS,
    embedded_facts,
    nested_normal,
    smallest_width,
)
from lib.decoding import retrieve, stores_all
from lib.sweeps import sweep


def test_widths_are_all_small_ones_then_a_constant_ratio_apart():
    assert WIDTHS[:20] == list(range(1, 21))
    steps = np.diff(np.log2([width for width in WIDTHS if width > 100]))
    assert np.allclose(steps, 1 / 16, atol=0.015)
    assert WIDTHS[-1] == 2**17


@given(st.integers(1, 100_000), st.integers(1, 200_000))
def test_a_monotone_threshold_is_found_wherever_the_search_begins(threshold, guess):
    found = smallest_width(lambda m: m >= threshold, guess=guess)
    assert found == WIDTHS[bisect_left(WIDTHS, threshold)]


@given(st.integers(0, 10_000), st.integers(20, 2000), st.integers(1, 4000))
def test_without_monotony_the_width_is_what_is_promised(seed, middle, guess):
    """It and the next succeed, the one before fails, and no width is tried twice."""
    rng = np.random.default_rng(seed)
    success = {m: rng.random() < 1 / (1 + (middle / m) ** 4) for m in WIDTHS}
    tried = []

    def stores(m):
        tried.append(m)
        return success[m]

    found = smallest_width(stores, guess=guess)
    assert len(set(tried)) == len(tried)
    if found is not None:
        k = WIDTHS.index(found)
        assert all(success[m] for m in WIDTHS[k : k + RUN])
        assert k == 0 or not success[WIDTHS[k - 1]]


def test_nothing_is_found_where_nothing_is():
    assert smallest_width(lambda m: False, guess=10, largest=100) is None
    assert smallest_width(lambda m: m > 95, guess=10, largest=100) is None
    assert smallest_width(lambda m: True, guess=500, largest=100) == 1


def test_nested_weights_do_not_depend_on_how_many_there_are():
    few, many = nested_normal(10, 4, 1, 2), nested_normal(700, 4, 1, 2)
    for a, b in zip(few, many, strict=True):
        assert torch.equal(a, b[:10])
    assert not torch.equal(*few)
    entries = torch.stack(many)
    assert entries.mean().abs() < 0.05
    assert entries.std().item() == pytest.approx(1, rel=0.05)


def test_embeddings_are_what_they_are_called():
    isotropic, tied, spiked = (embedded_facts(name, 16, 200, 3) for name in EMBEDDINGS)
    assert not torch.equal(isotropic.keys, isotropic.values)
    assert torch.equal(tied.keys, tied.values)
    assert torch.equal(isotropic.targets, spiked.targets)
    top = [torch.linalg.svdvals(f.keys)[0].item() for f in (isotropic, spiked)]
    assert top[1] > 1.5 * top[0]
    with pytest.raises(ValueError, match="embedding must be one of isotropic, tied, spiked"):
        embedded_facts("flat", 16, 20, 3)


@pytest.mark.parametrize("construction", list(CONSTRUCTIONS))
def test_capacity_is_a_width_that_stores(construction):
    point = (construction, "isotropic", 16, 24, 0, 4096)
    row = capacity.capacity(*point)
    facts = embedded_facts("isotropic", 16, 24, 0, 16, 24, 0)
    construct, _ = CONSTRUCTIONS[construction]
    mlp = construct(facts, int(row["width"]), (0, 16, 24, 1))
    assert stores_all(mlp, facts)
    assert retrieve(mlp, facts).accuracy == 1.0
    assert mlp.parameter_count == row["parameters"]
    assert row == capacity.capacity(*point)


def test_stores_all_agrees_with_retrieve():
    facts = embedded_facts("isotropic", 16, 40, 0)
    construct, _ = CONSTRUCTIONS["whitened"]
    answers = [
        (stores_all(mlp, facts), retrieve(mlp, facts).accuracy == 1)
        for mlp in (construct(facts, width, (0,)) for width in range(10, 60, 5))
    ]
    assert all(a == b for a, b in answers)
    assert {a for a, _ in answers} == {True, False}
    tie = lambda k: torch.zeros(len(k), 16).double()  # noqa: E731
    assert not stores_all(tie, facts)


def test_a_sweep_of_capacities_is_the_same_in_processes(tmp_path):
    points = [
        (c, "isotropic", 8, F, s, 512) for c in ("whitened", "NTK") for F in (8, 12) for s in (0, 1)
    ]
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    sweep(POINT, points, capacity.capacity, path=one)
    sweep(POINT, points, capacity.capacity, path=two, jobs=2)
    assert one.read_bytes() == two.read_bytes()


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"guess must be at least 1 and largest in 4\.\.131072"):
        smallest_width(lambda m: True, guess=0)
    with pytest.raises(
        ValueError, match=r"construction must be one of gradient descent, .*'magic'"
    ):
        capacity.capacity("magic", "isotropic", 8, 8, 0, 512)
