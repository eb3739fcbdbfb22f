"""The ladder of margin bounds: from isotropic facts to any geometry, and the limit of rank.

Each bound is a sum of named terms, positive for the signal and negative for what may be lost.
Constants that the theorems leave open are 1 here, C_0 included; the terms are what they multiply.

Source: Garcia et al., Appendix B.8 and Table 2.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls
from torch import Tensor

from lib.bounds import Numbers, kernel_variance, log_factor, r_squared, sketch_assumptions
from lib.facts import check_embeddings
from lib.geometry import Geometry, Spread
from lib.numerics import check_count


@dataclass(frozen=True)
class Bound:
    """A lower bound on the smallest margin.

    Attributes:
        terms: what is added up.
        assumptions: the theorem's hypotheses that can be checked, and whether they hold.
        deterministic: whether it holds always, or only with probability 1 - delta and with
            constants that are not known.
    """

    terms: Mapping[str, float]
    assumptions: Mapping[str, bool]
    deterministic: bool

    @property
    def value(self) -> float:
        """The sum of the terms."""
        return math.fsum(self.terms.values())


def general_bound(g: Geometry) -> Bound:
    """K_min^diag V_min - sqrt(E_K E_v) kappa.

    Source: Garcia et al., Theorem B.25, eq. 44.
    """
    return Bound(
        {
            "signal": g.diagonal * g.separation,
            "cross-talk": -math.sqrt(g.column_energy * g.value_energy) * g.coupling,
        },
        _positivity(g),
        True,
    )


def absorbed_bound(g: Geometry) -> Bound:
    """K_min^diag V_min - K_max^off V_max - sqrt(E_K E_v) kappa, truncated.

    The competitor's own vote counts as signal.

    Source: Garcia et al., Theorem B.25, eq. 43.
    """
    energies = g.column_energy_truncated * g.value_energy_truncated
    return Bound(
        {
            "signal": g.diagonal * g.separation,
            "competitor": -g.off_diagonal * g.interaction,
            "cross-talk": -math.sqrt(energies) * g.coupling_truncated,
        },
        _positivity(g),
        True,
    )


def arbitrary_keys_bound(g: Geometry, d: int) -> Bound:
    """K_min^diag (1 - eps_v) - K_max^off - sqrt(E_K L / (d - 1)) sqrt(1 + L / (F - 2)).

    For isotropic values in dimension d, eps_v = sqrt(L / (d - 1)).

    Raises:
        ValueError: d is below 2.

    Source: Garcia et al., Theorem B.28, eq. 45.
    """
    check_count(2, d=d)
    L = float(log_factor(g.facts))
    loss = math.sqrt(g.column_energy * L / (d - 1) * (1 + L / (g.facts - 2)))
    return Bound(
        {
            "signal": g.diagonal,
            "values": -g.diagonal * math.sqrt(L / (d - 1)),
            "competitor": -g.off_diagonal,
            "cross-talk": -loss,
        },
        {},
        False,
    )


def arbitrary_values_bound(g: Geometry, spread: Spread, m: int, d: int) -> Bound:
    """(1 - sqrt(L / m)) V_min - (B_Y + sqrt(E_v L_v)) sigma sqrt(L).

    For isotropic keys in dimension d and the bilinear kernel of m features, sigma the standard
    deviation of its off-diagonal entries.

    Raises:
        ValueError: d is below 2, or m below 1.

    Source: Garcia et al., Theorem B.29, eq. 51.
    """
    check_count(2, d=d)
    check_count(m=m)
    L = float(log_factor(g.facts))
    scale = math.sqrt(kernel_variance(m, d) * L)
    return Bound(
        {
            "signal": g.separation,
            "diagonal": -math.sqrt(L / m) * g.separation,
            "mean": -g.mean_alignment * scale,
            "residual": -math.sqrt(g.value_energy * spread.value) * scale,
        },
        _positivity(g) | {"F - 2 ≥ L": g.facts - 2 >= L} | sketch_assumptions(L, m, d),
        False,
    )


@dataclass(frozen=True, eq=False)
class TermFit:
    """Margins as a combination of a bound's terms.

    Attributes:
        constants: of each term, >= 0.
        predicted: the combination at the fitted points.
        r_squared: 1 - SS_res / SS_tot at the fitted points.
    """

    constants: dict[str, float]
    predicted: Float[np.ndarray, " n"]
    r_squared: float


def fit_terms(
    terms: Mapping[str, Float[np.ndarray, " n"]], margins: Float[np.ndarray, " n"]
) -> TermFit:
    """Least-squares fit of margins = sum_k C_k term_k with C_k >= 0.

    A regression and not a bound: half of the margins lie below it.

    Args:
        terms: of a bound at n points, with their signs.
        margins: measured at the same points.

    Raises:
        ValueError: there are fewer points than terms, all margins are equal, or a number is not
            finite.
    """
    columns = np.column_stack(list(terms.values()))
    if len(margins) < columns.shape[1]:
        raise ValueError(
            f"fitting {columns.shape[1]} constants takes as many points; got {len(margins)}"
        )
    if not np.isfinite(columns).all():
        raise ValueError("terms must be finite")
    constants, _ = nnls(columns, margins)
    predicted = columns @ constants
    named = dict(zip(terms, constants.tolist(), strict=True))
    return TermFit(named, predicted, r_squared(margins, predicted))


# --- what rank costs ----------------------------------------------------------------------------


def column_energies(gram: Float[Tensor, "F F"]) -> Float[Tensor, " F"]:
    """E_col(i) = sum_{t != i} K_ti^2 of every column.

    Source: Garcia et al., Appendix B.8.6.
    """
    check_embeddings("gram", gram)
    return gram.square().sum(0) - gram.diagonal() ** 2


def welch_floor(diagonal: Float[Tensor, " F"], m: int) -> float:
    """(tr(K)^2 / m - sum_i K_ii^2) / F: no kernel of rank m has less column energy in the mean.

    The eigenvalues of a positive semidefinite kernel of rank m sum to its trace, and their squares
    are smallest if they are equal.

    Args:
        diagonal: K_ii >= 0.
        m: rank, at least 1.

    Raises:
        ValueError: m is below 1, or an entry is negative or not finite.

    Source: Garcia et al., Lemma B.34.
    """
    check_count(m=m)
    if not (diagonal >= 0).all() or not diagonal.isfinite().all():
        raise ValueError("diagonal must be finite and not negative")
    return ((diagonal.sum() ** 2 / m - diagonal.square().sum()) / len(diagonal)).item()


def lost_margin_floor(F: int, m: Numbers, d: int) -> Numbers:
    """sqrt((F / m - 1) log F / d), 0 for m >= F: the order of margin that rank m costs.

    A lower bound on 1 - gamma_min up to a constant, for any kernel of rank m with unit diagonal
    that is independent of isotropic values.

    Args:
        F: number of facts, at least 2.
        m: rank, positive.
        d: dimension of the values, at least 1.

    Raises:
        ValueError: an argument is out of range.

    Source: Garcia et al., Corollary B.35, its constant set to 1.
    """
    if F < 2 or d < 1 or not np.all(np.asarray(m) > 0):
        raise ValueError(
            f"F must be at least 2, d at least 1 and m positive; got F = {F}, d = {d}, m = {m}"
        )
    return np.sqrt(np.maximum(F / m - 1, 0) * math.log(F) / d)


def _positivity(g: Geometry) -> dict[str, bool]:
    return {"V_min ≥ 0": g.positive}
