"""Bounds: how many parameters facts cost, and how large the margins of a Hebbian MLP are."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar, nnls

#: Failure probability at which margin bounds are drawn.
DELTA = 0.5

#: One number, or one for each point of a sweep.
Numbers = int | float | Float[np.ndarray, " n"]

#: Largest log C_log tried in a fit: beyond it, the logarithm no longer varies with F.
LARGEST_LOG_CONSTANT = 20.0


def bits_to_store(F: int, N: int) -> float:
    """F log2 N, the bits that tell apart all N^F maps from F keys to N values.

    A model of W parameters of b bits realises at most 2^(b W) maps, so storing any of them takes
    W >= F log2(N) / b.

    Raises:
        ValueError: F or N is below 1.

    Source: Garcia et al., Theorem 2.4 and Appendix B.1.
    """
    if F < 1 or N < 1:
        raise ValueError(f"F and N must be at least 1; got F = {F}, N = {N}")
    return F * math.log2(N)


def log_factor(F: Numbers, *, log_constant: float = 1.0, delta: float = DELTA) -> Numbers:
    """L = log(C_0 F^2 / delta), the price of a union bound over all pairs of facts.

    Source: Garcia et al., Theorem B.30.
    """
    if not 0 < delta < 1 or not np.all(log_constant * F**2 > delta):
        raise ValueError(f"delta must be in (0, 1) and below C_0 F^2; got {delta}")
    return np.log(log_constant * F**2 / delta)


def sketch_variance(m: float, rho: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Variance of the sketched kernel of two unit vectors at inner product rho.

    (1 + 4 rho^2 + 3 rho^4) / m; m may be infinite (the exact kernel).

    Source: Garcia et al., Lemma B.44.
    """
    return (1 + 4 * rho**2 + 3 * rho**4) / m


def kernel_variance(m: Numbers, d: int) -> Numbers:
    """sigma^2, variance of an off-diagonal kernel entry about its mean 1/d over isotropic keys.

    The variance of the sketch, averaged over rho, plus Var(rho^2) = 2 (d - 1) / (d^2 (d + 2)).

    Source: Garcia et al., Lemma B.44, with the constants that its Theta hides.
    """
    mean_rho4 = 3 / (d * (d + 2))
    return (1 + 4 / d + 3 * mean_rho4) / m + mean_rho4 - 1 / d**2


def isotropic_margin_terms(
    F: Float[np.ndarray, " n"], m: Float[np.ndarray, " n"], d: int
) -> dict[str, Float[np.ndarray, " n"]]:
    """What the bound for isotropic facts subtracts from 1, term by term, every constant set to 1.

    With L = log(F^2 / delta) and sigma^2 the variance of an off-diagonal kernel entry:

    - ``diagonal``: sqrt(L / m), the sketch's error on K(k_i, k_i);
    - ``values``: sqrt(L / (d - 1)), the largest inner product of two values;
    - ``mean``: sqrt(F L / d^3), cross-talk from the kernel's mean 1/d;
    - ``residual``: sigma sqrt(F L / d), cross-talk from the kernel's fluctuations; about
      sqrt(F L / (m d)) while m < d^2.

    Args:
        F: number of facts, at least 2.
        m: hidden width; infinite for the exact kernel.
        d: embedding dimension, at least 2.

    Source: Garcia et al., eq. 56, with the residual as in Theorem B.20 before sigma is simplified.
    """
    if d < 2 or not (F >= 2).all() or not (m > 0).all():
        raise ValueError(
            f"d and F must be at least 2 and m positive; got d = {d}, F = {F}, m = {m}"
        )
    L = log_factor(F)
    return {
        "diagonal": np.sqrt(L / m),
        "values": np.sqrt(L / (d - 1)),
        "mean": np.sqrt(F * L / d**3),
        "residual": np.sqrt(kernel_variance(m, d) * F * L / d),
    }


def isotropic_assumptions(F: int, m: int, d: int) -> dict[str, bool]:
    """Which hypotheses of the isotropic margin theorem hold, with C_0 = 1.

    Source: Garcia et al., Theorem B.30.
    """
    L = float(log_factor(F))
    return {"F ≥ 2L": 2 * L <= F} | sketch_assumptions(L, m, d)


