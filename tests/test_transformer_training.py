import pytest
import torch

from lib.constructions.hebbian import sketched_k2
from lib.facts import FactSet, bijection, random_facts
from lib.numerics import generator
from lib.transformer.block import RecallBlock
from lib.transformer.recall import recall_task
from lib.transformer.training import (
    FAST,
    PUBLISHED,
    Plan,
    key_accuracies,
    pretrained_attention,
    query_noise,
    train,
)

FACTS = random_facts(24, 48, generator=generator(0)).to(dtype=torch.float32)
SHORT = Plan(steps=60, batch=64, rate=1e-2, checked_every=20)


def fresh(facts=FACTS):
    mlp = sketched_k2(facts, 80, generator=generator(1), whitening="full")
    task = recall_task(facts, generator=generator(99), junk_tokens=4, prefix=(2, 2), suffix=(2, 2))
    return RecallBlock(task, mlp, generator=generator(2)), task


def test_training_learns_to_ask_and_adapts_to_facts_it_has_never_seen():
    block, task = fresh()
    before = key_accuracies(block, task, contexts=4, generator=generator(3)).mean()
    history = train(block, task, Plan(300, 128, 1e-2), stream=(4,))
    assert history.losses[-1] < history.losses[0]
    after = key_accuracies(block, task, contexts=4, generator=generator(3)).mean()
    assert before < 0.5 < 0.8 < after
    other = FactSet(FACTS.keys, FACTS.values, bijection(24, generator=generator(5)))
    assert (other.targets != FACTS.targets).any()
    mlp = sketched_k2(other, 80, generator=generator(6), whitening="full")
    swapped, changed = block.with_mlp(mlp, other), task.with_facts(other)
    assert key_accuracies(swapped, changed, contexts=4, generator=generator(7)).mean() > 0.8
    # what was learned is to look, not what to answer: the old facts are gone with the old memory
    old = key_accuracies(swapped, task, contexts=4, generator=generator(7))
    same = (other.targets == FACTS.targets).float().mean()
    assert old.mean() <= same + 0.15


def test_a_resumed_run_is_the_same_as_an_uninterrupted_one(tmp_path):
    whole, task = fresh()
    expected = train(whole, task, SHORT, stream=(4,))
    path = tmp_path / "run.pt"
    part, _ = fresh()
    calls = []

    def interrupted(*_):
        calls.append(0)
        if len(calls) > 25:  # after the checkpoint of step 20
            raise KeyboardInterrupt

    hook = part.register_forward_hook(interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(part, task, SHORT, stream=(4,), checkpoint=path)
    hook.remove()
    resumed, _ = fresh()
    history = train(resumed, task, SHORT, stream=(4,), checkpoint=path)
    assert history == expected
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    again, _ = fresh()
    assert train(again, task, SHORT, stream=(4,), checkpoint=path) == expected
    with pytest.raises(
        ValueError, match="is the checkpoint of another block, task, plan or stream"
    ):
        train(fresh()[0], task, SHORT, stream=(5,), checkpoint=path)
    other = random_facts(24, 48, generator=generator(7)).to(dtype=torch.float32)
    with pytest.raises(ValueError, match="is the checkpoint of another block, task"):
        train(*fresh(other), SHORT, stream=(4,), checkpoint=path)


def test_training_ends_early_where_it_is_good_enough():
    block, task = fresh()
    plan = Plan(steps=300, batch=64, rate=1e-2, checked_every=10, enough=0.3)
    history = train(block, task, plan, stream=(4,))
    assert history.accuracies[-1][1] >= 0.3
    assert len(history.losses) == history.accuracies[-1][0] < 300


def test_noise_is_the_distance_of_queries_from_keys():
    block, task = fresh()
    noise = query_noise(block, task, contexts=3, generator=generator(5))
    assert noise.shape == (3, 24)
    assert (noise >= 0).all() and (noise <= 2 + 1e-6).all()


def test_the_published_plan_is_the_printed_one():
    assert (PUBLISHED.steps, PUBLISHED.batch, PUBLISHED.rate) == (4000, 1280, 2e-4)
    assert FAST.weight_decay == PUBLISHED.weight_decay == 0.1


def test_arguments_are_checked():
    block, task = fresh()
    with pytest.raises(ValueError, match="steps, batch and checked_every must be at least 1"):
        Plan(0, 1, 1.0)
    for function in (key_accuracies, query_noise):
        with pytest.raises(ValueError, match="contexts must be an integer of at least 1; got 0"):
            function(block, task, contexts=0, generator=generator(0))


def test_pretrained_attention_returns_the_key_and_takes_any_memory():
    plan = Plan(300, 128, 1e-2)
    task, block = pretrained_attention(FACTS.keys, junk=5, plan=plan, stream=(4,))
    assert len(task.junk) == 5 and task.prefix == (2, 2) and task.suffix == (3, 3)
    found = key_accuracies(block, task, contexts=4, generator=generator(1)).mean()
    assert found > 0.8
    mlp = sketched_k2(FACTS, 80, generator=generator(1), whitening="full")
    answered = key_accuracies(
        block.with_mlp(mlp, FACTS), task.with_facts(FACTS), contexts=4, generator=generator(1)
    )
    assert answered.mean() > 0.7
    again, _ = pretrained_attention(FACTS.keys, junk=5, plan=plan, stream=(4,))
    assert torch.equal(again.junk, task.junk)
