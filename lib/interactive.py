"""Curves with a slider and tables with filters, in the built book and without a network."""

import html
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

#: Size of the drawing and of its margins; small, so that letters are large on a phone.
WIDTH, HEIGHT = 480, 330
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 14, 52

#: At least 3:1 against white and against the theme's dark ground; too little for letters.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")

STYLE = "display:block;width:100%;max-width:640px"

PAGE = """<div class="slider-figure" id="{name}">
<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" style="{STYLE}"
 font-size="15" fill="currentColor">
{axes}
{lines}
</svg>
<label style="{STYLE}">{control}
<input type="range" min="0" max="{last}" value="{start}" style="{STYLE}">
</label>
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

TABLE = """<div id="{name}">
<p hidden>{selects}
<output aria-live="polite"></output></p>
<table class="claims"><thead><tr>{head}</tr></thead><tbody>
{rows}
</tbody></table>
<script>
(() => {{
  const frame = document.getElementById("{name}");
  const keys = {keys};
  const selects = [...frame.querySelectorAll("select")];
  const rows = [...frame.querySelectorAll("tbody tr")];
  const filter = () => {{
    const kept = rows.filter((row, i) => {{
      const keep = selects.every((s, j) => s.value === "" || s.value === keys[i][j]);
      row.style.display = keep ? "" : "none";
      return keep;
    }});
    frame.querySelector("output").textContent = kept.length + " of " + rows.length + " entries";
  }};
  selects.forEach(select => select.addEventListener("change", filter));
  frame.querySelector("p").hidden = false;
  filter();
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
    start: int,
    control: str,
    xlabel: str,
    ylabel: str,
) -> Page:
    """Curves with values in [0, 1], one version for each position of a slider.

    Args:
        x: abscissae, increasing; the axis reaches from the first to the last.
        curves: for each name the ordinates in [0, 1] at every position.
        captions: what to say at each position.
        start: position at first.
        control: what the slider changes.
        xlabel, ylabel: names of the axes.

    Raises:
        ValueError: x does not increase, an ordinate is not in [0, 1], a curve has another number
            of positions than there are captions, or start is none of them.
    """
    if not (np.diff(x) > 0).all():  # NaN compares false
        raise ValueError("x must increase")
    if not 0 <= start < len(captions):
        raise ValueError(f"start must be in [0, {len(captions)}); got {start}")
    table = {name: np.asarray(versions, float) for name, versions in curves.items()}
    for name, values in table.items():
        if not ((values >= 0) & (values <= 1)).all():
            raise ValueError(f"{name} must be in [0, 1] everywhere")
        if len(values) != len(captions):
            raise ValueError(f"{name} must have {len(captions)} versions; got {len(values)}")
    across = np.round(LEFT + (x - x[0]) / (x[-1] - x[0]) * (WIDTH - LEFT - RIGHT), 1).tolist()
    down = [
        np.round(HEIGHT - BOTTOM - values * (HEIGHT - TOP - BOTTOM), 1).tolist()
        for values in table.values()
    ]
    data = json.dumps({"x": across, "y": down, "captions": list(captions)}).replace("</", "<\\/")
    return Page(
        PAGE.format(
            name=f"slider-{zlib.crc32(data.encode()):08x}",
            title=html.escape(f"{ylabel} against {xlabel}: {', '.join(table)}"),
            axes=_axes(x[0], x[-1], html.escape(xlabel), html.escape(ylabel)),
            lines="\n".join(
                _line(html.escape(name), i, across, values[start])
                for i, (name, values) in enumerate(zip(table, down, strict=True))
            ),
            control=html.escape(control),
            caption=html.escape(captions[start]),
            last=len(captions) - 1,
            start=start,
            data=data,
            WIDTH=WIDTH,
            HEIGHT=HEIGHT,
            STYLE=STYLE,
        )
    )


def stacking(cells: pd.DataFrame) -> tuple[str, list[str]]:
    """Head and rows of a table whose cells name their columns, so that a phone can stack them.

    Args:
        cells: the table, its cells in HTML.
    """
    rows = [
        "<tr>"
        + "".join(f'<td data-label="{name}">{cell}</td>' for name, cell in row.items())
        + "</tr>"
        for row in cells.to_dict("records")
    ]
    return "".join(f"<th>{name}</th>" for name in cells), rows


def filterable(cells: pd.DataFrame, by: pd.DataFrame) -> Page:
    """A table of which a reader sees the rows he chooses; all of them where no script runs.

    Args:
        cells: the table, its cells in HTML.
        by: what to choose by, in plain text: one column for each choice, one row for each row.

    Raises:
        ValueError: the numbers of rows differ.
    """
    if len(by) != len(cells):
        raise ValueError(f"by must have {len(cells)} rows; got {len(by)}")
    head, rows = stacking(cells)
    rows = "\n".join(rows)
    return Page(
        TABLE.format(
            name=f"table-{zlib.crc32(rows.encode()):08x}",
            selects="\n".join(_select(name, by[name].unique()) for name in by),
            head=head,
            rows=rows,
            keys=json.dumps(by.to_numpy().tolist(), ensure_ascii=False).replace("</", "<\\/"),
        )
    )


def _select(name: str, values: Iterable[str]) -> str:
    options = "".join(f"<option>{html.escape(value)}</option>" for value in values)
    return (
        f"<label>{html.escape(name)} "
        f'<select><option value="">all</option>{options}</select></label>'
    )


def _axes(first: float, last: float, xlabel: str, ylabel: str) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [
        f'<path d="M{LEFT},{TOP}V{bottom}H{right}" fill="none" stroke="currentColor"/>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{xlabel}</text>',
        f'<text transform="translate(16,{(TOP + bottom) / 2}) rotate(-90)" '
        f'text-anchor="middle">{ylabel}</text>',
    ]
    for tick in np.linspace(0, 1, 6):
        x, y = LEFT + tick * (right - LEFT), bottom - tick * (bottom - TOP)
        parts += [
            f'<text x="{x:.1f}" y="{bottom + 19}" text-anchor="middle">'
            f"{first + tick * (last - first):.2g}</text>",
            f'<text x="{LEFT - 7}" y="{y + 5:.1f}" text-anchor="end">{tick:.1f}</text>',
            f'<path d="M{LEFT},{y:.1f}H{right}M{x:.1f},{TOP}V{bottom}" stroke="currentColor" '
            'opacity="0.12"/>',
        ]
    return "\n".join(parts)


def _line(name: str, index: int, x: list[float], y: list[float]) -> str:
    points = " ".join(f"{a},{b}" for a, b in zip(x, y, strict=True))
    height = TOP + 20 + 20 * index
    return (
        f'<polyline points="{points}" fill="none" stroke="{COLORS[index]}" stroke-width="2.2"/>\n'
        f'<path d="M{LEFT + 10},{height - 5}h24" stroke="{COLORS[index]}" stroke-width="2.2"/>\n'
        f'<text x="{LEFT + 42}" y="{height}">{name}</text>'
    )
