import pytest
import torch

from lib.constructions.ntk import ntk, ntk_mlp
from lib.decoding import retrieve
from lib.facts import random_facts
from lib.numerics import generator


def test_weights_are_those_of_the_formula():
    facts = random_facts(7, 4, generator=generator(0))
    gates = torch.randn(5, 4, dtype=torch.float64, generator=generator(1))
    outputs = torch.randn(5, 4, dtype=torch.float64, generator=generator(2))
    mlp = ntk_mlp(facts, gates, outputs)
    p = outputs / outputs.norm(dim=1, keepdim=True)
    for r in range(5):
        up = sum(
            (k @ gates[r]) * (c @ p[r]) * k for k, c in zip(facts.keys, facts.answers, strict=True)
        )
        assert torch.allclose(mlp.A[r], up / 5, rtol=1e-12)
    x = facts.keys[:1]
    answer = sum(p[r] * torch.relu(gates[r] @ x[0]) * (mlp.A[r] @ x[0]) for r in range(5))
    assert torch.allclose(mlp(x)[0], answer, rtol=1e-12)
    assert mlp.parameter_count == 3 * 4 * 5
    assert mlp.gate == "relu"


def test_a_wide_one_stores_its_facts():
    facts = random_facts(40, 32, generator=generator(0))
    mlp = ntk(facts, 1000, generator=generator(1))
    assert retrieve(mlp, facts).accuracy == 1.0
    assert ntk(facts.to(dtype=torch.float32), 5, generator=generator(1)).B.dtype == torch.float32


def test_blocks_do_not_change_it(monkeypatch):
    facts = random_facts(20, 6, generator=generator(0))
    whole = ntk(facts, 9, generator=generator(1))
    monkeypatch.setattr("lib.numerics.row_blocks.__kwdefaults__", {"entries": 27})
    assert torch.allclose(ntk(facts, 9, generator=generator(1)).A, whole.A, rtol=1e-12)


def test_the_width_is_checked():
    facts = random_facts(5, 4, generator=generator(0))
    with pytest.raises(ValueError, match="width must be an integer of at least 1; got 0"):
        ntk(facts, 0, generator=generator(1))
