import pytest
import torch

from lib.frames import harmonic_gram, paley_gram
from lib.margin_bounds import column_energies, welch_floor
from lib.numerics import generator


def is_frame(K, m):
    F = len(K)
    torch.testing.assert_close(K.diagonal(), torch.ones(F).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(K, K.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(K @ K, F / m * K, rtol=0, atol=1e-10)  # m / F K is a projector
    assert K.trace().item() * m / F == pytest.approx(m)


@pytest.mark.parametrize(("F", "m"), [(5, 2), (5, 4), (12, 4), (40, 10), (41, 40), (256, 64)])
def test_harmonic_frames_are_tight_and_meet_the_welch_floor(F, m):
    K = harmonic_gram(F, m, generator=generator(F, m))
    is_frame(K, m)
    floor = welch_floor(K.diagonal(), m)
    assert floor == pytest.approx(F / m - 1, rel=1e-10)
    torch.testing.assert_close(column_energies(K), torch.full((F,), floor).double())


@pytest.mark.parametrize("q", [5, 13, 17, 29, 101])
def test_paley_frames_are_equiangular(q):
    K = paley_gram(q)
    is_frame(K, (q + 1) // 2)
    off = K[~torch.eye(q + 1, dtype=torch.bool)].abs()
    torch.testing.assert_close(off, torch.full_like(off, q**-0.5))
    # No q + 1 unit vectors in half the dimension have a smaller largest inner product.
    assert off.max().item() == pytest.approx((1 / q) ** 0.5)


@pytest.mark.parametrize("q", [2, 7, 9, 15, 0])
def test_paley_needs_a_prime_of_the_right_kind(q):
    with pytest.raises(ValueError, match=f"leaves 1 when divided by 4; got {q}"):
        paley_gram(q)


@pytest.mark.parametrize("m", [0, 3, 12])
def test_harmonic_frames_have_even_rank_below_their_number(m):
    with pytest.raises(ValueError, match=rf"m must be even, in \[2, 10\]; got {m}"):
        harmonic_gram(12, m, generator=generator(0))
