"""Capacity: the smallest width with which a construction stores a fact set."""

import warnings
from bisect import bisect_left
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lib.constructions.gradient import gradient_descent
from lib.constructions.hebbian import hebbian_mlp, solved_mlp
from lib.constructions.ntk import ntk_mlp
from lib.decoding import stores_all
from lib.facts import FactSet, random_facts, sphere, spike
from lib.mlp import GatedMLP
from lib.numerics import check_choice, generator, last_before

#: Widths that are tried: all small ones, then 16 for every doubling, 4.4 per cent apart.
WIDTHS = np.unique(np.round(2 ** (np.arange(17 * 16 + 1) / 16)).astype(int)).tolist()

#: Consecutive widths that must all succeed.
RUN = 3

#: Hidden units are drawn in blocks of this many, each from a random stream of its own.
UNITS = 256

#: Strength of the spike on keys and values of anisotropic facts (Garcia et al., Appendix A.5.2).
SPIKE = 1.5


def smallest_width(
    stores: Callable[[int], bool], *, guess: int, largest: int = WIDTHS[-1]
) -> int | None:
    """A width that fails no more: it and the next ones succeed, the one before does not.

    Whether a construction stores its facts is not quite monotone in its width. We take widths
    from a grid with steps of 4.4 per cent, find one that succeeds next to one that fails, by
    doubling steps from the guess and bisection, and move up until three in a row succeed. The
    search sees only part of the grid: where success is an island, it may miss it.

    Args:
        stores: whether a width succeeds; called at most once for each.
        guess: where to begin, at least 1.
        largest: the last width that is tried.

    Returns:
        The width, or None if the search ends at ``largest`` without one.

    Raises:
        ValueError: guess or largest is out of range.
    """
    if not guess >= 1 or not WIDTHS[RUN] <= largest <= WIDTHS[-1]:
        raise ValueError(
            f"guess must be at least 1 and largest in {WIDTHS[RUN]}..{WIDTHS[-1]}; "
            f"got {guess} and {largest}"
        )
    grid = [width for width in WIDTHS if width <= largest]
    known: dict[int, bool] = {}

    def holds(k: int) -> bool:
        if k not in known:
            known[k] = stores(grid[k])
        return known[k]

    top = len(grid) - 1
    low = high = min(bisect_left(grid, guess), top)
    step = 2
    while high < top and not holds(high):
        low, high, step = high, min(high + step, top), 2 * step
    step = 2
    while low > 0 and holds(low):
        low, high, step = max(low - step, 0), low, 2 * step
    low = last_before(low, high, lambda k: not holds(k))
    first = low if holds(low) else low + 1
    while first + RUN - 1 <= top:
        failed = [k for k in range(first, first + RUN) if not holds(k)]
        if not failed:
            return grid[first]
        first = failed[-1] + 1
    return None


# --- constructions whose widths are nested -------------------------------------------------------


