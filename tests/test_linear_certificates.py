import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from lib.facts import FactSet, gaussian_facts
from lib.linear import certificates
from lib.linear.certificates import (
    Undecided,
    critical_number,
    decide,
    proves_feasible,
    proves_infeasible,
)
from lib.numerics import generator


def linear_program(facts):
    """Largest minimum margin over matrices with entries in [-1, 1]: positive iff feasible."""
    K, V, f = facts.keys.numpy(), facts.values.numpy(), facts.targets.numpy()
    A = [
        np.outer(V[f[i]] - V[j], K[i]).ravel()
        for i in range(len(K))
        for j in range(len(V))
        if j != f[i]
    ]
    D = len(A[0])
    solution = linprog(
        np.r_[np.zeros(D), -1],
        A_ub=np.c_[-np.array(A), np.ones(len(A))],
        b_ub=np.zeros(len(A)),
        bounds=[(-1, 1)] * D + [(None, 1)],
    )
    return solution.x[-1] > 1e-9


@pytest.mark.parametrize("d", [2, 3, 4, 5])
def test_decisions_agree_with_linear_programming_on_both_sides(d):
    answers = set()
    for n in range(2, 4 * d + 4):
        facts = gaussian_facts(n, d, generator=generator(1, n, d))
        decision = decide(facts)
        assert decision.feasible == linear_program(facts), (n, d)
        answers.add(decision.feasible)
        if decision.feasible:
            assert proves_feasible(facts, decision.W)
        else:
            assert proves_infeasible(facts, decision.weights)
    assert answers == {True, False}


FEASIBLE, INFEASIBLE = (gaussian_facts(n, 6, generator=generator(2, n)) for n in (10, 40))


def test_a_tampered_memory_is_rejected():
    W = decide(FEASIBLE).W
    assert proves_feasible(FEASIBLE, W)
    assert proves_feasible(FEASIBLE, 1e-6 * W)
    assert not proves_feasible(FEASIBLE, -W)
    assert not proves_feasible(FEASIBLE, 0 * W)
    assert not proves_feasible(FEASIBLE, W * torch.nan)
    assert not proves_feasible(INFEASIBLE, W)


def test_tampered_weights_are_rejected():
    weights = decide(INFEASIBLE).weights
    assert proves_infeasible(INFEASIBLE, weights)
    assert proves_infeasible(INFEASIBLE, 1e3 * weights)
    assert not proves_infeasible(INFEASIBLE, 0 * weights)
    assert not proves_infeasible(INFEASIBLE, weights * torch.nan)
    assert not proves_infeasible(INFEASIBLE, weights[:-1])
    negative, own, doubled = weights.clone(), weights.clone(), weights.clone()
    negative[0, 1] *= -1
    own[0, 0] = 1.0
    doubled[:, :20] *= 2
    for tampered in (negative, own, doubled):
        assert not proves_infeasible(INFEASIBLE, tampered)


def test_no_weights_prove_a_feasible_instance_infeasible():
    uniform = torch.ones(10, 10, dtype=torch.float64).fill_diagonal_(0)
    assert not proves_infeasible(FEASIBLE, uniform)
    slopes = certificates._slopes(FEASIBLE, decide(FEASIBLE).W)
    assert not proves_infeasible(FEASIBLE, slopes)


