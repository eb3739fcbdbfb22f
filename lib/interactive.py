"""Curves that a reader moves with a slider, in the built book and without a network."""

import html
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 20, 60

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")

PAGE = """<div class="slider-figure" id="{name}">
<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}"
 style="width:100%;max-width:{WIDTH}px" font-size="16" fill="currentColor">
{axes}
{lines}
</svg>
<label style="display:block">{control}<br><input type="range" min="0" max="{last}" value="{start}"
 style="width:100%;max-width:{WIDTH}px"></label>
<output aria-live="polite">{caption}</output>
<script>
(() => {{
  const figure = document.getElementById("{name}");
  const data = {data};
  const control = figure.querySelector("input");
  const draw = () => {{
    const step = Number(control.value);
    figure.querySelectorAll("polyline").forEach((line, i) =>
      line.setAttribute("points", data.y[i][step].map((y, j) => data.x[j] + "," + y).join(" ")));
    figure.querySelector("output").textContent = data.captions[step];
  }};
  control.addEventListener("input", draw);
  draw();
}})();
</script>
</div>"""


@dataclass(frozen=True)
class Page:
    """A piece of HTML as a cell's output."""

    content: str

    def _repr_html_(self) -> str:
        return self.content

    def __repr__(self) -> str:
        return f"{len(self.content)} characters of HTML"


def slider(
    x: Float[np.ndarray, " n"],
    curves: Mapping[str, Sequence[Float[np.ndarray, " n"]]],
    captions: Sequence[str],
    *,
    control: str,
    xlabel: str,
    ylabel: str,
) -> Page:
    """Curves over [0, 1] x [0, 1], one version for each position of a slider.

    Args:
        x: abscissae in [0, 1].
        curves: for each name the ordinates in [0, 1] at every position.
        captions: what to say at each position.
        control: what the slider changes.
        xlabel, ylabel: names of the axes.

    Raises:
        ValueError: a number is not in [0, 1], or a curve has another number of positions than
            there are captions.
    """
    table = {name: np.asarray(versions, float) for name, versions in curves.items()}
    for name, values in {"x": np.asarray(x)[None], **table}.items():
        if not ((values >= 0) & (values <= 1)).all():  # NaN compares false
            raise ValueError(f"{name} must be in [0, 1] everywhere")
        if name != "x" and len(values) != len(captions):
            raise ValueError(f"{name} must have {len(captions)} versions; got {len(values)}")
    across = np.round(LEFT + np.asarray(x) * (WIDTH - LEFT - RIGHT), 1).tolist()
    down = [
        np.round(HEIGHT - BOTTOM - values * (HEIGHT - TOP - BOTTOM), 1).tolist()
        for values in table.values()
    ]
    start = len(captions) // 2
    data = json.dumps({"x": across, "y": down, "captions": list(captions)}).replace("</", "<\\/")
    text = {
        "title": html.escape(f"{ylabel} against {xlabel}: {', '.join(table)}"),
        "control": html.escape(control),
        "caption": html.escape(captions[start]),
    }
    return Page(
        PAGE.format(
            name=f"slider-{zlib.crc32(data.encode()):08x}",
            axes=_axes(html.escape(xlabel), html.escape(ylabel)),
            lines="\n".join(
                _line(html.escape(name), i, across, values[start])
                for i, (name, values) in enumerate(zip(table, down, strict=True))
            ),
            last=len(captions) - 1,
            start=start,
            data=data,
            WIDTH=WIDTH,
            HEIGHT=HEIGHT,
            **text,
        )
    )


def _axes(xlabel: str, ylabel: str) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [
        f'<path d="M{LEFT},{TOP}V{bottom}H{right}" fill="none" stroke="currentColor"/>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{xlabel}</text>',
        f'<text transform="translate(18,{(TOP + bottom) / 2}) rotate(-90)" '
        f'text-anchor="middle">{ylabel}</text>',
    ]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x, y = LEFT + tick * (right - LEFT), bottom - tick * (bottom - TOP)
        parts += [
            f'<text x="{x}" y="{bottom + 20}" text-anchor="middle">{tick:g}</text>',
            f'<text x="{LEFT - 8}" y="{y + 5}" text-anchor="end">{tick:g}</text>',
            f'<path d="M{LEFT},{y}H{right}M{x},{TOP}V{bottom}" stroke="currentColor" '
            'opacity="0.12"/>',
        ]
    return "\n".join(parts)


def _line(name: str, index: int, x: list[float], y: list[float]) -> str:
    points = " ".join(f"{a},{b}" for a, b in zip(x, y, strict=True))
    label = f'x="{WIDTH - RIGHT - 10}" y="{HEIGHT - BOTTOM - 40 + 22 * index}"'
    return (
        f'<polyline points="{points}" fill="none" stroke="{COLORS[index]}" stroke-width="2.5"/>\n'
        f'<text {label} text-anchor="end" fill="{COLORS[index]}">{name}</text>'
    )
