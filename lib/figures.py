"""The look of every figure: one style, one colour and marker per method."""

from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter


@dataclass(frozen=True)
class Method:
    """How a way of storing facts is drawn, throughout the book."""

    label: str
    color: str
    marker: str


# Colours: five of Okabe and Ito's palette and others between them, each with a contrast of 3 or
# more against white (WCAG 1.4.11) and told apart, where they share a figure, with any common colour
# vision, if not by its marker.
HEBBIAN = Method("Hebbian, sketched $K_2$", "#0072B2", "o")
DIAGONAL = Method("Hebbian, diagonally whitened", "#4895EF", "v")
WHITENED = Method("Hebbian, whitened", "#009E73", "s")
EXACT_K2 = Method("Hebbian, exact $K_2$", "#730B00", "D")
DATA_DEPENDENT = Method("Hebbian, data-dependent", "#CC79A7", "P")
NTK = Method("NTK", "#8C6D31", "X")
ENCODER_DECODER = Method("exact encoder, random decoder", "#6A3D9A", ">")
TRAINED = Method("gradient descent", "#000000", "*")

# Ways of editing facts, in colours that also differ from those above.
SWAPPING = Method("MLP swapping", "#4B0092", "^")
ROME = Method("ROME", "#B2182B", "p")
MEMIT = Method("MEMIT", "#2E86C1", "d")
ALPHA_EDIT = Method("AlphaEdit", "#C77C11", "<")

THEORY = "#333333"
BAD = "#D55E00"

#: For series that are no methods; the least CIEDE2000 difference with any colour vision is 10.
COLORS = ("#0072B2", "#730B00", "#009E73", "#CC79A7", "#4895EF")

STYLE = {
    "figure.figsize": (6.4, 4.0),
    "figure.dpi": 144,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "savefig.dpi": 144,
    "savefig.facecolor": "white",
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 10.5,
}


def use_style() -> None:
    """Apply the book's style to matplotlib."""
    mpl.rcParams.update(STYLE)


def points(
    ax: Axes,
    x: Float[np.ndarray, " n"],
    samples: Float[np.ndarray, "n seeds"],
    method: Method,
    **kwargs,
) -> None:
    """Draw the mean over seeds as points, and from the smallest to the largest as a bar.

    Raises:
        ValueError: a value is NaN or infinite.
    """
    x, samples = _finite(x), _finite(samples)
    mean = samples.mean(1)
    ax.errorbar(
        x,
        mean,
        yerr=[mean - samples.min(1), samples.max(1) - mean],
        **{"label": method.label, "color": method.color, "fmt": method.marker, "elinewidth": 1}
        | kwargs,
    )


def line(
    ax: Axes, x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], label: str, **kwargs
) -> list[Line2D]:
    """Draw theory as a line.

    Raises:
        ValueError: a value is NaN or infinite.
    """
    return ax.plot(_finite(x), _finite(y), label=label, **{"color": THEORY} | kwargs)


def doubling_axis(ax: Axes, label: str) -> None:
    """Make the x axis logarithmic, labelled at powers of two without exponents."""
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(LogLocator(base=2, numticks=8))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(label)


def _finite(values) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    if not np.isfinite(values).all():
        raise ValueError(f"plotted values must be finite; {(~np.isfinite(values)).sum()} are not")
    return values