def sketch_assumptions(L: float, m: int, d: int) -> dict[str, bool]:
    """Which hypotheses on the width hold, of the theorems for isotropic keys.

    Source: Garcia et al., Theorems B.29 and B.30.
    """
    return {"m ≥ L³": m >= L**3, "m ≤ d²/L": m * L <= d**2}


@dataclass(frozen=True, eq=False)
class MarginFit:
    """A fitted law gamma = C_sig - C_x sqrt(F L / (m d)), L = log(C_log F^2 / delta).

    Attributes:
        signal: C_sig >= 0.
        crosstalk: C_x >= 0.
        log_constant: C_log > 0.
        predicted: the law at the fitted points.
        r_squared: 1 - SS_res / SS_tot at the fitted points.
    """

    signal: float
    crosstalk: float
    log_constant: float
    predicted: Float[np.ndarray, " n"]
    r_squared: float


def fit_crosstalk_law(
    F: Float[np.ndarray, " n"],
    m: Float[np.ndarray, " n"],
    d: int,
    margins: Float[np.ndarray, " n"],
    *,
    free_signal: bool = True,
    free_log: bool = True,
) -> MarginFit:
    """Least-squares fit of the simplified isotropic law, constants kept nonnegative.

    C_x is always free; C_sig and C_log are free, or 1.

    Raises:
        ValueError: there are fewer points than free constants, or all margins are equal.

    Source: Garcia et al., Corollary B.31. Figure 2b does not say which constants are fitted; the
    authors' released code frees these three.
    """
    constants = 1 + free_signal + free_log
    if len(margins) < constants:
        raise ValueError(f"fitting {constants} constants takes as many points; got {len(margins)}")

    def fit(log_constant: float) -> MarginFit:
        x = np.sqrt(F * log_factor(F, log_constant=log_constant) / (m * d))
        if free_signal:
            (signal, crosstalk), _ = nnls(np.column_stack([np.ones_like(x), -x]), margins)
        else:
            signal, crosstalk = 1.0, _slope(x, 1 - margins)
        predicted = signal - crosstalk * x
        return MarginFit(
            float(signal),
            float(crosstalk),
            log_constant,
            predicted,
            r_squared(margins, predicted),
        )

    if not free_log:
        return fit(1.0)
    lowest = math.log(DELTA / F.min() ** 2) + 0.01  # L stays positive at the smallest F
    best = minimize_scalar(
        lambda log_constant: -fit(math.exp(log_constant)).r_squared,
        bounds=(lowest, LARGEST_LOG_CONSTANT),
        method="bounded",
    )
    return fit(math.exp(best.x))


def fit_one_constant(
    terms: dict[str, Float[np.ndarray, " n"]], margins: Float[np.ndarray, " n"]
) -> tuple[float, float]:
    """Least-squares C >= 0 of gamma = 1 - C (sum of the terms), and its R^2.

    Raises:
        ValueError: all margins are equal, or not finite.
    """
    x = sum(terms.values())
    C = _slope(x, 1 - margins)
    return C, r_squared(margins, 1 - C * x)


def r_squared(observed: Float[np.ndarray, " n"], predicted: Float[np.ndarray, " n"]) -> float:
    """1 - SS_res / SS_tot; negative where the mean would predict better.

    Raises:
        ValueError: the observations are all equal, or a number is not finite.
    """
    if not (np.isfinite(observed).all() and np.isfinite(predicted).all()):
        raise ValueError("observed and predicted must be finite")
    if np.ptp(observed) == 0:
        raise ValueError("observed must vary; all values are equal")
    total = ((observed - observed.mean()) ** 2).sum()
    return float(1 - ((observed - predicted) ** 2).sum() / total)


def _slope(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float:
    if not (np.isfinite(x).all() and np.isfinite(y).all() and x.any()):
        raise ValueError("terms and margins must be finite, and the terms not all zero")
    return float(max(0.0, x @ y / (x @ x)))
