import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_flatten

from lib.facts import FactSet, gaussian_facts
from lib.linear import learning
from lib.linear.learning import NotConverged, cross_entropy, learn, pairwise
from lib.numerics import generator
from lib.tam.functional import tail_average_loss

FACTS = gaussian_facts(9, 4, generator=generator(0))
LOSSES = pytest.mark.parametrize("loss", [cross_entropy, pairwise])


def total(loss, facts, W):
    return loss(facts.keys @ W.T @ facts.values.T, facts.targets).value.sum()


@LOSSES
@given(seed=st.integers(0, 1000), scale=st.sampled_from([0.1, 3.0, 30.0]))
def test_derivatives_agree_with_autograd(loss, seed, scale):
    W = scale * torch.randn(4, 4, dtype=torch.float64, generator=generator(seed))
    gradient = torch.autograd.functional.jacobian(lambda w: total(loss, FACTS, w), W)
    hessian = torch.autograd.functional.hessian(lambda w: total(loss, FACTS, w), W)
    value, ours = learning._objective(W, FACTS, loss, 0.0)
    assert value == pytest.approx(total(loss, FACTS, W).item(), rel=1e-12)
    torch.testing.assert_close(ours, gradient, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        learning._hessian(W, FACTS, loss), hessian.reshape(16, 16), rtol=1e-8, atol=1e-12
    )


def test_cross_entropy_is_the_log_likelihood_of_the_softmax():
    W = torch.randn(4, 4, dtype=torch.float64, generator=generator(1))
    logits = FACTS.keys @ W.T @ FACTS.values.T
    expected = torch.nn.functional.cross_entropy(logits, FACTS.targets, reduction="sum")
    assert total(cross_entropy, FACTS, W).item() == pytest.approx(expected.item(), rel=1e-12)


def test_the_pairwise_loss_sums_over_competitors():
    W = torch.randn(4, 4, dtype=torch.float64, generator=generator(1))
    scores = FACTS.keys @ W.T @ FACTS.values.T
    margins = [scores[i, i] - scores[i, j] for i in range(9) for j in range(9) if i != j]
    expected = sum(((1 + t**2).sqrt() - t).item() for t in margins)
    assert total(pairwise, FACTS, W).item() == pytest.approx(expected, rel=1e-12)


@LOSSES
@pytest.mark.parametrize("ridge", [1.0, 1e-3, 1e-8])
def test_the_certified_distance_bounds_the_true_one(loss, ridge):
    rough = learn(FACTS, loss, ridge=ridge, tolerance=1e-1)
    exact = learn(FACTS, loss, ridge=ridge, tolerance=1e-6, start=rough.W)
    distance = ((rough.W - exact.W).norm() / rough.W.norm()).item()
    assert distance <= rough.distance + exact.distance
    assert exact.distance <= 1e-6


def test_a_warm_start_ends_at_the_same_minimum():
    cold = learn(FACTS, cross_entropy, ridge=1e-2, tolerance=1e-8)
    start = torch.randn(4, 4, dtype=torch.float64, generator=generator(2))
    warm = learn(FACTS, cross_entropy, ridge=1e-2, tolerance=1e-8, start=start)
    torch.testing.assert_close(warm.W, cold.W, rtol=1e-6, atol=1e-6)
    assert warm.value == pytest.approx(cold.value, rel=1e-10)


def test_blocks_do_not_change_the_result(monkeypatch):
    whole = learn(FACTS, pairwise, ridge=1e-2, tolerance=1e-8).W
    monkeypatch.setattr(learning, "BLOCK_ENTRIES", 20)
    monkeypatch.setattr(learning, "CACHED_ENTRIES", 20)
    torch.testing.assert_close(learn(FACTS, pairwise, ridge=1e-2, tolerance=1e-8).W, whole)


@LOSSES
def test_both_solvers_end_at_the_same_minimum(loss):
    newton = learn(FACTS, loss, ridge=1e-2, tolerance=1e-7)
    lbfgs = learn(FACTS, loss, ridge=1e-2, tolerance=1e-6, dense_limit=0)
    assert lbfgs.distance <= 1e-6
    assert ((lbfgs.W - newton.W).norm() / newton.W.norm()).item() <= 2e-6
    with pytest.raises(NotConverged, match="evaluations were made"):
        learn(FACTS, loss, ridge=1e-6, max_iterations=3, dense_limit=0)


def test_missing_the_certificate_is_an_error():
    with pytest.raises(NotConverged, match=r"relative distance .* asked for: 2 Newton steps"):
        learn(FACTS, cross_entropy, ridge=1e-6, max_iterations=2)


