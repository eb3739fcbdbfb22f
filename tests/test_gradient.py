import math

import pytest
import torch

from lib.capacity import smallest_width
from lib.constructions.gradient import FAST, PUBLISHED, Recipe, gradient_descent
from lib.decoding import retrieve, stores_all
from lib.facts import random_facts
from lib.mlp import GATES
from lib.numerics import generator

SHORT = Recipe(steps=300, rate=2e-2, final_rate=2e-5, checked_every=10)


def facts(F=32, d=16):
    return random_facts(F, d, generator=generator(0)).to(dtype=torch.float32)


@pytest.mark.parametrize("gate", list(GATES))
@pytest.mark.parametrize("loss", ["cross entropy", "squared"])
def test_it_stores_its_facts(gate, loss):
    mlp = gradient_descent(facts(), 16, generator=generator(1), gate=gate, loss=loss, recipe=SHORT)
    assert retrieve(mlp, facts()).accuracy == 1.0
    assert mlp.parameter_count == 3 * 16 * 16
    assert not any(weight.requires_grad for weight in mlp.parameters())


@pytest.mark.parametrize("scale", [1, 3])
def test_the_squared_loss_aims_at_given_codes(scale):
    mlp = gradient_descent(
        facts(),
        32,
        generator=generator(1),
        loss="squared",
        codes=scale * facts().values,
        recipe=SHORT,
    )
    outputs = mlp(facts().keys)
    distances = {s: (outputs - s * facts().answers).norm().item() for s in (1, 3)}
    assert min(distances, key=distances.get) == scale


def test_it_returns_the_best_checkpoint():
    """Training that goes wrong later does not take away what was reached."""
    wild = Recipe(steps=200, rate=0.5, final_rate=0.5, checked_every=1)
    longer = Recipe(steps=400, rate=0.5, final_rate=0.5, checked_every=1)
    margins = [
        retrieve(gradient_descent(facts(), 4, generator=generator(2), recipe=recipe), facts())
        for recipe in (wild, longer)
    ]
    assert margins[1].minimum_margin >= margins[0].minimum_margin


def test_it_stops_when_the_margin_is_enough():
    early = gradient_descent(facts(), 16, generator=generator(1), recipe=SHORT, enough=0.0)
    late = gradient_descent(facts(), 16, generator=generator(1), recipe=SHORT)
    margins = [retrieve(mlp, facts()).minimum_margin for mlp in (early, late)]
    assert 0 < margins[0] < margins[1]


def test_the_same_seed_gives_the_same_weights():
    one, two, other = (
        gradient_descent(facts(), 4, generator=generator(seed), recipe=SHORT) for seed in (1, 1, 2)
    )
    assert torch.equal(one.A, two.A) and torch.equal(one.B, two.B)
    assert not torch.equal(one.A, other.A)


def test_the_published_recipe_is_the_printed_one():
    assert (PUBLISHED.steps, PUBLISHED.rate, PUBLISHED.final_rate) == (10_000, 1e-3, 1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_the_fast_recipe_reaches_widths_at_least_as_small_as_the_published_one(seed):
    stored = random_facts(48, 16, generator=generator(seed)).to(dtype=torch.float32)

    def width(recipe):
        return smallest_width(
            lambda m: stores_all(
                gradient_descent(
                    stored, m, generator=generator(seed, m), recipe=recipe, enough=0.0
                ),
                stored,
            ),
            guess=4,
        )

    assert width(FAST) <= width(PUBLISHED)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"width": 0}, "width must be an integer of at least 1; got 0"),
        ({"gate": "step"}, "gate must be one of identity, relu, silu, gelu; got 'step'"),
        ({"loss": "hinge"}, "loss must be one of cross entropy, squared; got 'hinge'"),
        ({"codes": facts().values}, "with the squared loss; got .* and 'cross entropy'"),
        (
            {"codes": facts().values[:3], "loss": "squared"},
            r"codes must be \(32, 16\), as values, with the squared loss; got \(3, 16\)",
        ),
    ],
)
def test_arguments_are_checked(kwargs, message):
    with pytest.raises(ValueError, match=message):
        gradient_descent(facts(), **({"width": 3} | kwargs), generator=generator(1))
    with pytest.raises(ValueError, match=r"0 <= final_rate <= rate; got 10, 1, 0\.2, 0\.1"):
        Recipe(steps=10, rate=0.1, final_rate=0.2, checked_every=1)
    with pytest.raises(ValueError, match="checked_every must be at least 1"):
        Recipe(steps=10, rate=math.inf, final_rate=0.2, checked_every=0)


def test_training_can_start_from_given_weights_which_stay_as_they_are():
    facts = random_facts(24, 8, generator=generator(0))
    start = gradient_descent(facts, 12, generator=generator(1))
    before = [weight.clone() for weight in start.parameters()]
    still = Recipe(steps=1, rate=1e-9, final_rate=1e-9, checked_every=1)
    again = gradient_descent(facts, 12, generator=generator(2), recipe=still, start=start)
    for weight, other, old in zip(start.parameters(), again.parameters(), before, strict=True):
        assert torch.equal(weight, old)
        torch.testing.assert_close(other, weight, rtol=0, atol=1e-8)
    with pytest.raises(ValueError, match="start must have width 13 and gate 'identity'; got 12"):
        gradient_descent(facts, 13, generator=generator(2), start=start)
    with pytest.raises(ValueError, match="start must have width 12 and gate 'relu'; got 12"):
        gradient_descent(facts, 12, generator=generator(2), start=start, gate="relu")
