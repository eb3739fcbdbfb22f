"""The ledger: what the sources state, what chapters made of it, and what none has measured.

What the sources state is listed in book/claims.yml. Words, values and verdicts of what was
measured are read from the outputs of executed notebooks.
"""

import html
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pandas as pd
from papermill.iorw import read_yaml_file

from lib import claims
from lib.execution import NOTEBOOKS, ROOT, recorded_claims
from lib.interactive import Page, filterable

SOURCES = ROOT / "book" / "claims.yml"

#: This chapter reads the others.
CHAPTER = "17_ledger"

VERDICTS = (claims.REPRODUCED, claims.IN_PART, claims.NOT_REPRODUCED, claims.NOT_RUN)

#: What the page calls the columns laptop and larger: of the book, and of other runs beside it.
HEADS, HEADS_BESIDE = ("laptop", "at a larger scale"), ("the book", "these runs")

#: Settings of a claim that are shown one by one; of more, the range is.
FEW_SETTINGS = 2


@dataclass(frozen=True)
class Statement:
    """A theorem, figure, table or number of a source.

    Attributes:
        text: the source, for instance ``Garcia et al.``.
        id: ``source/slug``, unique among statements.
        at: where it is stated, for instance ``Theorem 2.4``.
        claims: ids of the chapters' claims that measure it.
        says: one sentence; may be empty where a chapter says it.
        published: what the source prints; may be empty where a chapter says it.
    """

    text: str
    id: str
    at: str
    claims: tuple[str, ...] = ()
    says: str = ""
    published: str = ""


@dataclass(frozen=True)
class Sources:
    """All statements, in the order of the sources.

    Attributes:
        statements: of all texts.
        texts: the text that claims of a prefix (``hebbians``) belong to.
        larger: for claims measured on stored data, a pattern that the names of those settings
            contain.
    """

    statements: tuple[Statement, ...]
    texts: Mapping[str, str]
    larger: Mapping[str, str]


def read_sources(path: Path = SOURCES) -> Sources:
    """The statements of the sources.

    Raises:
        ValueError: an id is repeated or has no known prefix, or a statement has neither claims
            nor words of its own.
    """
    content = read_yaml_file(str(path))
    texts = {prefix: text["name"] for text in content["texts"] for prefix in text["prefixes"]}
    statements = tuple(
        Statement(text["name"], **entry | {"claims": tuple(entry.get("claims", ()))})
        for text in content["texts"]
        for entry in text["statements"]
    )
    ids = [s.id for s in statements]
    for s in statements:
        if ids.count(s.id) > 1:
            raise ValueError(f"{path.name}: {s.id} is repeated")
        if texts.get(_prefix(s.id)) != s.text:
            raise ValueError(f"{path.name}: {s.id} does not begin with a prefix of {s.text}")
        if not (s.claims or (s.says and s.published)):
            raise ValueError(f"{path.name}: {s.id} needs claims, or says and published")
    return Sources(statements, texts, content["larger"])


def records(folder: Path) -> dict[str, dict]:
    """The claims recorded in a folder of executed chapters, by id, each with its chapter's stem.

    Raises:
        ValueError: the folder is missing, none of its notebooks carries claims, or two carry
            the same one.
    """
    found: dict[str, dict] = {}
    for path in sorted(folder.glob("[0-9][0-9]_*.ipynb")):
        if path.stem == CHAPTER:
            continue
        for record in recorded_claims(nbformat.read(path, as_version=4)):
            if record["id"] in found:
                chapters = f"{found[record['id']]['chapter']} and {path.stem}"
                raise ValueError(f"{record['id']} is claimed in {chapters}")
            found[record["id"]] = record | {"chapter": path.stem}
    if not found:
        raise ValueError(
            f"no executed chapters in {folder}; make run CHAPTER=07 PRESET=paper writes one "
            "to _runs/paper"
        )
    return found


def ledger(runs: str | Path, sources: Sources) -> pd.DataFrame:
    """One row per claim of the chapters, and one per statement that none of them measures.

    Args:
        runs: a folder of executed chapters, relative to the repository; verdicts are theirs.
        sources: the statements, which give the order.

    Returns:
        Columns text, verdict, id, statement, source, published, laptop, larger, chapter. A claim
        that runs lack is "not run". For the book's own chapters larger has what was measured on
        stored data; for others it has what they measured, and laptop has the book's own verdict
        and values. ``attrs["heads"]`` says what to call the two.

    Raises:
        ValueError: a folder has no executed chapters, or a claim belongs to no text.
    """
    own = records(NOTEBOOKS)
    rerun = None if (ROOT / runs).resolve() == NOTEBOOKS.resolve() else records(ROOT / runs)
    known = own | (rerun or {})
    if strangers := [name for name in known if _prefix(name) not in sources.texts]:
        raise ValueError(f"claims must begin with one of {list(sources.texts)}; got {strangers}")
    entries: list[Statement | str] = []
    for s in sources.statements:
        entries += [name for name in s.claims if name in known] or [s]
    rows = []
    for entry in dict.fromkeys([*entries, *known]):
        if isinstance(entry, Statement):
            rows.append(_not_run(entry))
        elif rerun is None:
            larger = sources.larger.get(entry)
            rows.append(_words(own[entry], sources) | _own_values(own[entry], larger))
        else:
            values = _values_beside(own.get(entry), rerun.get(entry))
            rows.append(_words(known[entry], sources) | values)
    order = list(dict.fromkeys(sources.texts.values()))
    table = pd.DataFrame(rows)
    table = table.sort_values("text", key=lambda texts: texts.map(order.index), kind="stable")
    table = table.reset_index(drop=True)
    table.attrs["heads"] = HEADS if rerun is None else HEADS_BESIDE
    return table


