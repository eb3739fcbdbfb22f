import pytest
import torch

from lib.mlp import GATES, GatedMLP, PlainMLP, random_mlp
from lib.numerics import generator


@pytest.mark.parametrize(
    ("gate", "sigma"),
    [
        ("identity", lambda t: t),
        ("relu", lambda t: t.clamp(min=0)),
        ("silu", lambda t: t / (1 + torch.exp(-t))),
        ("gelu", lambda t: t * (1 + torch.erf(t / 2**0.5)) / 2),
    ],
)
def test_the_mlp_is_its_formula(gate, sigma):
    mlp = random_mlp(3, 7, 5, gate, generator=generator(0))
    x = torch.randn(4, 3, dtype=torch.float64, generator=generator(1))
    for row, output in zip(x, mlp(x), strict=True):
        expected = mlp.B @ ((mlp.A @ row) * sigma(mlp.G @ row))
        torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-14)


def test_parameters_are_all_entries_of_the_three_matrices():
    mlp = random_mlp(3, 7, 5, "silu", generator=generator(0))
    assert mlp.parameter_count == 7 * 3 + 7 * 3 + 5 * 7
    assert mlp.width == 7


def test_the_bilinear_gate_spans_at_most_the_quadratic_forms():
    d = 4
    mlp = random_mlp(d, 50, d, "identity", generator=generator(0))
    x = torch.randn(200, d, dtype=torch.float64, generator=generator(1))
    assert torch.linalg.matrix_rank(mlp.features(x), rtol=1e-11) == d * (d + 1) // 2


@pytest.mark.parametrize("gate", GATES)
def test_a_saved_mlp_comes_back_the_same(gate, tmp_path):
    mlp = random_mlp(3, 7, 5, gate, generator=generator(0))
    mlp.save(tmp_path / "mlp.pt")
    loaded = GatedMLP.load(tmp_path / "mlp.pt")
    x = torch.randn(4, 3, dtype=torch.float64, generator=generator(1))
    assert loaded.gate == gate
    assert torch.equal(loaded(x), mlp(x))
    assert not any(p.requires_grad for p in loaded.parameters())


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "mlp.pt"
    mlp = random_mlp(3, 7, 5, "relu", generator=generator(0))
    mlp.save(path)
    before = path.read_bytes()

    def broken(stored, partial):
        partial.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(OSError, match="disk full"):
        mlp.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gate": "tanh"}, "gate must be one of identity, relu, silu, gelu; got 'tanh'"),
        ({"G": torch.zeros(7, 4)}, r"A and G must be \(m, d\).*'G': \(7, 4\)"),
        ({"B": torch.zeros(5, 6)}, r"B \(d_v, m\).*'B': \(5, 6\)"),
        ({"B": torch.zeros(7)}, r"'B': \(7,\)"),
        ({"A": torch.zeros(0, 3), "G": torch.zeros(0, 3), "B": torch.zeros(5, 0)}, "not be empty"),
        ({"B": torch.zeros(5, 7).double()}, "share one dtype"),
        ({"A": torch.full((7, 3), torch.nan)}, "must be finite"),
    ],
)
def test_shapes_gates_and_weights_are_checked(change, message):
    weights = {"A": torch.zeros(7, 3), "G": torch.zeros(7, 3), "B": torch.zeros(5, 7)}
    with pytest.raises(ValueError, match=message):
        GatedMLP(**weights | change)


def test_random_mlps_have_outputs_of_order_one():
    mlp = random_mlp(20, 500, 300, "identity", generator=generator(0))
    x = torch.randn(50, 20, dtype=torch.float64, generator=generator(1))
    x = x / x.norm(dim=1, keepdim=True)
    assert mlp(x).square().mean().item() == pytest.approx(1, rel=0.2)


def test_the_plain_mlp_is_its_formula():
    A, b, B = (torch.randn(n, 4, dtype=torch.float64, generator=generator(2)) for n in (7, 7, 7))
    mlp = PlainMLP(A, b[:, 0], B.T.contiguous(), "relu")
    x = torch.randn(3, 4, dtype=torch.float64, generator=generator(3))
    for row, output in zip(x, mlp(x), strict=True):
        expected = B.T @ (A @ row + b[:, 0]).clamp(min=0)
        torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-14)
    assert mlp.width == 7 and mlp.parameter_count == 7 * (4 + 1 + 4)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": torch.zeros(6)}, r"b \(m,\) and B \(d_v, m\); got .*'b': \(6,\)"),
        ({"B": torch.full((4, 7), torch.inf)}, "A, b and B must be finite"),
        ({"gate": "step"}, "gate must be one of identity, relu, silu, gelu; got 'step'"),
    ],
)
def test_a_plain_mlp_of_the_wrong_shape_is_refused(change, message):
    right = {"A": torch.zeros(7, 3), "b": torch.zeros(7), "B": torch.zeros(4, 7)}
    with pytest.raises(ValueError, match=message):
        PlainMLP(**right | change)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("A", "b", "B", "message"),
    [
        (torch.ones(3, 2), torch.ones(3, 3), torch.ones(1, 3), r"b \(m,\)"),
        (torch.ones(3, 2), torch.ones(3, 1), torch.ones(1, 3), r"b \(m,\)"),
        (torch.ones(3, 2), torch.tensor(1.0), torch.ones(1, 3), r"b \(m,\)"),
        (torch.ones(3, 2), torch.ones(3).double(), torch.ones(1, 3), "share one dtype"),
        (torch.ones(0, 2), torch.ones(0), torch.ones(1, 0), "must not be empty"),
    ],
)
def test_a_plain_mlp_refuses_what_would_be_broadcast(A, b, B, message):
    with pytest.raises(ValueError, match=message):
        PlainMLP(A, b, B)