def test_a_minimum_at_zero_is_recognised():
    facts = FactSet(torch.zeros(1, 2).double(), torch.eye(2).double(), torch.tensor([0]))
    learned = learn(facts, cross_entropy, ridge=1.0)
    assert learned.distance == 0
    assert not learned.W.any()


@pytest.mark.parametrize(
    ("scale", "ridge", "start"), [(1e-170, 1e-20, 1e-148), (1.0, 1e-165, 1e160)]
)
def test_underflow_and_overflow_certify_nothing(scale, ridge, start):
    facts = FactSet(scale * FACTS.keys, FACTS.values, FACTS.targets)
    with pytest.raises(NotConverged):
        learn(facts, pairwise, ridge=ridge, start=torch.full((4, 4), start, dtype=torch.float64))


def test_a_ridge_below_rounding_is_an_error():
    with pytest.raises(NotConverged):
        learn(gaussian_facts(10, 6, generator=generator(2, 10)), pairwise, ridge=1e-18)


class Elsewhere(torch.Tensor):
    """A tensor that does not mix with ordinary ones, as one on another device would not.

    As there, numbers come out by ``item``, ``tolist``, ``bool`` and ``cpu``; ``to`` and
    ``new_empty`` go in.
    """

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        flat, _ = tree_flatten((args, kwargs))
        tensors = [t for t in flat if isinstance(t, torch.Tensor)]
        moves = func in (torch.Tensor.to, torch.Tensor.cpu)
        here = [t for t in tensors if type(t) is torch.Tensor and t.ndim]
        if here and not moves and any(isinstance(t, Elsewhere) for t in tensors):
            raise RuntimeError(f"{func.__name__}: tensors on two devices")
        if func is torch.Tensor.cpu:
            return args[0].as_subclass(torch.Tensor)
        result = super().__torch_function__(func, types, args, kwargs)
        if func is torch.Tensor.to and type(args[-1]) is torch.Tensor:  # moved back here
            return result.as_subclass(torch.Tensor)
        return result


@pytest.mark.parametrize("name", ["cross_entropy", "pairwise", "tail average"])
@pytest.mark.parametrize("dense_limit", [0, 100])
def test_everything_is_computed_where_the_facts_are(name, dense_limit):
    def loss():
        return getattr(learning, name, None) or tail_average_loss(3, 5.0)

    there = FactSet(*(t.as_subclass(Elsewhere) for t in (FACTS.keys, FACTS.values, FACTS.targets)))
    with pytest.raises(RuntimeError, match="two devices"):
        there.keys @ torch.zeros(4, 4, dtype=torch.float64)
    moved = learn(there, loss(), ridge=1e-2, tolerance=1e-8, dense_limit=dense_limit)
    assert type(moved.W) is Elsewhere
    here = learn(FACTS, loss(), ridge=1e-2, tolerance=1e-8, dense_limit=dense_limit)
    assert torch.equal(moved.W.cpu(), here.W)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_learning_on_a_gpu_ends_at_the_same_minimum():
    loss = tail_average_loss(3, 5.0)
    here = learn(FACTS, loss, ridge=1e-2, tolerance=1e-8, dense_limit=0)
    there = learn(FACTS.to(device="cuda"), loss, ridge=1e-2, tolerance=1e-8, dense_limit=0)
    torch.testing.assert_close(there.W.cpu(), here.W, rtol=1e-6, atol=1e-7)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="tolerance must be positive and finite; got nan"):
        learn(FACTS, cross_entropy, ridge=1.0, tolerance=float("nan"))
    with pytest.raises(ValueError, match=r"facts must be float64; got torch\.float32"):
        learn(FACTS.to(dtype=torch.float32), cross_entropy, ridge=1.0)
    with pytest.raises(ValueError, match=r"in torch\.float64; got"):
        learn(FACTS, cross_entropy, ridge=1.0, start=torch.zeros(4, 4))
    with pytest.raises(ValueError, match="max_iterations must be an integer of at least 0; got -1"):
        learn(FACTS, cross_entropy, ridge=1.0, max_iterations=-1)
    with pytest.raises(ValueError, match=r"start must be finite, of shape \(4, 4\)"):
        learn(FACTS, cross_entropy, ridge=1.0, start=torch.full((4, 4), torch.nan).double())

    with pytest.raises(ValueError, match="ridge must be positive and finite"):
        learn(FACTS, cross_entropy, ridge=0.0)


def test_shared_targets_and_spare_values_are_learned():
    facts = FactSet(FACTS.keys[:4], FACTS.values, torch.tensor([7, 7, 0, 2]))
    W = learn(facts, cross_entropy, ridge=1e-4).W
    assert (FACTS.keys[:4] @ W.T @ facts.values.T).argmax(1).tolist() == [7, 7, 0, 2]