def counts(table: pd.DataFrame) -> pd.DataFrame:
    """Entries per text (rows, with their sum as the last) and verdict (columns)."""
    texts = list(dict.fromkeys(table["text"]))
    number = pd.crosstab(table["text"], table["verdict"])
    number = number.reindex(index=texts, columns=list(VERDICTS), fill_value=0)
    number.loc["all"] = number.sum()
    return number.rename_axis(index=None, columns=None)


def summary(table: pd.DataFrame) -> str:
    """One sentence in Markdown: how many entries have which verdict."""
    number = counts(table).loc["all"]
    listed = ", ".join(f"{verdict} **{number[verdict]}**" for verdict in VERDICTS)
    return f"Of {number.sum()} entries: {listed}."


def page(table: pd.DataFrame) -> Page:
    """The ledger as a table in HTML, to be filtered by text and verdict."""
    cell = table.map(html.escape)
    chapter = cell["chapter"]
    first, second = table.attrs["heads"]
    cells = pd.DataFrame(
        {
            "verdict": cell["verdict"] + "<br><code>" + cell["id"] + "</code>",
            "claim": cell["statement"] + " [" + cell["source"] + "]",
            "published": cell["published"],
            first: cell["laptop"],
            second: cell["larger"],
            "chapter": ('<a href="' + chapter + '.html#claims">' + chapter.str[:2] + "</a>").where(
                chapter != "", ""
            ),
        }
    )
    return filterable(cells, table[["text", "verdict"]].rename(columns={"text": "source"}))


def _not_run(s: Statement) -> dict[str, str]:
    return {
        "text": s.text,
        "verdict": claims.NOT_RUN,
        "id": s.id,
        "statement": s.says,
        "source": f"{s.text}, {s.at}",
        "published": s.published,
        "laptop": "",
        "larger": "",
        "chapter": "",
    }


def _words(record: dict, sources: Sources) -> dict[str, str]:
    """What a row says of a claim, and all the places in the sources that it stands for."""
    text, source = sources.texts[_prefix(record["id"])], record["source"]
    places = [
        place if s.text == text else f"{s.text}, {place}"
        for s in sources.statements
        if record["id"] in s.claims
        for place in s.at.split(", ")
        if s.text != text or place not in source
    ]
    also = f"; also {', '.join(dict.fromkeys(places))}" if places else ""
    return {
        "text": text,
        "id": record["id"],
        "statement": record["statement"],
        "source": source + also,
        "published": f"{record['published']} (holds if {record['rule']})",
        "chapter": record["chapter"],
    }


def _own_values(own: dict, larger: str | None) -> dict[str, str]:
    """Verdict and values of a claim of the book, what matches ``larger`` apart."""
    settings = own["measured"].keys()
    stored = {s for s in settings if larger is not None and re.search(larger, s)}
    return {
        "verdict": own["verdict"],
        "laptop": _shown(own, settings - stored),
        "larger": _shown(own, stored),
    }


def _values_beside(own: dict | None, again: dict | None) -> dict[str, str]:
    """Verdict and values of a claim in other runs, beside those of the book."""
    return {
        "verdict": again["verdict"] if again else claims.NOT_RUN,
        "laptop": f"{own['verdict']}: {_shown(own, own['measured'].keys())}" if own else "",
        "larger": _shown(again, again["measured"].keys()) if again else "",
    }


def _shown(record: dict, settings: Collection[str]) -> str:
    """Values of some settings of a record and the scale, or nothing."""
    values = {s: x for s, x in record["measured"].items() if s in settings}
    if not values:
        return ""
    if len(values) <= FEW_SETTINGS:
        text = ", ".join(f"{setting}: {x:g}" for setting, x in values.items())
    elif (low := min(values.values())) == (high := max(values.values())):
        text = f"{low:g} in all {len(values)} settings"
    else:
        text = f"{low:g} to {high:g} in {len(values)} settings"
    return f"{text} ({record['scale']})"


def _prefix(name: str) -> str:
    return name.partition("/")[0]
