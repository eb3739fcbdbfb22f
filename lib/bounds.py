"""Margin bounds and their fits."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar, nnls

#: Failure probability at which bounds are drawn, as in the source's own fits.
DELTA = 0.5


def log_factor(F: Float[np.ndarray, " n"], *, log_constant: float = 1.0, delta: float = DELTA):
    """L = log(C_0 F^2 / delta), the union bound over all pairs of facts (Garcia et al., Theorem B.30)."""
    return np.log(log_constant * np.asarray(F, float) ** 2 / delta)


def crosstalk_scale(
    F: Float[np.ndarray, " n"],
    m: Float[np.ndarray, " n"],
    d: float,
    *,
    log_constant: float = 1.0,
    delta: float = DELTA,
) -> Float[np.ndarray, " n"]:
    """x = sqrt(F L / (m d)), the cross-talk of isotropic facts up to a constant.

    Source: Garcia et al., Theorem B.30 and Corollary B.31.
    """
    return np.sqrt(np.asarray(F) * log_factor(F, log_constant=log_constant, delta=delta) / (np.asarray(m) * d))


def isotropic_assumptions(F: int, m: int, d: int, *, delta: float = DELTA) -> dict[str, bool]:
    """Which hypotheses of Theorem B.30 a setting satisfies, with C_0 = 1."""
    L = float(log_factor(np.array(F), delta=delta))
    return {"F >= 2 L": 2 * L <= F, "m >= L^3": m >= L**3, "m <= d^2 / L": m <= d**2 / L}


@dataclass(frozen=True)
class MarginFit:
    """A fitted law gamma = C_sig - C_x sqrt(F L / (m d)), L = log(C_log F^2 / delta).

    Attributes:
        signal: C_sig.
        crosstalk: C_x >= 0.
        log_constant: C_log.
        r_squared: of the fitted data, in sample.
    """

    signal: float
    crosstalk: float
    log_constant: float
    r_squared: float

    def predict(
        self, F: Float[np.ndarray, " n"], m: Float[np.ndarray, " n"], d: float
    ) -> Float[np.ndarray, " n"]:
        """The fitted margin."""
        x = crosstalk_scale(F, m, d, log_constant=self.log_constant)
        return self.signal - self.crosstalk * x


def fit_isotropic_margin(
    F: Float[np.ndarray, " n"],
    m: Float[np.ndarray, " n"],
    d: float,
    margins: Float[np.ndarray, " n"],
    *,
    free_signal: bool = True,
    free_log: bool = True,
) -> MarginFit:
    """Least-squares fit of the isotropic margin law, its constants kept >= 0.

    C_x is always free. C_sig is free, or 1 as Theorem B.30 has it; C_log is free, or 1.

    Raises:
        ValueError: there are fewer points than free constants, or a margin is not finite.

    Source: Garcia et al., eq. 56, Corollary B.31 and Fig. 2b.
    """
    F, m, margins = (np.asarray(a, float) for a in (F, m, margins))
    if len(margins) < 1 + free_signal + free_log:
        raise ValueError(f"a fit of {1 + free_signal + free_log} constants needs as many points; got {len(margins)}")
    if not np.isfinite(margins).all():
        raise ValueError("margins must be finite")

    def fit(log_constant: float) -> MarginFit:
        x = crosstalk_scale(F, m, d, log_constant=log_constant)
        if free_signal:
            (signal, crosstalk), _ = nnls(np.column_stack([np.ones_like(x), -x]), margins)
        else:
            signal, crosstalk = 1.0, max(0.0, x @ (1 - margins) / (x @ x))
        return MarginFit(signal, crosstalk, log_constant, r_squared(margins, signal - crosstalk * x))

    if not free_log:
        return fit(1.0)
    # L must stay positive at the smallest F; e^20 is indistinguishable from no dependence on F.
    lowest = math.log(DELTA / F.min() ** 2) + 0.01
    best = minimize_scalar(
        lambda log_c: -fit(math.exp(log_c)).r_squared, bounds=(lowest, 20.0), method="bounded"
    )
    return fit(math.exp(best.x))


def r_squared(observed: Float[np.ndarray, " n"], predicted: Float[np.ndarray, " n"]) -> float:
    """1 - SS_res / SS_tot.

    Raises:
        ValueError: the observations are all equal.
    """
    total = ((observed - observed.mean()) ** 2).sum()
    if total == 0:
        raise ValueError("observed must vary; all values are equal")
    return float(1 - ((observed - predicted) ** 2).sum() / total)