def test_the_weights_of_a_proof_can_be_corrected_to_sum_to_zero_exactly():
    """Rational arithmetic, no rounding: the repaired weights of a small proof stay nonnegative."""
    from fractions import Fraction

    facts = gaussian_facts(8, 2, generator=generator(3, 8))
    decision = decide(facts)
    assert decision.feasible is False
    weights = decision.weights
    rows = weights.any(1).nonzero().flatten().tolist()
    single = len(rows) == 1  # then the key drops out
    exact = [[Fraction(x) for x in row] for row in facts.values.tolist()]
    keys = [[Fraction(1)] if single else [Fraction(x) for x in row] for row in facts.keys.tolist()]
    terms = [
        (
            Fraction(weights[i, j].item()),
            [(a - b) * k for a, b in zip(exact[i], exact[j], strict=True) for k in keys[i]],
        )
        for i in rows
        for j in range(8)
        if weights[i, j] > 0
    ]
    D = len(terms[0][1])
    S = [sum(w * A[p] for w, A in terms) for p in range(D)]
    K = [[sum(w * A[p] * A[q] for w, A in terms) for q in range(D)] + [-S[p]] for p in range(D)]
    for p in range(D):  # Gauss-Jordan; K is positive definite, so no pivot is zero
        K[p] = [x / K[p][p] for x in K[p]]
        for q in range(D):
            if q != p:
                K[q] = [x - K[q][p] * y for x, y in zip(K[q], K[p], strict=True)]
    X = [row[-1] for row in K]
    corrected = [(w * (1 + sum(a * x for a, x in zip(A, X, strict=True))), A) for w, A in terms]
    assert all(w >= 0 for w, _ in corrected)
    assert any(w > 0 for w, _ in corrected)
    assert all(sum(w * A[p] for w, A in corrected) == 0 for p in range(D))


SMALL = [10.0**-k for k in (20, 140, 163, 200, 300, 320)]


@pytest.mark.parametrize("scale", [*SMALL, 1e100, 1e160, 1e300])
def test_no_scale_makes_a_false_proof(scale):
    """Neither underflow nor overflow turns numbers that prove nothing into a proof."""
    uniform = torch.ones(10, 10, dtype=torch.float64).fill_diagonal_(0)
    assert not proves_infeasible(FEASIBLE, scale * uniform)
    W = decide(FEASIBLE).W
    assert not proves_feasible(INFEASIBLE, scale * W)
    assert not proves_feasible(FEASIBLE, -scale * W)
    for keys, values in ((scale, 1.0), (1.0, scale), (scale, 1 / scale)):
        K, V = FEASIBLE.keys * keys, FEASIBLE.values * values
        if K.any(1).all() and K.isfinite().all() and V.isfinite().all():
            facts = FactSet(K, V, FEASIBLE.targets)
            assert not proves_infeasible(facts, uniform)
            assert not proves_infeasible(facts, 1e-30 * uniform)


def test_parallel_keys_are_never_proved_feasible():
    """Keys k and 3k with the targets exchanged: every W has a margin of at most zero."""
    g = generator(7)
    for scale in (1.0, 1e-165, 1e-300):
        for _ in range(50):
            k = torch.randint(-128, 128, (3,), generator=g).double()
            facts = FactSet(
                torch.stack([k, 3 * k]),
                torch.randn(2, 3, dtype=torch.float64, generator=g),
                torch.arange(2),
            )
            W = torch.randn(3, 3, dtype=torch.float64, generator=g)
            v = facts.values[0] - facts.values[1]
            W = W - torch.outer(v, k) * (v @ W @ k) / (
                (v @ v) * (k @ k)
            )  # v W k = 0 but for rounding
            assert not proves_feasible(facts, scale * W)


def test_keys_of_very_different_sizes_make_no_false_proof():
    N = 2000
    V = torch.ones(N, 1, dtype=torch.float64)
    V[0], V[-1] = 1 + 2.0**-52, -1  # W = (1, 1) stores everything
    keys = torch.eye(2, dtype=torch.float64).repeat(2, 1) * torch.tensor(
        [[2.0**-570], [2.0**-570], [1], [1]], dtype=torch.float64
    )
    facts = FactSet(keys, V, torch.zeros(4, dtype=torch.int64))
    weights = torch.zeros(4, N, dtype=torch.float64)
    weights[:2, 1:-1] = 2.0**570 * torch.rand(2, N - 2, dtype=torch.float64, generator=generator(2))
    computed = certificates._weighted_sum(facts, weights).flatten()  # rounding alone
    weights[2, -1], weights[3, -1] = (-computed / 2).clamp(min=0)
    assert not proves_infeasible(facts, weights)


