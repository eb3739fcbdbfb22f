import pytest
import torch
from torch import nn

from benchmarks.full_block import all_positions
from lib.constructions.hebbian import sketched_k2
from lib.decoding import retrieve, unit_outputs
from lib.facts import FactSet, bijection, random_facts
from lib.numerics import generator
from lib.transformer.block import RecallBlock
from lib.transformer.recall import Sequences, draw_sequences, recall_task
from lib.transformer.training import key_accuracies, query_noise

FACTS = random_facts(20, 16, generator=generator(0))
MLP = sketched_k2(FACTS, 60, generator=generator(1), whitening="full")


@pytest.mark.parametrize("with_query", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("free_values", [True, False])
@pytest.mark.parametrize("rope", [True, False])
def test_the_last_position_is_that_of_the_full_computation(with_query, residual, free_values, rope):
    task = recall_task(
        FACTS, generator=generator(99), prefix=(0, 4), suffix=(1, 5), with_query=with_query
    )
    block = RecallBlock(
        task,
        MLP,
        generator=generator(2),
        residual=residual,
        free_values=free_values,
        rope=rope,
    )
    nn.init.uniform_(block.norm.weight, 0.5, 1.5)
    sequences = draw_sequences(task, torch.arange(20), generator=generator(3))
    full = all_positions(block, sequences)[:, -1]
    torch.testing.assert_close(block(sequences), full, rtol=1e-9, atol=1e-9)


def copying(task, mlp):
    """A block whose attention sees keys only: the query token asks for everything but junk."""
    block = RecallBlock(task, mlp, generator=generator(0))
    d = task.facts.keys.shape[1]
    with torch.no_grad():
        block.norm.weight.fill_(1)
        block.W_K.copy_(torch.eye(d))
        q = block.norm(task.query[None])[0]
        aim = torch.linalg.lstsq(
            torch.cat([task.junk, task.query[None]]), -torch.ones(len(task.junk) + 1, 1).double()
        ).solution[:, 0]  # minus one on everything that is not a key
        block.W_Q.copy_(torch.outer(q, 1e4 * aim) / (q @ q))
    return block


def test_attention_that_copies_the_key_gives_what_the_mlp_gives_alone():
    facts = random_facts(30, 64, generator=generator(4))
    task = recall_task(facts, generator=generator(99), junk_tokens=3)
    for width in (20, 60):
        mlp = sketched_k2(facts, width, generator=generator(5))
        block = copying(task, mlp)
        sequences = draw_sequences(task, torch.arange(30), generator=generator(6))
        attention = block.attention(sequences)
        keys = attention.gather(1, (sequences.tokens < 30).double().argmax(1, keepdim=True))
        assert (keys > 1 - 1e-6).all()
        assert query_noise(block, task, contexts=2, generator=generator(7)).max() < 1e-5
        alone = retrieve(mlp, facts).stored
        answered = key_accuracies(block, task, contexts=3, generator=generator(8))
        assert torch.equal(answered == 1, alone)
        assert answered.mean().item() == pytest.approx(alone.double().mean().item())


def test_swapping_changes_the_memory_and_the_values_only():
    task = recall_task(FACTS, generator=generator(99))
    block = RecallBlock(task, MLP, generator=generator(2), free_values=True)
    other = FactSet(FACTS.keys, FACTS.values, bijection(20, generator=generator(9)))
    mlp = sketched_k2(other, 60, generator=generator(10), whitening="full")
    before = {name: p.clone() for name, p in block.named_parameters()}
    swapped = block.with_mlp(mlp, other)
    assert swapped.mlp is mlp and block.mlp is MLP
    for name, p in swapped.named_parameters():
        if not name.startswith("mlp"):
            assert torch.equal(p, before[name]) and p is not dict(block.named_parameters())[name]
    for name, p in block.named_parameters():
        assert torch.equal(p, before[name])
    sequences = draw_sequences(task, torch.arange(20), generator=generator(11))
    assert torch.equal(block.queries(sequences), swapped.queries(sequences))
    with pytest.raises(ValueError, match="facts must have the keys of this block"):
        block.with_mlp(mlp, random_facts(20, 16, generator=generator(12)))


def test_any_function_can_be_the_memory_and_modules_are_frozen_when_they_are_put_in():
    task = recall_task(FACTS, generator=generator(99))
    block = RecallBlock(task, unit_outputs(MLP), generator=generator(2))
    assert {name for name, _ in block.named_parameters()} == {"norm.weight", "W_Q", "W_K"}
    free = nn.Linear(16, 16, dtype=torch.float64)
    swapped = block.with_mlp(free, FACTS)
    assert not free.weight.requires_grad and "mlp.weight" in dict(swapped.named_parameters())
    assert swapped.with_mlp(unit_outputs(MLP), FACTS).mlp is not free
    with pytest.raises(ValueError, match="facts must have the keys of this block"):
        block.with_mlp(MLP, FactSet(FACTS.keys[:5], FACTS.values, FACTS.targets[:5]))


def test_the_memory_is_frozen_and_the_rest_is_trained():
    block = RecallBlock(
        recall_task(FACTS, generator=generator(99)),
        MLP,
        generator=generator(2),
    )
    free = {name for name, p in block.named_parameters() if p.requires_grad}
    assert free == {"norm.weight", "W_Q", "W_K"}
    free_values = RecallBlock(
        recall_task(FACTS, generator=generator(99)),
        MLP,
        generator=generator(2),
        free_values=True,
    )
    names = {name for name, p in free_values.named_parameters() if p.requires_grad}
    assert names == free | {"W_V", "W_O"}


def test_attention_ignores_filling_and_order():
    task = recall_task(FACTS, generator=generator(99), prefix=(0, 3), suffix=(0, 3))
    block = RecallBlock(task, MLP, generator=generator(2))
    drawn = draw_sequences(task, torch.arange(20), generator=generator(3))
    attention = block.attention(drawn)
    assert (attention[~drawn.present] == 0).all()
    torch.testing.assert_close(attention.sum(1), torch.ones(20).double())


@pytest.mark.parametrize("rope", [True, False])
def test_order_matters_with_positions_only_and_filling_in_front_never(rope):
    task = recall_task(FACTS, generator=generator(99), prefix=(2, 2), suffix=(3, 3))
    block = RecallBlock(task, MLP, generator=generator(2), rope=rope)
    drawn = draw_sequences(task, torch.arange(20), generator=generator(3))
    order = torch.tensor([5, 3, 1, 0, 2, 4, 6])  # the query stays at the end
    turned = Sequences(drawn.tokens[:, order], drawn.present[:, order], drawn.keys)
    difference = (block.queries(turned) - block.queries(drawn)).norm(dim=1)
    assert (difference > 1e-3).all() if rope else (difference < 1e-12).all()
    filling = torch.zeros(20, 4, dtype=torch.long)
    longer = Sequences(
        torch.cat([filling, drawn.tokens], 1),
        torch.cat([filling.bool(), drawn.present], 1),
        drawn.keys,
    )
    torch.testing.assert_close(block.queries(longer), block.queries(drawn))


def test_rotary_positions_need_an_even_dimension():
    facts = random_facts(10, 7, generator=generator(0))
    task = recall_task(facts, generator=generator(1))
    with pytest.raises(ValueError, match="rope needs keys with an even number of columns; got 7"):
        RecallBlock(task, nn.Identity(), generator=generator(2), rope=True)
