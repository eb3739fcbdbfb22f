import json
import re

import numpy as np
import pandas as pd
import pytest

from lib.interactive import filterable, slider

X = np.array([0.0, 0.5, 1.0])
CURVES = {"up & down": [X, 1 - X], "flat": [0.5 * np.ones(3), np.ones(3)]}


def make(x=X, curves=CURVES, captions=("first", "</script>"), start=1):
    return slider(x, curves, captions, start=start, control="load", xlabel="share", ylabel="rank")


def test_every_position_of_the_slider_has_its_curves():
    page = make()._repr_html_()
    data = json.loads(re.search(r"const data = (\{.*\});", page).group(1))
    assert data["captions"] == ["first", "</script>"]
    assert np.shape(data["y"]) == (2, 2, 3)
    assert data["y"][0][0] == data["y"][0][1][::-1]  # mirrored
    assert len(set(data["y"][1][0])) == 1
    assert page.count("<polyline") == 2
    assert page.count("</script>") == 1
    assert "up &amp; down" in page
    assert 'max="1"' in page


def test_what_is_shown_without_a_script_is_the_position_of_the_control():
    page = make()._repr_html_()
    shown = re.search(r'<polyline points="([^"]*)"', page).group(1)
    data = json.loads(re.search(r"const data = (\{.*\});", page).group(1))
    start = int(re.search(r'value="(\d+)"', page).group(1))
    expected = [f"{x},{y}" for x, y in zip(data["x"], data["y"][0][start], strict=True)]
    assert shown.split() == expected


def test_the_page_needs_no_network_and_is_the_same_every_time():
    assert "http" not in make()._repr_html_()
    assert make() == make()
    assert len(repr(make())) < 80


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X[::-1]}, "x must increase"),
        ({"x": X * np.nan}, "x must increase"),
        ({"start": 2}, r"start must be in \[0, 2\); got 2"),
        ({"curves": {"flat": [X * np.nan, X]}}, r"flat must be in \[0, 1\]"),
        ({"captions": ["one"], "start": 0}, "up & down must have 1 versions; got 2"),
    ],
)
def test_arguments_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        make(**change)


# --- tables with filters -----------------------------------------------------------------------

CELLS = pd.DataFrame({"claim": ["<b>one</b>", "two", "three"], "value": ["1", "", "3"]})
BY = pd.DataFrame({"source": ["A & B", "C", "A & B"], "verdict": ["yes", "yes", "</script>"]})


def test_every_row_is_there_without_a_script_and_the_filters_are_not():
    page = filterable(CELLS, BY)._repr_html_()
    assert page.count('<td data-label="claim">') == 3
    assert "<b>one</b>" in page
    assert "<p hidden>" in page


def test_filters_offer_each_value_once_and_know_those_of_every_row():
    page = filterable(CELLS, BY)._repr_html_()
    assert re.findall("<option>(.*?)</option>", page) == [
        "A &amp; B",
        "C",
        "yes",
        "&lt;/script&gt;",
    ]
    assert json.loads(re.search(r"const keys = (.*);", page).group(1)) == BY.to_numpy().tolist()
    assert page.count("</script>") == 1


def test_a_filter_needs_a_value_for_every_row():
    with pytest.raises(ValueError, match="by must have 3 rows; got 2"):
        filterable(CELLS, BY[:2])
