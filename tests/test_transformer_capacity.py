import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lib.constructions.encoder_decoder import exact_parameters
from lib.constructions.hebbian import sketched_k2
from lib.decoding import retrieve
from lib.facts import FactSet, other_facts, random_facts
from lib.noisy_queries import score_lipschitz
from lib.numerics import generator
from lib.transformer import capacity
from lib.transformer.block import RecallBlock
from lib.transformer.capacity import (
    ABLATION_POINT,
    CAPACITY_POINT,
    ENOUGH,
    FIRST,
    WHITENING_POINT,
    ablated,
    block_capacity,
    constructor,
    insert,
    random_task,
    whitened_usability,
)
from lib.transformer.recall import recall_task
from lib.transformer.training import Plan, key_accuracies

FACTS = random_facts(24, 48, generator=generator(0)).to(dtype=torch.float32)
TASK = recall_task(FACTS, generator=generator(1), junk_tokens=4, prefix=(2, 2), suffix=(2, 2))
PLAN = Plan(steps=150, batch=128, rate=1e-2)
SHORT = Plan(steps=2, batch=8, rate=1e-2)


def whitened(facts, stream):
    return sketched_k2(facts, 80, generator=generator(*stream), whitening="full")


@pytest.mark.parametrize("rope", [False, True])
def test_a_block_that_looks_for_keys_answers_about_facts_it_has_never_seen(rope):
    found = insert(
        TASK, whitened, stream=(2,), plan=PLAN, make_block=partial(RecallBlock, rope=rope)
    )
    assert found.training > 0.95 and found.adaptive > 0.95
    assert insert(TASK, whitened, stream=(2,), plan=SHORT).adaptive < 0.8


def test_the_form_without_a_query_token_is_learned_with_rotary_positions():
    task = recall_task(
        FACTS,
        generator=generator(1),
        junk_tokens=4,
        prefix=(2, 4),
        suffix=(2, 4),
        with_query=False,
    )
    make_block = partial(RecallBlock, rope=True)
    found = insert(task, whitened, stream=(2,), plan=PLAN, make_block=make_block)
    assert found.adaptive > 0.9


def test_fact_adaptive_evaluation_never_sees_the_facts_of_the_training(monkeypatch):
    built, trained, measured, seeds = [], [], [], set()

    def construct(facts, stream):
        built.append(facts)
        return whitened(facts, stream)

    def train(block, task, plan, *, stream):
        trained.append(task.facts)
        assert block.mlp is not None and len(built) == 1  # the other memory does not exist yet

    def accuracies(block, task, **arguments):
        measured.append((block, task.facts))
        seeds.add(arguments["generator"].initial_seed())
        return key_accuracies(block, task, **arguments)

    monkeypatch.setattr(capacity, "train", train)
    monkeypatch.setattr(capacity, "key_accuracies", accuracies)
    found = insert(TASK, construct, stream=(3,))
    first, second = built
    assert trained == [FACTS] and first is FACTS
    assert torch.equal(second.keys, FACTS.keys) and torch.equal(second.values, FACTS.values)
    assert (second.targets != FACTS.targets).all()
    (_, of_training), (exchanged, of_adaptation) = measured
    assert of_training is FACTS and of_adaptation is second and found.other is second
    assert exchanged is found.exchanged
    assert len(seeds) == 2  # contexts of their own
    assert retrieve(exchanged.mlp, second).accuracy == 1
    assert retrieve(exchanged.mlp, FACTS).accuracy == 0
    # what is exchanged is the memory: everything that was trained is the same
    for name, p in found.block.named_parameters():
        if not name.startswith("mlp"):
            assert torch.equal(p, dict(exchanged.named_parameters())[name])


def test_a_block_that_memorises_is_found_out():
    """With the identity for a memory of both fact sets only the weights can hold the answers."""
    facts = random_facts(8, 32, generator=generator(5)).to(dtype=torch.float32)
    task = recall_task(facts, generator=generator(6), junk_tokens=2, prefix=(1, 1), suffix=(1, 1))
    found = insert(
        task,
        lambda facts, stream: nn.Identity(),
        stream=(7,),
        plan=Plan(steps=400, batch=64, rate=1e-2),
        make_block=partial(RecallBlock, free_values=True),
    )
    assert found.training > 0.9 and found.adaptive < 0.2


def test_constructors_keep_the_type_of_the_facts_and_draw_from_their_stream():
    for construction in ("gradient descent", "whitened", "data-dependent"):
        construct = constructor(construction, 40)
        mlp = construct(FACTS, (1,))
        assert mlp.B.dtype == torch.float32 and mlp.B.shape == (48, 40)
        assert torch.equal(mlp.B, construct(FACTS, (1,)).B)
        assert not torch.equal(mlp.A, construct(FACTS, (2,)).A)


def test_a_block_needs_at_least_the_width_with_which_the_share_is_stored(monkeypatch):
    tried = []

    def found(task, construct, **arguments):
        mlp = construct(task.facts, (0,))
        tried.append(mlp.A.shape[0])
        answered = 1.0 if len(mlp.A) >= 36 else 0.98
        return SimpleNamespace(adaptive=answered)

    monkeypatch.setattr(capacity, "insert", found)
    result = block_capacity("whitened", "adaptive", 16, 20, 0, 256)
    assert result == {"width": 36, "parameters": 3 * 16 * 36}
    assert min(tried) < 36 < max(tried)
    assert math.isnan(block_capacity("whitened", "adaptive", 16, 20, 0, 32)["width"])
    alone = block_capacity("whitened", "alone", 16, 20, 0, 256)["width"]
    assert 1 <= alone <= 256


