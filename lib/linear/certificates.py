"""Can any linear memory store these facts? A proof either way, for one fact set.

Fact i against competitor j is the linear inequality <A_ij, W> > 0 with A_ij = (v_f(i) - v_j) k_i^T.
By Gordan's theorem exactly one holds: some W satisfies all of them, or some weights lambda >= 0,
not all zero, have sum lambda_ij A_ij = 0. A matrix W proves the first. Weights in floating point
never sum to zero exactly; they prove the second all the same if what is left is small enough to
be absorbed by changing every weight by less than itself.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lib.decoding import retrieve
from lib.facts import FactSet
from lib.linear.learning import NotConverged, kronecker_sum, learn, pairwise, second_moments
from lib.linear.stores import linear_memory
from lib.numerics import check_double, last_before

#: Ridges of the path along which an instance is decided.
RIDGES = tuple(10.0**-k for k in range(2, 17))

#: Relative accuracy of each point of the path; the proof does not depend on it.
PATH_TOLERANCE = 1e-1

#: Steps that a repair of weights may take, and the shortest worth taking.
MAX_REPAIRS = 20
SHORTEST_REPAIR = 0.1

#: Scales that are still proved: tables up to LARGEST, entries down to SMALLEST of the largest.
LARGEST, SMALLEST = 1e100, 1e-30

UNIT_ROUNDOFF = torch.finfo(torch.float64).eps / 2


@dataclass(frozen=True)
class Decision:
    """Whether a linear memory stores the facts, with its proof.

    Attributes:
        feasible: True, False, or None if neither could be proved.
        W: a memory that stores every fact, if feasible.
        weights: lambda >= 0 over facts and competitors that excludes every memory, if infeasible.
    """

    feasible: bool | None
    W: Float[Tensor, "d_v d"] | None = None
    weights: Float[Tensor, "F N"] | None = None


def decide(facts: FactSet) -> Decision:
    """Prove that some linear memory stores the facts, or that none does.

    Follows the minimiser of :func:`lib.linear.learning.pairwise` as the ridge goes to zero. If it
    stores everything, it is the proof. If not, the slopes of the loss are nearly a dual certificate
    (sum lambda_ij A_ij = ridge W at the minimum), and a linear solve makes them one. The loss is
    pairwise, with a heavy tail, so that no slope is tiny and the certificate is well conditioned.
    Where that fails, facts are tried one by one: a value inside the convex hull of the others can
    never win. Every proof is checked by :func:`proves_feasible` or :func:`proves_infeasible`
    before it is returned.

    Args:
        facts: float64; time and memory grow like (d_v d)^3 and (d_v d)^2.

    Returns:
        A decision; ``feasible`` is None where all proofs fail, as they may within rounding of
        the boundary, where the inequalities that contradict each other do not span the matrices
        (keys in a subspace; sometimes by chance in dimensions below ten), or where entries span
        more than thirty orders of magnitude.

    Raises:
        ValueError: the facts are not float64.

    Source: Barnfield et al., Section 2.3 for the alternative and for the repair of weights.
    """
    check_double(facts=facts.keys)
    if (weights := _impossible(facts).double()).any():
        return Decision(False, weights=weights)
    scaled = _normalised(facts)
    if scaled is None:
        return Decision(None)
    facts, key_scales = scaled
    decision = _follow_path(facts)
    if decision.feasible is None:
        decision = _lost_fact(facts) or decision
    if decision.weights is not None:
        return Decision(False, weights=decision.weights / key_scales[:, None])
    return decision


def proves_feasible(facts: FactSet, W: Float[Tensor, "d_v d"]) -> bool:
    """Whether W stores every fact, by margins that rounding errors cannot have made up.

    After scaling (see :func:`_normalised`) a computed score is off by at most
    gamma |v| |W|_F |k|, with Higham's gamma of d + d_v + 2 operations.

    Raises:
        ValueError: facts or W are not float64.
    """
    check_double(facts=facts.keys, W=W)
    scaled, W = _normalised(facts), _scaled_table(W)
    if scaled is None or W is None:
        return False
    facts, _ = scaled
    scale = facts.values.norm(dim=1).max() * W.norm() * facts.keys.norm(dim=1)
    slack = 2 * _gamma(sum(W.shape) + 2) * scale
    return bool((retrieve(linear_memory(W), facts).margins > slack).all())


def proves_infeasible(facts: FactSet, weights: Float[Tensor, "F N"]) -> bool:
    """Whether these weights exclude every linear memory.

    Let S = sum lambda_ij A_ij and K = sum lambda_ij vec(A_ij) vec(A_ij)^T. If K is positive
    definite, X = -K^(-1) S gives weights lambda_ij (1 + <A_ij, X>) whose sum is exactly zero, and
    they are positive where lambda is if 2 |S|_F max |A_ij|_F <= lambda_min(K), since
    |<A_ij, X>| <= |A_ij| |S| / lambda_min(K). Bounds on the rounding of S and K are added, and
    lambda_min(K) is bounded below by a Cholesky factorisation of K - shift I that succeeds
    (its own backward error included). If every weighted A_ij is exactly zero, so is S, and
    nothing else is needed. If the weights belong to a single fact, its key drops out, and the
    condition is that of its value alone.

    All of this holds for numbers that neither overflow nor underflow. So keys, values and weights
    are first scaled by powers of two, which changes no proof, and refused if they still span too
    many orders of magnitude; weights that are negligible are dropped, which leaves a certificate
    of its own to be checked.

    Raises:
        ValueError: facts or weights are not float64.
    """
    check_double(facts=facts.keys, weights=weights)
    if weights.shape != (len(facts), len(facts.values)):
        return False
    if not weights.isfinite().all() or (weights < 0).any():
        return False
    if (weights.gather(1, facts.targets[:, None]) != 0).any():
        return False  # A_ij = 0 for the target itself: such a weight proves nothing
    if not weights[~_impossible(facts)].any():
        return bool(weights.any())  # every weighted inequality reads 0 > 0
    scaled = _normalised(facts)
    if scaled is None:
        return False
    facts, key_scales = scaled
    weights = weights * key_scales[:, None]
    weights = weights / weights.max()
    if not weights.isfinite().all():
        return False
    weights = torch.where(weights < SMALLEST, 0.0, weights)
    rows = weights.any(1).nonzero().flatten()
    if len(rows) == 1 and facts.keys.shape != (1, 1):
        return proves_infeasible(_alone(facts, rows.item()), weights[rows])
    (F, d), (N, d_v) = facts.keys.shape, facts.values.shape
    key_norms, value_norms = facts.keys.norm(dim=1), facts.values.norm(dim=1)
    # |A_ij| <= size_ij; all bounds below are sums of nonnegative terms, inflated for rounding.
    sizes = key_norms[:, None] * (value_norms[facts.targets][:, None] + value_norms[None, :])
    inflate = 1 + 1e-6
    largest = sizes.max() * inflate
    mass, square_mass = (weights * sizes).sum() * inflate, (weights * sizes**2).sum() * inflate
    remainder = _weighted_sum(facts, weights).norm() * inflate + _gamma(2 * F + 2 * N + 8) * mass
    rounding = _gamma(2 * F + 4 * N + 16) * square_mass + _gamma(2 * d * d_v + 8) * square_mass
    gram = _gram(facts, weights)
    gram.diagonal().sub_(2 * (largest * remainder + rounding))
    _, failed = torch.linalg.cholesky_ex(gram)
    return bool(gram.isfinite().all()) and failed.item() == 0


def _normalised(facts: FactSet) -> tuple[FactSet, Float[Tensor, " F"]] | None:
    """The facts with every key and the table of values scaled by powers of two to order one.

    Scaling changes no proof. Every nonzero entry is between SMALLEST and 1. The keys' scales come
    with the facts; None if an entry is too small beside the largest, or a key zero.
    """
    keys, values = _scaled_table(facts.keys, over=1), _scaled_table(facts.values)
    if keys is None or values is None:
        return None
    if len(torch.unique(keys, dim=0)) < len(keys):  # parallel keys: one scale for all
        keys = _scaled_table(facts.keys)
        if keys is None:
            return None
    # lambda_ij A_ij is unchanged if lambda grows by what the key lost.
    scales = facts.keys.abs().amax(1) / keys.abs().amax(1)
    return FactSet(keys, values, facts.targets), scales


def _scaled_table(table: Tensor, *, over: int | tuple[int, ...] = (0, 1)) -> Tensor | None:
    """The table, or each row (over=1), times a power of two, its largest entry in [1/2, 1).

    None if that is not exact.
    """
    largest = table.abs().amax(over, keepdim=True)
    if not ((largest > 1 / LARGEST) & (largest < LARGEST)).all():
        return None
    table = table * (torch.frexp(largest).mantissa / largest)
    return None if ((table != 0) & (table.abs() < SMALLEST)).any() else table


class Undecided(RuntimeError):
    """Neither proof succeeded for some number of facts."""


def critical_number(keys: Float[Tensor, "n d"], values: Float[Tensor, "n d_v"]) -> int:
    """The largest n for which the first n pairs of a stream can be stored, proved on both sides.

    Pair i is fact i, against the values of the first n pairs. Another pair only adds
    inequalities, so that bisection finds the one n_c whose facts can be stored while those of
    n_c + 1 cannot.

    Raises:
        ValueError: the whole stream can be stored.
        Undecided: an instance on the way was not decided.
    """

    if len(keys) < 2:
        raise ValueError(f"the stream must have at least 2 pairs; got {len(keys)}")

    def feasible(n: int) -> bool:
        if len(torch.unique(keys[:n], dim=0)) < n:
            return False  # one key with two values
        targets = torch.arange(n, device=keys.device)
        answer = decide(FactSet(keys[:n], values[:n], targets)).feasible
        if answer is None:
            raise Undecided(f"{n} facts in dimensions {keys.shape[1]} and {values.shape[1]}")
        return answer

    if feasible(len(keys)):
        raise ValueError(f"the whole stream of {len(keys)} pairs can be stored")
    return last_before(1, len(keys), feasible)  # one fact has no competitor


def _gamma(operations: int) -> float:
    """Relative rounding error of a sum of products with that many operations (Higham's gamma)."""
    return operations * UNIT_ROUNDOFF / (1 - operations * UNIT_ROUNDOFF)


def _impossible(facts: FactSet) -> Tensor:
    """The pairs (i, j) whose A_ij is exactly zero: a zero key, or two equal values."""
    zero_key = (facts.keys == 0).all(1)
    _, group = torch.unique(facts.values, dim=0, return_inverse=True)
    equal_value = group[facts.targets][:, None] == group[None, :]
    return (zero_key[:, None] | equal_value).scatter(1, facts.targets[:, None], False)


def _follow_path(facts: FactSet) -> Decision:
    W = None
    for ridge in RIDGES:
        try:
            W = learn(
                facts,
                pairwise,
                ridge=ridge,
                tolerance=PATH_TOLERANCE,
                start=W,
                stop=lambda W: proves_feasible(facts, W),
            ).W
        except (NotConverged, torch.linalg.LinAlgError):
            break  # float64 is exhausted
        if proves_feasible(facts, W):
            return Decision(True, W=W)
        weights = _repaired(facts, _slopes(facts, W))
        if weights is not None and proves_infeasible(facts, weights):
            return Decision(False, weights=weights)
    return Decision(None)


def _lost_fact(facts: FactSet) -> Decision | None:
    """A proof that one fact alone cannot be stored, its value being inside the others' hull."""
    for i in range(len(facts)):
        alone = _follow_path(_alone(facts, i))
        if alone.feasible is False:
            weights = torch.zeros(len(facts), len(facts.values)).to(facts.keys)
            weights[i] = alone.weights[0]
            return Decision(False, weights=weights)
    return None


def _alone(facts: FactSet, i: int) -> FactSet:
    """Fact i with the number 1 as its key: sum_j lambda_ij A_ij vanishes for both or neither."""
    key = torch.ones(1, 1).to(facts.keys)
    return FactSet(key, facts.values, facts.targets[i : i + 1])


def _slopes(facts: FactSet, W: Tensor) -> Tensor:
    """Minus the derivative of the pairwise loss in each margin."""
    gradient = pairwise(facts.keys @ W.T @ facts.values.T, facts.targets).gradient
    return gradient.scatter(1, facts.targets[:, None], 0.0)


def _weighted_sum(facts: FactSet, weights: Tensor) -> Float[Tensor, "d_v d"]:
    """S = sum lambda_ij A_ij."""
    return (weights.sum(1, keepdim=True) * facts.answers - weights @ facts.values).T @ facts.keys


def _gram(facts: FactSet, weights: Tensor) -> Float[Tensor, "D D"]:
    """K = sum lambda_ij vec(A_ij) vec(A_ij)^T."""
    mean = weights @ facts.values
    cross = mean[:, :, None] * facts.answers[:, None, :]
    own = facts.answers[:, :, None] * facts.answers[:, None, :]
    moments = second_moments(weights, facts.values) - cross - cross.mT
    return kronecker_sum(moments + weights.sum(1)[:, None, None] * own, facts.keys)


def _repaired(facts: FactSet, weights: Tensor) -> Tensor | None:
    """Positive weights whose sum is zero up to rounding, near the given ones; None if too far.

    Steps of X = -K^(-1) S: a full one leaves only rounding errors, and a second one fewer. A step
    that would turn a weight negative is cut short, as in an interior-point method.
    """
    full_steps = 0
    for _ in range(MAX_REPAIRS):
        factor, failed = torch.linalg.cholesky_ex(_gram(facts, weights))
        if failed:
            return None
        S = _weighted_sum(facts, weights)
        X = -torch.cholesky_solve(S.reshape(-1, 1), factor).reshape(S.shape)
        scores = facts.keys @ X.T @ facts.values.T
        change = scores.gather(1, facts.targets[:, None]) - scores
        step = min(1.0, 0.9 / change.min().clamp(max=-1e-300).abs().item())
        if step < SHORTEST_REPAIR:
            return None
        weights = weights * (1 + step * change)
        full_steps += step == 1
        if full_steps == 2:
            return weights
    return None
