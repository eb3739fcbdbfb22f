"""What rounded weights cost a margin, and how many bits keep half of it."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lib.decoding import Retrieval, score_margins
from lib.facts import FactSet
from lib.mlp import GatedMLP, check_bilinear
from lib.numerics import BLOCK_ENTRIES, check_count, row_blocks

#: Root mean square of a relative rounding error, in units of its bound 2^-(t+1): a uniform error
#: of the last place over a mantissa in [1, 2) whose logarithm is uniform, sqrt(E[1/m^2] / 3).
RMS_ROUNDING = math.sqrt(3 / (8 * math.log(2)) / 3)

#: Most mantissa bits that a float64 can lose.
LARGEST_BITS = 52

#: Expected number of facts lost at which rounding counts as safe.
RARE = 0.1


# --- rounding -----------------------------------------------------------------------------------


def round_mantissa(x: Float[Tensor, "n m"], bits: int) -> Float[Tensor, "n m"]:
    """The nearest numbers ±1.b_1...b_t 2^e with t = ``bits``, ties to even; any exponent e.

    The relative error is at most 2^-(t+1). With 23, 10 and 7 bits these are the numbers of
    float32, float16 and bfloat16, as long as nothing overflows or underflows there; with 0 bits
    only powers of two are left.

    Args:
        x: finite, on the CPU.
        bits: t, 0 to 52.

    Raises:
        ValueError: bits is out of range.
    """
    if not 0 <= bits <= LARGEST_BITS:
        raise ValueError(f"bits must be in 0..{LARGEST_BITS}; got {bits}")
    mantissa, exponent = np.frexp(x.detach().numpy())  # 1/2 <= |mantissa| < 1
    rounded = np.rint(np.ldexp(mantissa, bits + 1))
    return torch.from_numpy(np.ldexp(rounded, exponent - bits - 1))


def round_integer(
    x: Float[Tensor, "n m"], bits: int, *, by_row: bool = False
) -> Float[Tensor, "n m"]:
    """The nearest multiples k s, |k| < 2^(b-1), b = ``bits``: symmetric quantization to integers.

    The scale s is such that the largest entry, of the matrix or of each row, becomes the largest
    multiple.

    Args:
        x: finite.
        bits: b, 2 to 32.
        by_row: whether every row has a scale of its own.

    Raises:
        ValueError: bits is out of range.
    """
    if not 2 <= bits <= 32:
        raise ValueError(f"bits must be in 2..32; got {bits}")
    largest = x.abs().amax(1, keepdim=True) if by_row else x.abs().amax()
    scale = torch.where(largest > 0, largest, 1) / (2 ** (bits - 1) - 1)
    return (x / scale).round() * scale


def quantized(mlp: GatedMLP, rounding: Callable[[Tensor], Tensor]) -> GatedMLP:
    """A frozen copy of the MLP with a rounding applied to A, G and B."""
    weights = (rounding(weight.detach()) for weight in (mlp.A, mlp.G, mlp.B))
    return GatedMLP(*weights, mlp.gate).requires_grad_(False)


# --- how many bits keep half of the margin ------------------------------------------------------


def output_tolerance(margin: float, value_radius: float) -> float:
    """gamma / (4 R_V): outputs that move by less keep half of the margin.

    Args:
        margin: gamma_min > 0.
        value_radius: R_V > 0, the largest norm of a value.

    Source: Garcia et al., Lemma B.4.
    """
    if not margin > 0 or not value_radius > 0:
        raise ValueError(
            "the memory must store its facts and values must not be zero; "
            f"got margin {margin:.3g} and value_radius {value_radius:.3g}"
        )
    return margin / (4 * value_radius)


def parameter_lipschitz(operator_norm: float, key_radius: float) -> float:
    """sqrt(3) M^2 R_K^2: how fast outputs of bilinear MLPs move with their parameters.

    For any two MLPs with operator norms of A, G, B up to M and any |x| <= R_K,
    |g(x) - g'(x)| <= sqrt(3) M^2 R_K^2 sqrt(|A - A'|_F^2 + |G - G'|_F^2 + |B - B'|_F^2).

    Source: Garcia et al., Lemma B.5, which has 3 in place of sqrt(3): a + b + c is at most
    sqrt(3 (a^2 + b^2 + c^2)). MLPs of one unit come arbitrarily close.
    """
    return math.sqrt(3) * operator_norm**2 * key_radius**2


def rounded_output_bound(mlp: GatedMLP, facts: FactSet, bits: int) -> float:
    """How far rounding to t mantissa bits may move any output: L C_rng sqrt(P) 2^-(t+1).

    C_rng is the largest weight, P their number, and L the Lipschitz constant of all bilinear MLPs
    whose operator norms are up to those that rounding can reach, |W|_op + 2^-(t+1) |W|_F.

    Args:
        mlp: bilinear.
        facts: for their largest key.
        bits: t >= 0.

    Raises:
        ValueError: the gate is not the identity, or bits negative.

    Source: Garcia et al., the proof of Theorem B.6.
    """
    return _output_bounds(mlp, facts)(bits)


def _output_bounds(mlp: GatedMLP, facts: FactSet) -> Callable[[int], float]:
    """:func:`rounded_output_bound` as a function of the bits; norms are computed once."""
    check_bilinear(mlp)
    weights = [weight.detach() for weight in (mlp.A, mlp.G, mlp.B)]
    norms = [(torch.linalg.matrix_norm(w, 2).item(), w.norm().item()) for w in weights]
    largest = max(weight.abs().max().item() for weight in weights)
    key_radius = facts.keys.norm(dim=1).max().item()

    def bound(bits: int) -> float:
        unit = _roundoff(bits)
        reached = max(operator + unit * frobenius for operator, frobenius in norms)
        lipschitz = parameter_lipschitz(reached, key_radius)
        return lipschitz * largest * math.sqrt(mlp.parameter_count) * unit

    return bound


def sufficient_bits(mlp: GatedMLP, facts: FactSet, margin: float) -> int:
    """Mantissa bits with which rounding provably leaves half of the margin.

    The smallest t >= 0 at which :func:`rounded_output_bound` is at most gamma / (4 R_V).

    Args:
        mlp: bilinear.
        facts: that it stores.
        margin: gamma_min > 0.

    Raises:
        ValueError: the gate is not the identity, or the margin not positive.

    Source: Garcia et al., Theorem B.6, its constants made explicit.
    """
    tolerance = output_tolerance(margin, facts.values.norm(dim=1).max().item())
    bound = _output_bounds(mlp, facts)
    return next(bits for bits in itertools.count() if bound(bits) <= tolerance)


def readout_norm_bound(mlp: GatedMLP, facts: FactSet) -> float:
    """F R_V |A| |G| R_K^2, which the operator norm of a raw Hebbian readout does not exceed.

    With it operator norms and entries of all weights, and by :func:`parameter_lipschitz` the
    Lipschitz constant, are bounded by those of the random A and G.

    Args:
        mlp: bilinear, with the readout C^T Phi.
        facts: that were written.

    Raises:
        ValueError: the gate is not the identity.

    Source: Garcia et al., the proof of Proposition B.7, whose readout is divided by F.
    """
    check_bilinear(mlp)
    up, gate = (torch.linalg.matrix_norm(w.detach(), 2).item() for w in (mlp.A, mlp.G))
    value_radius, key_radius = (
        table.norm(dim=1).max().item() for table in (facts.values, facts.keys)
    )
    return len(facts) * value_radius * up * gate * key_radius**2


def code_length(parameters: int, bits: int) -> int:
    """Bits that P rounded weights take: a sign, t mantissa bits and an exponent each.

    Within the theorem's error, weights below 2^-(t+1) times the largest may be rounded to zero,
    so that an exponent is one of t + 2, or none.

    Args:
        parameters: P >= 1.
        bits: t >= 0.

    Raises:
        ValueError: an argument is out of range.

    Source: Garcia et al., eq. 21, with the exponents counted (see chapter 12).
    """
    check_count(parameters=parameters)
    check_count(0, bits=bits)
    return parameters * (1 + bits + math.ceil(math.log2(bits + 3)))


@torch.no_grad()
def rounded_margin_floors(
    mlp: GatedMLP, facts: FactSet, bits: int, *, entries: int = BLOCK_ENTRIES
) -> Float[Tensor, " F"]:
    """A lower bound on each margin under any relative errors up to 2^-(t+1) of the weights.

    Absolute values in place of norms, and attained to first order. With u = 2^-(t+1), x a key,
    a = A x and g = G x, the features are off by at most
    delta = u (|a| |G||x| + |g| |A||x|) + u^2 |A||x| |G||x|, and the margin against j by at most
    |B^T w| . delta + u |w| . |B| (|phi| + delta), w = v_f(i) - v_j.

    Args:
        mlp: bilinear.
        bits: t >= 0.
        entries: bound on the entries of a temporary array.

    Raises:
        ValueError: the gate is not the identity, or bits negative.
    """
    check_bilinear(mlp)
    unit, A, G, B = _roundoff(bits), mlp.A, mlp.G, mlp.B
    pulls, floors = facts.values @ B, []  # rows B^T v_j
    columns = len(facts.values) * max(B.shape)
    for rows in row_blocks(len(facts), columns, entries=entries):
        x = facts.keys[rows]
        a, g, a_size, g_size = x @ A.T, x @ G.T, x.abs() @ A.abs().T, x.abs() @ G.abs().T
        error = unit * (a.abs() * g_size + g.abs() * a_size) + unit**2 * a_size * g_size
        reach = unit * ((a * g).abs() + error) @ B.abs().T
        targets = facts.targets[rows]
        hidden = ((pulls[targets, None] - pulls).abs() * error[:, None]).sum(2)
        readout = ((facts.answers[rows, None] - facts.values).abs() * reach[:, None]).sum(2)
        scores = (a * g) @ pulls.T + hidden + readout  # competitors gain; the target's own are 0
        floors.append(score_margins(scores, targets)[0])
    return torch.cat(floors)


@torch.no_grad()
def rounding_deviations(mlp: GatedMLP, facts: FactSet, retrieval: Retrieval) -> Float[Tensor, " F"]:
    """Standard deviation of each margin if all weights had independent relative errors of rms 1.

    To first order, against the hardest competitor; it is proportional to the error's rms.

    Raises:
        ValueError: the gate is not the identity.
    """
    check_bilinear(mlp)
    a, g = facts.keys @ mlp.A.T, facts.keys @ mlp.G.T
    w = facts.answers - facts.values[retrieval.competitors]
    pull, squares = w @ mlp.B, facts.keys**2
    readout = (w**2 * ((a * g) ** 2 @ (mlp.B**2).T)).sum(1)
    hidden = ((pull * g) ** 2 * (squares @ (mlp.A**2).T)).sum(1)
    gates = ((pull * a) ** 2 * (squares @ (mlp.G**2).T)).sum(1)
    return (readout + hidden + gates).sqrt()


def expected_bits(mlp: GatedMLP, facts: FactSet, retrieval: Retrieval) -> int:
    """Mantissa bits with which independent rounding is expected to leave half of the margin.

    The smallest t at which at most 1/10 of a fact is expected to fall below gamma_min / 2, margins
    being Gaussian with the standard deviations of :func:`rounding_deviations`. A prediction and
    no bound.

    Raises:
        ValueError: the gate is not the identity, or not all facts are stored.
    """
    output_tolerance(retrieval.minimum_margin, 1.0)
    room = retrieval.margins - retrieval.minimum_margin / 2
    deviations = rounding_deviations(mlp, facts, retrieval)
    for bits in itertools.count():
        scale = RMS_ROUNDING * 2.0 ** -(bits + 1)
        if torch.special.ndtr(-room / (scale * deviations)).sum() <= RARE:
            return bits


def _roundoff(bits: int) -> float:
    check_count(0, bits=bits)
    return 2.0 ** -(bits + 1)