def test_the_encoder_decoder_has_gadgets_of_whole_units_and_the_paper_s_count(monkeypatch):
    facts = random_facts(40, 16, generator=generator(8))
    mlp = constructor("encoder-decoder", 30)(facts, (9,))
    assert mlp.A.shape[0] == 30  # ten entries of three units each
    assert constructor("encoder-decoder", 32)(facts, (9,)).A.shape[0] == 30
    found = block_capacity("encoder-decoder", "alone", 16, 40, 0, 512)
    m = found["width"] // 3
    assert found == {"width": 3 * m, "parameters": exact_parameters(m, 40, 16, 16)}
    task, stream = random_task(16, 40, 0)
    stored = constructor("encoder-decoder", 3 * m)(task.facts, (*stream, FIRST))
    assert retrieve(stored, task.facts).accuracy >= ENOUGH


def test_points_of_the_sweeps_name_the_arguments():
    for names, function in (
        (CAPACITY_POINT, block_capacity),
        (ABLATION_POINT, ablated),
        (WHITENING_POINT, whitened_usability),
    ):
        assert names == tuple(function.__annotations__)[: len(names)]


def test_measurements_are_shares_and_repeat(monkeypatch):
    monkeypatch.setattr(capacity, "LONG_PLAN", SHORT)
    monkeypatch.setattr(capacity, "WHITENING_PLAN", SHORT)
    first = ablated("whitened", True, True, 16, 12, 30, 0)
    assert first == ablated("whitened", True, True, 16, 12, 30, 0)
    assert set(first) == {"alone", "training", "adaptive"}
    assert all(0 <= share <= 1 for share in first.values())
    found = whitened_usability(10.0, 0.5, 16, 24, 8, 0)
    assert 0 <= found["adaptive"] <= 1 and 0 <= found["stored"] <= 1
    assert found["Lipschitz"] > 0 and found["unit Lipschitz"] > 0


@pytest.mark.parametrize(("residual", "free_values"), [(True, False), (False, True)])
def test_each_liberty_is_the_one_that_was_named(monkeypatch, residual, free_values):
    def found(task, construct, *, make_block, **arguments):
        assert make_block.keywords == {"residual": residual, "free_values": free_values}
        block = SimpleNamespace(mlp=construct(task.facts, (0,)))
        return SimpleNamespace(block=block, training=0.5, adaptive=0.25)

    monkeypatch.setattr(capacity, "insert", found)
    assert ablated("whitened", residual, free_values, 16, 12, 60, 0)["adaptive"] == 0.25


def test_mlps_of_whitened_values_are_folded_and_measured_after_the_exchange(monkeypatch):
    aims, made = [], []

    def constructed(construction, width):
        def construct(facts, stream):
            aims.append(facts.values)
            return sketched_k2(facts, width, generator=generator(*stream), whitening="full")

        return construct

    def found(task, construct, *, stream, **arguments):
        other = other_facts(task.facts, generator=generator(3))
        made.extend((construct(task.facts, (1,)), construct(other, (2,)), other))
        exchanged = SimpleNamespace(mlp=made[1])
        return SimpleNamespace(
            exchanged=exchanged, block=SimpleNamespace(mlp=made[0]), other=other, adaptive=0.5
        )

    monkeypatch.setattr(capacity, "constructor", constructed)
    monkeypatch.setattr(capacity, "insert", found)
    result = whitened_usability(30.0, 1.0, 16, 24, 200, 0)
    _, memory, other = made
    assert result["stored"] == retrieve(memory, other).accuracy == 1
    assert result["Lipschitz"] == pytest.approx(score_lipschitz(memory, other).max().item())
    assert aims[0].norm(dim=1).mean().item() == pytest.approx(1, rel=1e-5)
    assert torch.linalg.cond(aims[0] - aims[0].mean(0)).item() == pytest.approx(1, rel=1e-3)
    scores = memory(other.keys) @ other.values.T  # those of the values that it was made for
    alone = sketched_k2(
        FactSet(other.keys, aims[1], other.targets), 200, generator=generator(2), whitening="full"
    )
    torch.testing.assert_close(scores, alone(other.keys) @ aims[1].T, rtol=1e-3, atol=1e-3)


def test_unknown_names_are_refused_before_anything_is_computed():
    with pytest.raises(ValueError, match=r"construction must be one of .*; got 'magic'"):
        block_capacity("magic", "adaptive", 16, 20, 0, 64)
    with pytest.raises(ValueError, match="criterion must be one of alone, adaptive; got 'magic'"):
        block_capacity("whitened", "magic", 16, 20, 0, 64)
    with pytest.raises(ValueError, match="construction must be one of"):
        ablated("magic", False, False, 16, 20, 8, 0)
    with pytest.raises(ValueError, match="width must be an integer of at least 1; got 0"):
        constructor("whitened", 0)
