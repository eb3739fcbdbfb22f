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
    with pytest.raises(ValueError, match="facts must be float64"):
        decide(FEASIBLE.to(dtype=torch.float32))


def test_the_critical_number_is_where_linear_programming_changes_its_mind():
    stream = gaussian_facts(30, 6, generator=generator(5))
    n = critical_number(stream.keys, stream.values)
    for facts, storable in ((n, True), (n + 1, False)):
        prefix = FactSet(stream.keys[:facts], stream.values[:facts], torch.arange(facts))
        assert linear_program(prefix) == storable
    with pytest.raises(ValueError, match=f"the whole stream of {n} pairs can be stored"):
        critical_number(stream.keys[:n], stream.values[:n])
