"""The two scalar equations that predict what tail-average learning finds.

In the limit F, d -> infinity at load alpha = F / d^2, tail fraction r, ridge lambda and smoothing
beta, the learned memory has |W|_F / d -> nu; competitor scores are N(0, nu^2) and the right score
is S = c + prox_chi(nu G - c) with G standard Gaussian. (nu, chi) is the saddle of

    P(nu, chi) = lambda nu^2 / 2 - nu^2 / (2 alpha chi) + M_r(nu, chi).

Everything is computed with chi in logarithms, since it grows like exp(margin) below the critical
load, and by Gauss-Legendre quadrature on panels that end at the kinks of the integrands.

Source: Barnfield et al., Theorem 2 and Section 4.4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import expit, ndtr, ndtri

from lib.numerics import check_positive
from lib.tam.phases import Array, check_tail_fraction, gaussian_density

#: Gaussian mass beyond this many standard deviations is below 1e-23 and left out.
RANGE = 10.0

NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)

#: Ends of panels: of a standard Gaussian, and of a kink of unit width.
GAUSSIAN_PANELS = np.array([-RANGE, -7, -5, -3.5, -2, -1, 0, 1, 2, 3.5, 5, 7, RANGE])
KINK_PANELS = np.array([-35.0, -20, -12, -7, -4, -2, 0, 2, 4, 7, 12, 20, 35])


def softplus(t: Array) -> Array:
    """log(1 + exp(t)), without overflow."""
    return np.logaddexp(0, t)


def panel_rule(ends: Array) -> tuple[Array, Array]:
    """Nodes and weights of Gauss-Legendre quadrature on the panels between sorted ends."""
    half = np.diff(ends) / 2
    nodes = (ends[:-1] + half)[:, None] + half[:, None] * NODES
    return nodes.ravel(), (half[:, None] * WEIGHTS).ravel()


# --- competitors: the smoothed tail average of N(0, nu^2) ---------------------------------------


def _competitor_rule(nu: float, mu: float, beta: float) -> tuple[Array, Array]:
    """Nodes z and weights of E over Z, with panels at the kink of phi_beta(nu Z - mu)."""
    kink = (mu + KINK_PANELS / beta) / nu
    inside = kink[abs(kink) < RANGE]
    z, w = panel_rule(np.unique(np.concatenate([GAUSSIAN_PANELS, inside])))
    return z, w * gaussian_density(z)


def tail_threshold(nu: float, r: float, beta: float) -> float:
    """mu_r(nu): the root of E sigma(beta (nu Z - mu)) = r.

    Args:
        nu: > 0.
        r: in (0, 1).
        beta: > 0.

    Source: Barnfield et al., eq. 76; the minimiser in c_r.
    """

    def excess(mu: float) -> float:
        z, w = _competitor_rule(nu, mu, beta)
        return w @ expit(beta * (nu * z - mu)) - r

    # sigma(beta (nu z - mu)) > r for all |z| <= RANGE at the lower end, < r at the upper.
    odds = math.log(r / (1 - r)) / beta
    return brentq(excess, -RANGE * nu - odds, RANGE * nu - odds, xtol=1e-15 * nu, rtol=1e-14)


def smoothed_tail_average(nu: float, mu: float, r: float, beta: float) -> float:
    """c_r(nu) = mu + E phi_beta(nu Z - mu) / r at the threshold mu.

    Source: Barnfield et al., Definition 3.
    """
    z, w = _competitor_rule(nu, mu, beta)
    return mu + w @ softplus(beta * (nu * z - mu)) / (beta * r)


def threshold_density(nu: float, mu: float, beta: float) -> float:
    """E phi''_beta(nu Z - mu); times nu / r it is the derivative of c_r, by Stein's lemma."""
    z, w = _competitor_rule(nu, mu, beta)
    p = expit(beta * (nu * z - mu))
    return beta * (w @ (p * (1 - p)))


# --- right scores: the proximal law -------------------------------------------------------------


def log_prox_step(x: Array, log_chi: float) -> Array:
    """log(y - x) for y = prox_chi(x) = argmin (y - x)^2 / (2 chi) + log(1 + exp(-y)).

    The step t solves t = log chi - log(1 + exp(x + e^t)): convex and increasing, so that Newton's
    method descends to the root from any upper bound.
    """
    x = np.asarray(x, float)
    no_further = np.log(np.maximum(-x, 0) + softplus(log_chi) + 1)
    t = np.minimum(log_chi - softplus(x), no_further)
    for _ in range(100):
        step = np.exp(t)
        value = t - log_chi + softplus(x + step)
        change = value / (1 + step * expit(x + step))
        t = t - change
        if np.abs(change).max() < 1e-14 * max(1.0, np.abs(t).max()):
            break
    return t


