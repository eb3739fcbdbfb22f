import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.numerics import (
    compact_svd,
    first_crossing,
    generator,
    last_before,
    ridge_regression,
    row_blocks,
    unit_rows,
    whitener,
)

SHAPES = [(40, 10), (10, 40), (20, 20)]


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed, *shape))


def test_a_stream_repeats_itself_and_differs_from_its_neighbours():
    def draw(*name):
        return torch.randn(5, generator=generator(*name))

    assert torch.equal(draw(0, 1), draw(0, 1))
    assert not torch.equal(draw(0, 1), draw(1, 0))
    assert not torch.equal(draw(0), draw(0, 0))


@pytest.mark.parametrize("name", [(), (-1,)])
def test_a_stream_needs_nonnegative_names(name):
    with pytest.raises(ValueError, match="stream must be one or more integers >= 0"):
        generator(*name)


@given(rows=st.integers(0, 300), columns=st.integers(1, 50), entries=st.integers(1, 500))
def test_blocks_cover_every_row_once_within_their_bound(rows, columns, entries):
    blocks = list(row_blocks(rows, columns, entries=entries))
    assert [i for b in blocks for i in range(b.start, b.stop)] == list(range(rows))
    assert all((b.stop - b.start) * columns <= max(entries, columns) for b in blocks)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ridge", [0.0, 1e-6, 0.3])
def test_ridge_regression_satisfies_its_normal_equations(shape, ridge):
    Phi, Y = random(*shape), random(shape[0], 3)
    B = ridge_regression(Phi, Y, ridge)
    gradient = (Phi @ B.T - Y).T @ Phi / shape[0] + ridge * B
    assert gradient.norm() <= 1e-9 * (Y.T @ Phi / shape[0]).norm()


def test_ridge_regression_is_continuous_where_the_solve_changes_side():
    Phi, Y = random(20, 20), random(20, 3)
    wide = torch.cat([Phi, torch.zeros(20, 1, dtype=Phi.dtype)], dim=1)  # m = F + 1
    expected = ridge_regression(Phi, Y, 1e-3)
    torch.testing.assert_close(ridge_regression(wide, Y, 1e-3)[:, :20], expected, rtol=1e-9, atol=0)


def test_least_norm_regression_leaves_out_the_kernel():
    Phi = random(30, 4) @ random(4, 12, seed=1)
    B = ridge_regression(Phi, random(30, 3), 0.0)
    null = torch.eye(12, dtype=torch.float64) - torch.linalg.pinv(Phi, rtol=1e-11) @ Phi
    assert (B @ null).norm() <= 1e-9 * B.norm()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ridge", [1e-3, 0.3])
def test_whitener_squares_to_the_inverse_on_the_span_of_the_rows(shape, ridge):
    Phi = random(*shape)
    T = whitener(Phi, ridge=ridge)
    Sigma = Phi.T @ Phi / shape[0]
    inverse = torch.linalg.inv(Sigma + ridge * torch.eye(shape[1], dtype=Phi.dtype))
    torch.testing.assert_close(T.T @ (T @ Phi.T), inverse @ Phi.T, rtol=1e-9, atol=1e-12)


def test_whitened_features_have_identity_covariance():
    Phi = random(50, 12)
    white = Phi @ whitener(Phi).T
    torch.testing.assert_close(white.T @ white / 50, torch.eye(12, dtype=Phi.dtype))


def test_a_cutoff_leaves_out_what_lies_below():
    matrix = torch.diag(torch.tensor([1.0, 1e-3, 1e-9, 1e-13], dtype=torch.float64))
    assert len(compact_svd(matrix)[1]) == 3
    assert len(compact_svd(matrix, cutoff=1e-6)[1]) == 2
    assert len(compact_svd(matrix, cutoff=0.0)[1]) == 4
    assert len(compact_svd(matrix.float())[1]) == 2
    assert len(whitener(matrix)) == 3


def test_whitening_does_not_square_its_way_out_of_range():
    tiny = whitener(torch.eye(3) * 1e-25)
    torch.testing.assert_close(tiny * 1e-25, torch.eye(3) * 3**0.5, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cutoff", [-0.1, 1.0, float("nan")])
def test_a_cutoff_is_a_fraction(cutoff):
    with pytest.raises(ValueError, match=r"cutoff must be in \[0, 1\)"):
        whitener(random(4, 2), cutoff=cutoff)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e-200, 1e200])
def test_unit_rows_have_unit_norm_at_any_scale(scale):
    x = random(5, 3)
    x[2] = 0
    scaled = unit_rows(scale * x)
    expected = x / x.norm(dim=1, keepdim=True).clamp(min=1e-300)
    torch.testing.assert_close(scaled, expected, rtol=1e-12, atol=1e-15)


def test_single_precision_input_is_solved_in_double():
    Phi, Y = random(300, 20).float(), random(300, 3).float()
    expected = ridge_regression(Phi.double(), Y.double(), 1e-6)
    torch.testing.assert_close(
        ridge_regression(Phi, Y, 1e-6), expected.float(), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("ridge", [-1.0, float("nan"), float("inf")])
def test_ridge_must_be_finite_and_nonnegative(ridge):
    with pytest.raises(ValueError, match="ridge must be finite and >= 0"):
        ridge_regression(random(4, 2), random(4, 1), ridge)
    with pytest.raises(ValueError, match="ridge must be finite and >= 0"):
        whitener(random(4, 2), ridge=ridge)


@pytest.mark.parametrize(
    ("y", "expected"),
    [([0, 0, 1, 0, 2], 1.5), ([0, 0.5, 0.5], None), ([1, 0, 1], None), ([0, 2], 0.25)],
)
def test_the_first_crossing_is_interpolated(y, expected):
    assert first_crossing(np.arange(len(y), dtype=float), np.array(y, dtype=float), 0.5) == expected


@given(st.integers(0, 50), st.integers(1, 60), st.integers(0, 60))
def test_bisection_finds_the_last_number_that_holds(low, span, offset):
    last = low + offset % span
    assert last_before(low, low + span, lambda n: n <= last) == last
