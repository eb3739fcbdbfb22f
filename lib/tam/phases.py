"""The ridgeless limit of tail-average learning: critical load, and profiles on both sides.

Below the critical load (SAT) the loss goes to zero and the norm to infinity as the ridge vanishes;
above it (UNSAT) both stay finite.

Source: Barnfield et al., Section 5.
"""

import math

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from lib.numerics import check_positive

Array = float | np.floating | Float[np.ndarray, "..."]


def gaussian_density(x: Array) -> Array:
    """The standard Gaussian density."""
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def gaussian_tail_average(r: float) -> float:
    """kappa_r = phi(Phi^{-1}(1 - r)) / r, the mean of the top fraction r of a standard Gaussian.

    Args:
        r: in (0, 1]; at 1 it is the mean, zero.

    Raises:
        ValueError: r is out of range.
    """
    check_tail_fraction(r)
    return 0.0 if r == 1 else float(gaussian_density(ndtri(r))) / r


def squared_excess(t: float) -> float:
    """h(t) = E[(t - G)_+^2] = (1 + t^2) Phi(t) + t phi(t), increasing, for finite t."""
    return (1 + t * t) * float(ndtr(t)) + t * float(gaussian_density(t))


def critical_load(r: float) -> float:
    """alpha_c(r) = 1 / h(kappa_r): the load F / d^2 up to which every tail average can be beaten.

    Between 0, for short lists, and 2, where the list is everything. Independent of the smoothing.

    Raises:
        ValueError: r is out of (0, 1].
    """
    return 1 / squared_excess(gaussian_tail_average(r))


def satisfied_edge(alpha: float) -> float:
    """rho_alpha, the root of h(rho) = 1 / alpha.

    In the SAT phase the right scores over the norm are distributed as max(G, rho_alpha), margins
    as max(G, rho_alpha) - kappa_r and percentiles as Phi(max(G, rho_alpha)): an atom of mass
    Phi(rho_alpha) at Phi(rho_alpha), uniform above. It exceeds kappa_r exactly below the
    critical load.

    Raises:
        ValueError: alpha is not positive and finite.
    """
    check_positive(alpha=alpha)
    low = -1.0
    while squared_excess(low) > 1 / alpha:
        low *= 2
    return brentq(
        lambda t: squared_excess(t) - 1 / alpha, low, 1 + math.sqrt(1 / alpha), xtol=1e-14
    )


def short_list_load(r: float) -> float:
    """1 / (2 log(1/r)), to which the critical load tends for short lists.

    At r = 1/n it is the top-1 threshold, d^2 = 2 n log n.

    Raises:
        ValueError: r is not in (0, 1).
    """
    if not 0 < r < 1:
        raise ValueError(f"r must be in (0, 1); got {r}")
    return 1 / (2 * math.log(1 / r))


def list_number(d: int, k: int | float) -> float:
    """The F with F = d^2 alpha_c(k / (F - 1)): facts for which lists of k can be guaranteed.

    An extrapolation: the theory holds for lists of a constant share.

    Raises:
        ValueError: d or k is below 1.
    """
    if d < 1 or k < 1:
        raise ValueError(f"d and k must be at least 1; got {d} and {k}")

    def excess(F: float) -> float:
        return F - d * d * critical_load(min(1.0, k / (F - 1)))

    return brentq(excess, k + 1, 2 * d * d + k + 2)


def check_tail_fraction(r: float) -> None:
    """Raise ValueError unless 0 < r <= 1."""
    if not 0 < r <= 1:
        raise ValueError(f"r must be in (0, 1]; got {r}")
