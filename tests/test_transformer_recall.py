import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.facts import random_facts
from lib.numerics import generator
from lib.transformer.recall import RecallTask, draw_sequences, recall_task

FACTS = random_facts(12, 6, generator=generator(0))
LENGTHS = st.tuples(st.integers(0, 4), st.integers(0, 4)).map(lambda p: (p[0], p[0] + p[1]))


@given(LENGTHS, LENGTHS, st.integers(1, 5), st.booleans(), st.integers(0, 1000))
def test_a_sequence_is_junk_one_key_junk_and_the_query(prefix, suffix, junk, with_query, seed):
    if not with_query:
        suffix = (max(1, suffix[0]), max(1, suffix[1]))
    task = recall_task(
        FACTS,
        generator=generator(99),
        junk_tokens=junk,
        prefix=prefix,
        suffix=suffix,
        with_query=with_query,
    )
    keys = torch.randint(12, (30,), generator=generator(seed))
    drawn = draw_sequences(task, keys, generator=generator(seed, 1))
    assert torch.equal(drawn.keys, keys)
    assert drawn.tokens.max() < len(task.embeddings)
    assert drawn.tokens.shape[1] == prefix[1] + 1 + suffix[1] + with_query
    for tokens, present, key in zip(drawn.tokens, drawn.present, keys, strict=True):
        there = tokens[present].tolist()
        assert present.tolist() == sorted(present.tolist())  # filling comes first
        if with_query:
            assert there.pop() == 12 + junk
        (at,) = [i for i, token in enumerate(there) if token < 12]
        assert there[at] == key
        assert prefix[0] <= at <= prefix[1]
        assert suffix[0] <= len(there) - 1 - at <= suffix[1]
        assert all(12 <= t < 12 + junk for i, t in enumerate(there) if i != at)


def test_junk_and_lengths_are_uniform_and_drawn_from_the_generator():
    task = recall_task(FACTS, generator=generator(99), junk_tokens=3, prefix=(0, 2), suffix=(1, 1))
    keys = torch.zeros(3000, dtype=torch.int64)
    one, two = (draw_sequences(task, keys, generator=generator(5)) for _ in range(2))
    assert torch.equal(one.tokens, two.tokens) and torch.equal(one.present, two.present)
    lengths = one.present.sum(1) - 3
    assert torch.bincount(lengths).tolist() == pytest.approx([1000] * 3, rel=0.15)
    junk = one.tokens[:, -2] - 12  # the suffix
    assert torch.bincount(junk).tolist() == pytest.approx([1000] * 3, rel=0.15)


def test_embeddings_are_numbered_as_the_tokens():
    task = recall_task(FACTS, generator=generator(99), junk_tokens=4)
    assert torch.equal(task.embeddings[:12], FACTS.keys)
    assert torch.equal(task.embeddings[12:16], task.junk)
    assert torch.equal(task.embeddings[16], task.query)
    other = random_facts(12, 6, generator=generator(1))
    assert task.with_facts(other).facts is other
    assert torch.equal(task.with_facts(other).junk, task.junk)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"junk": torch.ones(2, 6).float()}, "junk must have 6 columns of torch.float64"),
        ({"query": torch.ones(6).float()}, "query must have 6 columns of torch.float64"),
        ({"prefix": (3, 2)}, "prefix must be 0 <= low <= high; got 3, 2"),
        ({"query": None, "suffix": (0, 2)}, "without a query, suffix must be at least 1; got 0"),
    ],
)
def test_arguments_are_checked(change, message):
    good = {
        "junk": torch.ones(2, 6).double(),
        "query": torch.ones(6).double(),
        "prefix": (1, 2),
        "suffix": (1, 2),
    }
    with pytest.raises(ValueError, match=message):
        RecallTask(FACTS, **(good | change))
    with pytest.raises(ValueError, match="junk_tokens must be an integer of at least 1; got 0"):
        recall_task(FACTS, generator=generator(99), junk_tokens=0)
    with pytest.raises(ValueError, match=r"keys must be in 0\.\.11; got -1 to 12"):
        task = recall_task(FACTS, generator=generator(1))
        draw_sequences(task, torch.tensor([-1, 12]), generator=generator(0))
