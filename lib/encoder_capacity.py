"""The cost of storing facts through codes: smallest codes, encoders and MLPs.

The variants of Dugan et al. are named after their encoder and their decoder: ``Bin`` is the exact
encoder made of gadgets, ``JL`` the random decoder, ``GD`` what is trained.
"""

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lib import capacity
from lib.constructions.decoder import Code, random_code, trained_code
from lib.constructions.encoder import gated_encoder, hidden_size
from lib.constructions.encoder_decoder import (
    exact_parameters,
    margin_optimal,
    with_trained_encoder,
)
from lib.decodability import Decodability, decodability, whitened, whitening
from lib.decoding import stores_all
from lib.facts import FactSet, ill_condition
from lib.numerics import check_choice, generator

METHODS = ("Bin + JL", "GD + JL", "Bin + GD", "GD + GD", "GD", "NTK", "NTK, u*")

#: Most entries of a random code and most hidden units of a whole MLP that are tried.
LARGEST = 2**14

#: Most hidden units of a trained encoder that are tried.
LARGEST_ENCODER = 1024

#: Names of the entries of a point of a sweep.
POINT = ("method", "whitening", "condition_number", "d", "F", "seed")

Number = int | float
Point = tuple[Number, Number, int, int, int]


def smallest_random_code(
    values: Float[Tensor, "N d"],
    outputs: Float[Tensor, "N d"],
    *stream: int,
    largest: int = LARGEST,
) -> Code | None:
    """The smallest Johnson-Lindenstrauss code that decodes; None if the search finds none.

    Decoders of different size share their columns, up to scale, so that the search of
    :func:`lib.capacity.smallest_width` is along one random sequence.

    Args:
        values: V.
        outputs: u*.
        stream: names the random stream.
        largest: most entries that are tried.
    """

    def code(m: int) -> Code:
        normal, _ = capacity.nested_normal(m, values.shape[1], *stream)
        return random_code(outputs, normal.T.contiguous().to(outputs))

    m = capacity.smallest_width(lambda m: code(m).decodes(values), guess=32, largest=largest)
    return None if m is None else code(m)


def smallest_trained_code(values: Float[Tensor, "N d"], *stream: int) -> Code | None:
    """The smallest trained code that decodes, computed in float32; None if there is none.

    At most max(d, 4) entries are tried, since d are enough.

    Args:
        values: V.
        stream: names the random stream.
    """
    single = values.float()

    def code(m: int) -> Code:
        return trained_code(single, m, generator=generator(*stream, m))

    largest = max(values.shape[1], capacity.WIDTHS[capacity.RUN])
    m = capacity.smallest_width(lambda m: code(m).decodes(single), guess=8, largest=largest)
    return None if m is None else code(m)


def conditioned_facts(
    whitening_strength: Number, condition_number: Number, d: int, F: int, seed: int
) -> FactSet:
    """Random facts on the sphere; values of a given condition number, then whitened.

    Keys stay isotropic. Those of ``condition_number`` 0 and no whitening are the isotropic facts
    of :func:`lib.capacity.capacity`.

    Args:
        whitening_strength: alpha in [0, 1].
        condition_number: of the values before whitening; 0 leaves them as they are drawn.
        d, F, seed: as in :func:`lib.capacity.capacity`.
    """
    facts = capacity.embedded_facts("isotropic", d, F, seed, d, F, 0)
    values = (
        ill_condition(facts.values, float(condition_number)) if condition_number else facts.values
    )
    facts = FactSet(facts.keys, values, facts.targets)
    return whitened(facts, whitening(values, float(whitening_strength)))


def encoder_capacity(
    method: str,
    whitening_strength: Number,
    condition_number: Number,
    d: int,
    F: int,
    seed: int,
) -> dict[str, Number]:
    """Decodability of one table, and the smallest size with which a method stores its facts.

    Args:
        method: one of :data:`METHODS`. Gradient descent and NTK are those of
            :data:`lib.capacity.CONSTRUCTIONS`; ``NTK, u*`` writes margin-optimal outputs.
        whitening_strength, condition_number, d, F, seed: as in :func:`conditioned_facts`.

    Returns:
        ``rho``; ``m``, entries of the code, d where there is none; ``width``, hidden units;
        ``parameters``. NaN where the search finds none, or where the gadgets of ``Bin`` have not
        full rank; that is looked at for one entry of the codes, and the encoder is not built. The
        encoder of ``GD +`` is tried up to :data:`LARGEST_ENCODER` units, a trained code up to
        max(d, 4) entries, everything else up to :data:`LARGEST`.

    Raises:
        ValueError: the method is unknown, or as :func:`conditioned_facts`.
    """
    check_choice("method", method, METHODS)
    point = (whitening_strength, condition_number, d, F, seed)
    _, optimal = _table(point)
    m, width, parameters = _sizes(method, point)
    return {"rho": optimal.rho, "m": m, "width": width, "parameters": parameters}


def _sizes(method: str, point: Point) -> tuple[Number, Number, Number]:
    facts, optimal = _table(point)
    F, d = facts.keys.shape
    stream = (point[-1], d, F, 1)
    if method in ("GD", "NTK", "NTK, u*"):
        name = "gradient descent" if method == "GD" else "NTK"
        aims = margin_optimal(facts, optimal) if method == "NTK, u*" else facts
        width = capacity.construction_width(facts, name, stream, LARGEST, aims=aims)
        return (d, width, 3 * d * width) if width else (d, np.nan, np.nan)
    code = _code(method[-2:], point)
    if code is None:
        return np.nan, np.nan, np.nan
    m = code.codes.shape[1]
    if method.startswith("Bin"):
        if not _solvable(facts, stream):
            return m, np.nan, np.nan
        return m, m * hidden_size(F, d), exact_parameters(m, F, d, d)
    width = _smallest_encoder(facts, code, stream)
    return m, width, (2 * d + m) * width + d * m


def _smallest_encoder(facts: FactSet, code: Code, stream: tuple[int, ...]) -> Number:
    single = facts.to(dtype=torch.float32)
    code = Code(code.codes.float(), code.D.float())

    def stores(width: int) -> bool:
        g = generator(*stream, width)
        mlp = with_trained_encoder(single, code, width, generator=g, enough=0.0)
        return stores_all(mlp, single)

    F, d = facts.keys.shape
    width = capacity.smallest_width(stores, guess=max(1, 4 * F // d), largest=LARGEST_ENCODER)
    return np.nan if width is None else width


def _solvable(facts: FactSet, stream: tuple[int, ...]) -> bool:
    """Whether a gadget of the exact encoder can be solved for the first entries of the keys."""
    F, d = facts.keys.shape
    g = generator(*stream)
    try:
        gated_encoder(facts.keys, facts.keys[:, :1], hidden_size(F, d), generator=g)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=1)
def _table(point: Point) -> tuple[FactSet, Decodability]:
    facts = conditioned_facts(*point)
    return facts, decodability(facts.values)


@lru_cache(maxsize=2)
def _code(decoder: str, point: Point) -> Code | None:
    facts, optimal = _table(point)
    F, d = facts.keys.shape
    stream = (point[-1], d, F, 2)
    if decoder == "JL":
        return smallest_random_code(facts.values, optimal.outputs, *stream)
    return smallest_trained_code(facts.values, *stream)
