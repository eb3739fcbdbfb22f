"""Claims of the sources and our verdicts on them.

A claim pairs what a source states with what a chapter measured and the rule that compares the
two. The verdict follows from these; nobody writes it.
"""

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from lib.interactive import stacking

MIME = "application/vnd.fact-storage.claims+json"

REPRODUCED = "reproduced"
IN_PART = "holds in part"
NOT_REPRODUCED = "not reproduced at this scale"
NOT_RUN = "not run"

#: Digits kept of a measurement: a reader's need, and few enough that machines agree on them.
SIGNIFICANT_DIGITS = 3


@dataclass(frozen=True)
class Rule:
    """What a measured number must satisfy for the claim to hold, in words and as a test."""

    text: str
    holds: Callable[[float], bool]


def at_least(bound: float) -> Rule:
    """The number is at least ``bound``."""
    return Rule(f"≥ {bound:g}", lambda x: x >= bound)


def at_most(bound: float) -> Rule:
    """The number is at most ``bound``."""
    return Rule(f"≤ {bound:g}", lambda x: x <= bound)


def above(bound: float) -> Rule:
    """The number exceeds ``bound``."""
    return Rule(f"> {bound:g}", lambda x: x > bound)


@dataclass(frozen=True)
class Claim:
    """One statement of a source, and what became of it here.

    Attributes:
        id: ``source/slug``, for instance ``hebbians/fig-2b-r2``; unique in the book.
        source: where it is stated, for instance ``Garcia et al., Fig. 2b``.
        statement: one sentence.
        published: the value printed in the source, as text.
        measured: ours; one number per named setting, all finite; empty if it was not run.
        rule: what each number must satisfy; its bound comes from the source.
        scale: the setting at which we measured.

    Raises:
        ValueError: the id is malformed or a number is NaN or infinite.
    """

    id: str
    source: str
    statement: str
    published: str
    measured: Mapping[str, float]
    rule: Rule
    scale: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+/[a-z0-9-]+", self.id):
            raise ValueError(f"id must look like source/slug in lower case; got {self.id!r}")
        for setting, number in self.measured.items():
            if not math.isfinite(number):
                raise ValueError(f"{self.id}: measured must be finite; {setting!r} is {number}")

    @property
    def verdict(self) -> str:
        """Reproduced if every setting satisfies the rule, in part if some do."""
        held = [self.rule.holds(number) for number in self.measured.values()]
        if not held:
            return NOT_RUN
        if all(held):
            return REPRODUCED
        return IN_PART if any(held) else NOT_REPRODUCED

    def record(self) -> dict:
        """The claim as JSON-ready data, measurements rounded as they are shown."""
        return {
            "id": self.id,
            "source": self.source,
            "statement": self.statement,
            "published": self.published,
            "measured": {setting: float(_digits(x)) for setting, x in self.measured.items()},
            "rule": self.rule.text,
            "scale": self.scale,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class ClaimTable:
    """Claims as a cell output: a table for the reader, JSON for the ledger."""

    claims: tuple[Claim, ...]

    def frame(self) -> pd.DataFrame:
        """One row per claim."""
        return pd.DataFrame(
            {
                "verdict": claim.verdict,
                "id": claim.id,
                "claim": f"{claim.statement} [{claim.source}]",
                "published": claim.published,
                "ours": _summary(claim.measured),
                "holds if": claim.rule.text,
                "scale": claim.scale,
            }
            for claim in self.claims
        )

    def html(self) -> str:
        """The table, its cells named by their columns so that it can be stacked on a phone."""
        frame = self.frame().map(html.escape)
        frame["verdict"] += "<br><code>" + frame.pop("id") + "</code>"
        frame["ours"] += "<br>(" + frame.pop("holds if") + ")"
        head, rows = stacking(frame)
        body = "".join(rows)
        return f'<table class="claims"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        return {
            "text/plain": "\n".join(f"{c.verdict:30s} {c.id}" for c in self.claims),
            "text/html": self.html(),
            MIME: [claim.record() for claim in self.claims],
        }


def table(claims: Iterable[Claim]) -> ClaimTable:
    """The claims of a chapter, to be shown in its last cell.

    Raises:
        ValueError: there is none, or an id is repeated.
    """
    claims = tuple(claims)
    ids = [claim.id for claim in claims]
    if not claims or len(set(ids)) < len(ids):
        raise ValueError(f"claims must be at least one, with distinct ids; got {ids}")
    return ClaimTable(claims)


def decade_above(x: float, *, floor: float) -> float:
    """The smallest power of ten that is at least ``x`` and ``floor`` (to relative 1e-12).

    Rounding errors differ between machines; the decade they stay under does not.

    Raises:
        ValueError: x is not in [0, 1e300], or floor not positive.
    """
    if not 0 <= x <= 1e300 or not floor > 0:
        raise ValueError(f"x must be in [0, 1e300] and floor > 0; got {x} and {floor}")
    return 10.0 ** math.ceil(math.log10(max(x, floor)))


def _summary(measured: Mapping[str, float]) -> str:
    numbers = {_digits(x) for x in measured.values()}
    if len(numbers) == 1 < len(measured):
        return f"{numbers.pop()} in all {len(measured)} settings"
    return ", ".join(f"{setting}: {_digits(x)}" for setting, x in measured.items())


def _digits(x: float) -> str:
    return f"{x:.{SIGNIFICANT_DIGITS}g}"
