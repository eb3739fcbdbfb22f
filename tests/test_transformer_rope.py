import math

import pytest
import torch

from lib.numerics import generator
from lib.transformer.rope import BASE, rotate


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=generator(0, *shape))


def test_a_pair_of_coordinates_is_multiplied_by_a_complex_phase():
    x, positions = draw(5, 8), torch.tensor([0, 1, 2, 7, 100])
    turned = torch.view_as_complex(rotate(x, positions).reshape(5, 4, 2))
    pairs = torch.view_as_complex(x.reshape(5, 4, 2))
    for t, row in enumerate(positions.tolist()):
        for j in range(4):
            phase = complex(math.cos(row * BASE ** (-j / 4)), math.sin(row * BASE ** (-j / 4)))
            assert turned[t, j].item() == pytest.approx(pairs[t, j].item() * phase, rel=1e-9)


def test_inner_products_depend_on_differences_of_positions_only():
    q, k, positions = draw(3, 6, 16), draw(2, 1, 6, 16)[0], torch.arange(6)
    scores = rotate(q, positions) @ rotate(k, positions).mT
    moved = rotate(q, positions + 41) @ rotate(k, positions + 41).mT
    torch.testing.assert_close(scores, moved, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(scores, q @ k.mT)


def test_lengths_stay_and_position_zero_changes_nothing():
    x = draw(2, 6, 16)
    torch.testing.assert_close(rotate(x, torch.arange(6)).norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(rotate(x, torch.zeros(6, dtype=torch.int64)), x)


def test_positions_may_differ_between_sequences():
    x, positions = draw(2, 6, 16), torch.stack([torch.arange(6), torch.arange(6) + 3])
    torch.testing.assert_close(rotate(x, positions)[1], rotate(x[1], positions[1]))


def test_an_odd_dimension_is_refused():
    with pytest.raises(ValueError, match="even number of columns; got 7"):
        rotate(draw(2, 7), torch.arange(2))