def nested_normal(
    width: int, d: int, *stream: int
) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m d"]]:
    """Two standard Gaussian matrices whose rows do not depend on how many there are.

    Args:
        width: number of rows, at least 1.
        d: number of columns.
        stream: names of the random stream.
    """
    blocks = [
        torch.randn(2, UNITS, d, dtype=torch.float64, generator=generator(*stream, block))
        for block in range(-(-width // UNITS))
    ]
    A, G = torch.cat(blocks, 1)[:, :width]
    return A, G


def _sketched(facts: FactSet, width: int, stream: tuple[int, ...], *, whitening: str) -> GatedMLP:
    return hebbian_mlp(facts, *sketch(facts, width, stream), whitening=whitening)


def _data_dependent(facts: FactSet, width: int, stream: tuple[int, ...]) -> GatedMLP:
    single = facts.to(dtype=torch.float32)
    with warnings.catch_warnings():  # solves near m = F do not converge, and need not
        warnings.simplefilter("ignore", UserWarning)
        mlp = solved_mlp(single, *sketch(single, width, stream))
    return mlp.to(facts.keys.dtype)


def _ntk(facts: FactSet, width: int, stream: tuple[int, ...]) -> GatedMLP:
    gates, _ = nested_normal(width, facts.keys.shape[1], *stream)
    _, outputs = nested_normal(width, facts.values.shape[1], *stream)
    return ntk_mlp(facts, gates.to(facts.keys), outputs.to(facts.keys))


def _gradient(facts: FactSet, width: int, stream: tuple[int, ...]) -> GatedMLP:
    trained = facts.to(dtype=torch.float32)
    mlp = gradient_descent(trained, width, generator=generator(*stream, width), enough=0.0)
    return mlp.to(facts.keys.dtype)


def sketch(
    facts: FactSet, width: int, stream: tuple[int, ...]
) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m d"]]:
    """Nested hidden weights of the sketched quadratic kernel, in the facts' dtype."""
    A, G = nested_normal(width, facts.keys.shape[1], *stream)
    return (width**-0.25 * A).to(facts.keys), (width**-0.25 * G).to(facts.keys)


#: Each construction, (facts, width, stream) -> MLP, and c of its width c F log F / d, roughly,
#: where searches begin.
CONSTRUCTIONS: dict[str, tuple[Callable[[FactSet, int, tuple[int, ...]], GatedMLP], float]] = {
    "gradient descent": (_gradient, 0.2),
    "data-dependent": (_data_dependent, 1.5),
    "whitened": (partial(_sketched, whitening="full"), 5.0),
    "unwhitened": (partial(_sketched, whitening="none"), 20.0),
    "NTK": (_ntk, 40.0),
}

EMBEDDINGS = ("isotropic", "tied", "spiked")


def embedded_facts(embedding: str, d: int, F: int, *stream: int) -> FactSet:
    """Facts on the unit sphere, matched by a random bijection, in one of three geometries.

    ``isotropic``: keys and values uniform and independent. ``tied``: values are the keys.
    ``spiked``: both crowded along one random direction, with strength 1.5.

    Raises:
        ValueError: the embedding is unknown.

    Source: Garcia et al., Appendices A.3.1 and A.5.2.
    """
    check_choice("embedding", embedding, EMBEDDINGS)
    facts = random_facts(F, d, generator=generator(*stream, 0))
    if embedding == "tied":
        return FactSet(facts.keys, facts.keys, facts.targets)
    if embedding == "spiked":
        (u,) = sphere(1, d, generator=generator(*stream, 1))
        return FactSet(spike(facts.keys, u, SPIKE), spike(facts.values, u, SPIKE), facts.targets)
    return facts


def smallest_mlp(
    facts: FactSet,
    construction: str = "data-dependent",
    *,
    stream: tuple[int, ...] = (0,),
    largest: int = 2**14,
) -> GatedMLP | None:
    """The MLP of :func:`smallest_width`, by one construction; None if the search finds none.

    Args:
        facts: what to store.
        construction: a key of :data:`CONSTRUCTIONS`.
        stream: names the random weights.
        largest: the last width that is tried.

    Raises:
        ValueError: the construction is unknown, or largest out of range.
    """
    width = construction_width(facts, construction, stream, largest)
    return None if width is None else CONSTRUCTIONS[construction][0](facts, width, stream)


def construction_width(
    facts: FactSet,
    construction: str,
    stream: tuple[int, ...],
    largest: int,
    *,
    aims: FactSet | None = None,
) -> int | None:
    """The width of :func:`smallest_width` with which a construction stores facts.

    Args:
        facts, construction, stream, largest: as in :func:`smallest_mlp`.
        aims: what the construction is given instead of the facts, of the same size.

    Raises:
        ValueError: as :func:`smallest_mlp`.
    """
    check_choice("construction", construction, CONSTRUCTIONS)
    construct, factor = CONSTRUCTIONS[construction]
    F, d = facts.keys.shape
    return smallest_width(
        lambda m: stores_all(construct(facts if aims is None else aims, m, stream), facts),
        guess=max(1, round(factor * F * np.log(F) / d)),
        largest=largest,
    )


#: Names of the entries of a point of a capacity sweep.
POINT = ("construction", "embedding", "d", "F", "seed", "largest")


def capacity(
    construction: str, embedding: str, d: int, F: int, seed: int, largest: int
) -> dict[str, int | float]:
    """Smallest width and number of weights for one random fact set; NaN if none is found.

    Args:
        construction, largest: as in :func:`smallest_mlp`.
        embedding: as in :func:`embedded_facts`.
        d: dimension of keys and values.
        F: number of facts, at least 2.
        seed: names facts and weights.

    Raises:
        ValueError: an argument is not allowed.

    Source: Garcia et al., Appendix A.3.1, with :func:`smallest_width` for the binary search.
    """
    facts = embedded_facts(embedding, d, F, seed, d, F, 0)
    width = construction_width(facts, construction, (seed, d, F, 1), largest)
    if width is None:
        return {"width": float("nan"), "parameters": float("nan")}
    return {"width": width, "parameters": 3 * d * width}