@dataclass(frozen=True, eq=False)
class _RightScores:
    """Quadrature over G in the variable y = S - c, in which the proximal law is explicit.

    nu G = c + y - a with a = chi sigma(-y): no root has to be found at the nodes.
    """

    nu: float
    log_chi: float
    c: float

    def gaussian(self, y: Array) -> Array:
        """The G at which S - c = y."""
        return (self.c + y - np.exp(self.log_chi - softplus(y))) / self.nu

    @cached_property
    def rule(self) -> tuple[Array, Array, Array]:
        """Nodes y, the G there, and weights of the expectation."""
        ends = self.nu * GAUSSIAN_PANELS - self.c
        ends = ends + np.exp(log_prox_step(ends, self.log_chi))
        kinks = np.concatenate([KINK_PANELS, self.log_chi + KINK_PANELS])
        kinks = kinks[(ends[0] < kinks) & (kinks < ends[-1])]
        y, w = panel_rule(np.unique(np.concatenate([ends, kinks])))
        g = self.gaussian(y)
        slope = (1 + np.exp(self.log_chi - softplus(y) - softplus(-y))) / self.nu
        return y, g, w * gaussian_density(g) * slope

    def mean(self, function: Callable[[Array, Array], Array]) -> float:
        """E function(y, g)."""
        y, g, w = self.rule
        return float(w @ function(y, g))

    def step(self, y: Array) -> Array:
        """a = chi A = S - nu G, with A = sigma(-y) the slope of the loss."""
        return np.exp(self.log_chi - softplus(y))


# --- the saddle ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Law:
    """A random variable that increases with a standard Gaussian G, as a distribution.

    Attributes:
        forward: its value at G.
        inverse: the G of a value.
        mean: its expectation.
    """

    forward: Callable[[Array], Array]
    inverse: Callable[[Array], Array]
    mean: float

    def cdf(self, x: Array) -> Array:
        """P(X <= x)."""
        return ndtr(self.inverse(np.asarray(x, float)))

    def ppf(self, p: Array) -> Array:
        """The quantile at p in (0, 1)."""
        return self.forward(ndtri(np.asarray(p, float)))

    def distance(self, samples: Float[np.ndarray, " n"]) -> float:
        """Wasserstein-1 distance of the samples' distribution from this one.

        The quantile function is averaged over each sample's share of probability by its value
        in the middle.
        """
        n = len(samples)
        return float(np.abs(np.sort(samples) - self.ppf((np.arange(n) + 0.5) / n)).mean())


