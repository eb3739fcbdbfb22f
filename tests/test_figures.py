import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from lib import figures

X = np.array([1.0, 2.0, 4.0])


@pytest.fixture
def ax():
    with mpl.rc_context():
        mpl.use("Agg")
        figures.use_style()
        fig, ax = plt.subplots()
        yield ax
        plt.close(fig)


def test_points_are_means_with_bars_over_the_whole_spread(ax):
    samples = np.array([[1.0, 3.0], [2.0, 2.0], [0.0, 8.0]])
    figures.points(ax, X, samples, figures.HEBBIAN)
    (container,) = ax.containers
    line, _, (bars,) = container
    np.testing.assert_allclose(line.get_ydata(), [2, 2, 4])
    np.testing.assert_allclose([s[:, 1] for s in bars.get_segments()], [[1, 3], [2, 2], [0, 8]])
    assert container.get_label() == figures.HEBBIAN.label


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_that_is_not_finite_is_drawn(ax, bad):
    with pytest.raises(ValueError, match="plotted values must be finite; 1 are not"):
        figures.line(ax, X, np.array([1.0, bad, 2.0]), "theory")
    with pytest.raises(ValueError, match="plotted values must be finite; 2 are not"):
        figures.points(ax, X, np.array([[1, bad], [1, bad], [1, 1]]), figures.HEBBIAN)
    with pytest.raises(ValueError, match="plotted values must be finite; 1 are not"):
        figures.points(ax, np.array([1, 2, bad]), np.ones((3, 2)), figures.HEBBIAN)
    assert not ax.lines


def test_methods_are_told_apart_by_colour_and_by_marker():
    methods = [m for m in vars(figures).values() if isinstance(m, figures.Method)]
    assert len({m.color for m in methods}) == len({m.marker for m in methods}) == len(methods)


def luminance(color):
    """Relative luminance, WCAG 2.2."""
    srgb = np.array(mpl.colors.to_rgb(color))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def test_every_colour_stands_out_from_white_as_graphics_must():
    methods = [m.color for m in vars(figures).values() if isinstance(m, figures.Method)]
    for color in (*methods, *figures.COLORS, figures.THEORY, figures.BAD):
        assert 1.05 / (luminance(color) + 0.05) >= 3, color


def test_counts_are_labelled_as_whole_numbers(ax):
    ax.plot([32, 1024], [0, 1])
    figures.doubling_axis(ax, "width")
    ax.figure.canvas.draw()
    labels = {t.get_text() for t in ax.get_xticklabels()}
    assert {"64", "512"} <= labels or {"32", "128"} <= labels