@pytest.mark.parametrize("scale", [1e-3, 1e-4, 1e8, 1e20])
def test_decisions_do_not_depend_on_units(scale):
    for n in (8, 12, 14, 16, 24):
        facts = gaussian_facts(n, 6, generator=generator(3, n))
        rows = torch.logspace(-20, 20, n, dtype=torch.float64)[
            torch.randperm(n, generator=generator(n))
        ]
        rescaled = FactSet(rows[:, None] * facts.keys, scale * facts.values, facts.targets)
        decision = decide(rescaled)
        assert decision.feasible == decide(facts).feasible
        if decision.feasible:
            assert proves_feasible(rescaled, decision.W)
        else:
            assert proves_infeasible(rescaled, decision.weights)


def test_a_value_inside_the_hull_of_others_loses_by_itself():
    square = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1], [0.1, 0]], dtype=torch.float64)
    facts = FactSet(torch.eye(5).double(), square, torch.arange(5))
    decision = decide(facts)
    assert decision.feasible is False
    assert decision.weights.any(1).tolist() == [False] * 4 + [True]


def test_a_single_fact_is_decided_in_any_dimension():
    square = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1], [0.1, 0]], dtype=torch.float64)
    key = torch.ones(1, 3, dtype=torch.float64)
    inside = FactSet(key, square, torch.tensor([4]))
    assert decide(inside).feasible is False
    assert proves_infeasible(inside, decide(inside).weights)
    assert decide(FactSet(key, square, torch.tensor([0]))).feasible is True


def test_degenerate_facts_are_decided():
    eye = torch.eye(2, dtype=torch.float64)
    zero_key = FactSet(eye * torch.tensor([[1.0], [0.0]]), eye, torch.arange(2))
    equal_values = FactSet(eye, eye[[0, 0]], torch.arange(2))
    for facts in (zero_key, equal_values):
        decision = decide(facts)
        assert decision.feasible is False
        assert proves_infeasible(facts, decision.weights)
    line = torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
    assert decide(FactSet(line, line, torch.arange(2))).feasible is True
    parallel = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    assert decide(FactSet(parallel, line, torch.arange(2))).feasible is False


def test_an_instance_that_cannot_be_decided_says_so():
    # Keys on a line in the plane: infeasible, but the inequalities do not span the matrices.
    keys = torch.tensor([[1.0, 0], [2, 0], [3, 0]], dtype=torch.float64)
    values = torch.tensor([[1.0, 0], [0, 1], [-1, -1]], dtype=torch.float64)
    assert decide(FactSet(keys, values, torch.arange(3))).feasible is None
    with pytest.raises(Undecided, match="3 facts"):
        critical_number(keys, values)


def test_single_precision_is_refused():
    single = FEASIBLE.to(dtype=torch.float32)
    W = decide(FEASIBLE).W
    for call in (
        lambda: decide(single),
        lambda: proves_feasible(single, W.float()),
        lambda: proves_infeasible(single, torch.ones(10, 10)),
    ):
        with pytest.raises(ValueError, match="facts must be float64"):
            call()
    with pytest.raises(ValueError, match="W must be float64"):
        proves_feasible(FEASIBLE, W.float())


def test_a_stream_ends_where_a_key_comes_back():
    stream = gaussian_facts(6, 8, generator=generator(0))
    again = [0, 1, 2, 0, 3, 4]
    assert critical_number(stream.keys[again], stream.values) == 3
    with pytest.raises(ValueError, match="at least 2 pairs; got 1"):
        critical_number(stream.keys[:1], stream.values[:1])


def test_the_critical_number_is_where_linear_programming_changes_its_mind():
    stream = gaussian_facts(30, 6, generator=generator(5))
    n = critical_number(stream.keys, stream.values)
    for facts, storable in ((n, True), (n + 1, False)):
        prefix = FactSet(stream.keys[:facts], stream.values[:facts], torch.arange(facts))
        assert linear_program(prefix) == storable
    with pytest.raises(ValueError, match=f"the whole stream of {n} pairs can be stored"):
        critical_number(stream.keys[:n], stream.values[:n])
