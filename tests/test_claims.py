import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib import claims


def claim(**change):
    fields = {
        "id": "hebbians/fig-2b-r2",
        "source": "Garcia et al., Fig. 2b",
        "statement": "The law explains the margins.",
        "published": "R² ≥ 0.97",
        "measured": {"m-sweep": 0.981234, "F-sweep": 0.99},
        "rule": claims.at_least(0.97),
        "scale": "d = 64",
    }
    return claims.Claim(**fields | change)


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        ({"a": 0.97, "b": 1.0}, claims.REPRODUCED),
        ({"a": 0.9699, "b": 1.0}, claims.IN_PART),
        ({"a": 0.9, "b": 0.5}, claims.NOT_REPRODUCED),
        ({}, claims.NOT_RUN),
    ],
)
def test_the_verdict_follows_from_the_numbers(measured, verdict):
    assert claim(measured=measured).verdict == verdict


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_rules_mean_what_they_say(x, bound):
    assert claims.at_least(bound).holds(x) == (x >= bound)
    assert claims.at_most(bound).holds(x) == (x <= bound)
    assert claims.above(bound).holds(x) == (x > bound)


def test_the_verdict_is_taken_before_rounding():
    assert claim(measured={"a": 0.96999}).verdict == claims.NOT_REPRODUCED
    assert claim(measured={"a": 0.96999}).record()["measured"] == {"a": 0.97}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measured": {"a": math.nan}}, "measured must be finite; 'a' is nan"),
        ({"measured": {"a": math.inf}}, "measured must be finite; 'a' is inf"),
        ({"id": "Fig 2b"}, "id must look like source/slug"),
    ],
)
def test_a_claim_refuses_what_it_cannot_judge(change, message):
    with pytest.raises(ValueError, match=message):
        claim(**change)


def test_the_table_speaks_to_readers_and_to_machines():
    bundle = claims.table([claim()])._repr_mimebundle_()
    (record,) = json.loads(json.dumps(bundle[claims.MIME]))
    assert record["verdict"] == "reproduced"
    assert record["measured"] == {"m-sweep": 0.981, "F-sweep": 0.99}
    assert "R² ≥ 0.97" in bundle["text/html"]
    assert "hebbians/fig-2b-r2" in bundle["text/plain"]


def test_equal_measurements_are_shown_once():
    (shown,) = claims.table([claim(measured={"a": 0.99, "b": 0.99})]).frame()["ours"]
    assert shown == "0.99 in all 2 settings"


def test_text_from_a_claim_cannot_break_the_table():
    html = claims.table([claim(statement="a < b & c")])._repr_mimebundle_()["text/html"]
    assert "a &lt; b &amp; c" in html


def test_ids_are_distinct_and_there_is_a_claim():
    with pytest.raises(ValueError, match="with distinct ids"):
        claims.table([claim(), claim()])
    with pytest.raises(ValueError, match="at least one"):
        claims.table([])


@given(st.floats(0, 1e300), st.sampled_from([1e-12, 1e-6]))
def test_a_decade_is_the_next_power_of_ten(x, floor):
    decade = claims.decade_above(x, floor=floor)
    assert decade >= max(x, floor) * (1 - 1e-12)
    assert decade <= 10 * max(x, floor) * (1 + 1e-12)
    assert math.log10(decade) == pytest.approx(round(math.log10(decade)))


def test_a_decade_refuses_nonsense():
    with pytest.raises(ValueError, match="x must be in"):
        claims.decade_above(math.nan, floor=1e-12)