@dataclass(frozen=True, eq=False)
class Saddle:
    """The saddle (nu, chi) of the potential, and the laws it predicts.

    Attributes:
        alpha, r, ridge, beta: where.
        nu: limit of |W|_F / d, and the standard deviation of competitor scores.
        log_chi: logarithm of chi, the response of a right score to its own loss.
        mu: threshold of the smoothed tail average.
        c: its value, the level that right scores must beat.
    """

    alpha: float
    r: float
    ridge: float
    beta: float
    nu: float
    log_chi: float
    mu: float
    c: float

    @cached_property
    def _right(self) -> _RightScores:
        return _RightScores(self.nu, self.log_chi, self.c)

    @property
    def loss(self) -> float:
        """Limit of the average loss, without the ridge."""
        return self._right.mean(lambda y, g: softplus(-y))

    def competitor_scores(self) -> Law:
        """N(0, nu^2)."""
        return Law(lambda g: self.nu * g, lambda s: s / self.nu, 0.0)

    def margins(self) -> Law:
        """The law of S - c, right scores above the tail average."""
        right = self._right

        def forward(g: Array) -> Array:
            x = self.nu * np.asarray(g, float) - self.c
            return x + np.exp(log_prox_step(x, self.log_chi))

        return Law(forward, right.gaussian, right.mean(lambda y, g: y))

    def right_scores(self) -> Law:
        """The law of S."""
        margins = self.margins()
        return Law(
            lambda g: self.c + margins.forward(g),
            lambda s: margins.inverse(s - self.c),
            self.c + margins.mean,
        )

    def percentiles(self) -> Law:
        """The law of Phi(S / nu), the share of competitors that a right score beats."""
        scores = self.right_scores()
        return Law(
            lambda g: ndtr(scores.forward(g) / self.nu),
            lambda p: scores.inverse(self.nu * ndtri(p)),
            self._right.mean(lambda y, g: ndtr((self.c + y) / self.nu)),
        )

    def residuals(self) -> tuple[float, float]:
        """Relative residuals of the two stationarity equations, as printed in the source.

        nu^2 (lambda + E[A] E phi'' / r) = E[A S], and
        1 = alpha lambda chi + alpha E[chi B / (1 + chi B)] + alpha chi E[A] E phi'' / r,
        with B = A (1 - A). They follow from the saddle by partial integration, and are computed
        here without it.

        Source: Barnfield et al., Section 4.4.3.
        """
        right, chi_ridge = self._right, self.ridge * math.exp(self.log_chi)
        bend = threshold_density(self.nu, self.mu, self.beta) / self.r
        step = right.mean(lambda y, g: right.step(y))
        pull = right.mean(lambda y, g: right.step(y) * (self.c + y))
        first = self.nu**2 * (chi_ridge + step * bend) / pull - 1

        def stiffness(y: Array, g: Array) -> Array:
            chi_b = np.exp(self.log_chi - softplus(y) - softplus(-y))
            return chi_b / (1 + chi_b)

        second = self.alpha * (chi_ridge + right.mean(stiffness) + step * bend) - 1
        return first, second


def saddle(alpha: float, r: float, *, ridge: float, beta: float) -> Saddle:
    """Solve the two scalar equations.

    For each nu, chi solves E[(chi A)^2] = nu^2 / alpha, increasing in chi; nu is the root of the
    derivative of the potential, increasing because the reduced potential is strongly convex.

    Args:
        alpha: load F / d^2, > 0.
        r: tail fraction, in (0, 1).
        ridge: lambda > 0.
        beta: smoothing > 0.

    Raises:
        ValueError: an argument is out of its range.

    Source: Barnfield et al., Definition 3 and Proposition 10.
    """
    check_positive(alpha=alpha, ridge=ridge, beta=beta)
    check_tail_fraction(r)
    if r == 1:
        raise ValueError("r must be in (0, 1); at 1 the smoothed tail average has no threshold")

    def at(log_nu: float) -> tuple[Saddle, float]:
        """The point (nu, chi), and chi / nu times the derivative of the potential in nu."""
        nu = math.exp(log_nu)
        mu = tail_threshold(nu, r, beta)
        c = smoothed_tail_average(nu, mu, r, beta)
        log_chi = _response(nu, c, alpha)
        right = _RightScores(nu, log_chi, c)
        y, g, w = right.rule
        weighted = w * right.step(y)
        slope = nu / r * threshold_density(nu, mu, beta)
        # with this factor it is of order one on both sides of the critical load
        others = (weighted.sum() * slope - weighted @ g) / nu - 1 / alpha
        derivative = others + math.exp(min(math.log(ridge) + log_chi, 700.0))
        return Saddle(alpha, r, ridge, beta, nu, log_chi, mu, c), derivative

    # lambda nu^2 / 2 is at most the loss of the zero memory, log(1 + exp(c_r(0))).
    level = (math.log(1 / r - 1) - math.log1p(-r) / r) / beta
    high = 0.5 * math.log(2 * float(softplus(level)) / ridge)
    low = high
    while at(low)[1] > 0:
        low -= 2.0
    root = brentq(lambda log_nu: at(log_nu)[1], low, low + 2.0, xtol=1e-13, rtol=1e-14)
    return at(root)[0]


def _response(nu: float, c: float, alpha: float) -> float:
    """log chi with E[(chi A)^2] = nu^2 / alpha."""
    target = 2 * math.log(nu) - math.log(alpha)

    def excess(log_chi: float) -> float:
        right = _RightScores(nu, log_chi, c)
        return math.log(right.mean(lambda y, g: right.step(y) ** 2)) - target

    low = target / 2 - 1e-9  # A <= 1, up to rounding
    width = 1.0
    while excess(low + width) < 0:
        low, width = low + width, 2 * width
    return brentq(excess, low, low + width, xtol=1e-13, rtol=1e-14)
