import json
import re

import nbformat
import pytest
import yaml

from lib import claims, execution, ledger

SOURCES = ledger.read_sources()

#: A small list of statements: one measured, one not, one that two texts state.
LISTING = {
    "larger": {"hebbians/fig-2a-lag": "d = 128"},
    "texts": [
        {
            "name": "Linear Memory",
            "prefixes": ["linear"],
            "statements": [
                {"id": "linear/snr", "at": "Appendix D", "says": "A < B.", "published": "h & 1"}
            ],
        },
        {
            "name": "Garcia et al.",
            "prefixes": ["hebbians"],
            "statements": [
                {"id": "hebbians/fig-2a", "at": "Fig. 2a, A.2", "claims": ["hebbians/fig-2a-lag"]},
                {
                    "id": "hebbians/lemma-b36",
                    "at": "Lemma B.36",
                    "says": "Tails.",
                    "published": "C",
                    "claims": ["hebbians/lemma-b36-tails"],
                },
            ],
        },
        {
            "name": "Dugan et al.",
            "prefixes": ["dugan"],
            "statements": [
                {"id": "dugan/fig-3", "at": "Fig. 3", "claims": ["hebbians/fig-2a-lag"]}
            ],
        },
    ],
}


def claim(id, measured, source="Garcia et al., Fig. 2a"):
    return claims.Claim(
        id=id,
        source=source,
        statement="It lags.",
        published="0.1",
        measured=measured,
        rule=claims.at_least(0.1),
        scale="d = 64",
    )


def write_chapter(folder, stem, *listed):
    data = {claims.MIME: claims.table(listed)._repr_mimebundle_()[claims.MIME]}
    cell = nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("display_data", data)])
    folder.mkdir(exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), folder / f"{stem}.ipynb")


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A book of two chapters, which claim three things, and runs of one of them."""
    monkeypatch.setattr(ledger, "ROOT", tmp_path)
    monkeypatch.setattr(ledger, "NOTEBOOKS", tmp_path / "notebooks")
    lag = claim("hebbians/fig-2a-lag", {"d = 64": 0.2, "d = 128": 0.05})
    write_chapter(tmp_path / "notebooks", "14_recall", lag)
    loose = claim("linear/loose", {"a": 0.2, "b": 0.3, "c": 0.4}, source="ours")
    write_chapter(tmp_path / "notebooks", "15_block", loose)
    write_chapter(tmp_path / "notebooks", ledger.CHAPTER, claim("ledger/own", {}))
    write_chapter(tmp_path / "_runs", "14_recall", claim(lag.id, {"d = 256": 0.02}))
    return tmp_path


def listing(path, content=LISTING):
    path.write_text(yaml.safe_dump(content))
    return ledger.read_sources(path)


@pytest.fixture
def sources(tmp_path):
    return listing(tmp_path / "claims.yml")


def row(table, id):
    (found,) = table[table["id"] == id].to_dict("records")
    return found


# --- the list of the book ----------------------------------------------------------------------


def test_every_claim_of_a_chapter_measures_a_statement_of_the_list():
    attached = {name for s in SOURCES.statements for name in s.claims}
    assert ledger.records(execution.NOTEBOOKS).keys() - attached == set()


def test_every_claim_of_a_chapter_has_the_prefix_of_a_text():
    prefixes = {name.partition("/")[0] for name in ledger.records(execution.NOTEBOOKS)}
    assert prefixes <= SOURCES.texts.keys()


def test_what_no_chapter_measures_has_words_and_a_published_value():
    known = ledger.records(execution.NOTEBOOKS)
    for s in SOURCES.statements:
        assert known.keys() & set(s.claims) or (s.says and s.published), s.id


def test_ids_of_statements_look_like_those_of_claims():
    for s in SOURCES.statements:
        claim(s.id, {})


def test_patterns_of_stored_data_match_settings_of_chapters_that_read_some():
    known = ledger.records(execution.NOTEBOOKS)
    assert known.keys() & SOURCES.larger.keys()
    for name, pattern in SOURCES.larger.items():
        if name in known:
            assert any(re.search(pattern, setting) for setting in known[name]["measured"]), name
            chapter = execution.NOTEBOOKS / f"{known[name]['chapter']}.md"
            assert ".csv" in chapter.read_text(encoding="utf-8"), name


@pytest.mark.parametrize(
    ("text", "pattern", "first", "last"),
    [
        ("Garcia et al.", r"(?:Theorem|Lemma|Proposition|Corollary) B\.(\d+)", 1, 65),
        ("Garcia et al.", r"Fig\. (\d+)", 1, 14),
        ("Garcia et al.", r"Table (\d+)", 1, 2),
        ("Dugan et al.", r"Fig\. (\d+)", 1, 9),
        ("Barnfield et al.", r"Fig\. (\d+)", 1, 3),
        ("Barnfield et al.", r"Theorem (\d+)", 1, 2),
    ],
)
def test_numbered_statements_are_complete(text, pattern, first, last):
    lost = {4, 6, 8} if (text, pattern) == ("Garcia et al.", r"Fig\. (\d+)") else set()
    definitions = {*range(9, 16), 33} if "Lemma" in pattern else set()  # B.9 to B.15, B.33
    places = " ".join(s.at for s in SOURCES.statements if s.text == text)
    numbers = {int(n) for n in re.findall(pattern, places)}
    assert numbers == set(range(first, last + 1)) - lost - definitions


# --- reading -----------------------------------------------------------------------------------


def test_what_is_measured_speaks_for_itself_and_what_is_not_is_not_run(book, sources):
    table = ledger.ledger("notebooks", sources)
    assert list(table["id"]) == [
        "linear/snr",
        "linear/loose",
        "hebbians/fig-2a-lag",
        "hebbians/lemma-b36",
    ]
    missing = row(table, "linear/snr")
    assert (missing["verdict"], missing["statement"]) == (claims.NOT_RUN, "A < B.")
    assert (missing["laptop"], missing["chapter"]) == ("", "")
    lag = row(table, "hebbians/fig-2a-lag")
    assert (lag["verdict"], lag["chapter"]) == (claims.IN_PART, "14_recall")
    assert lag["laptop"] == "d = 64: 0.2 (d = 64)"
    assert lag["larger"] == "d = 128: 0.05 (d = 64)"
    assert lag["published"] == "0.1 (holds if ≥ 0.1)"
    assert lag["source"] == "Garcia et al., Fig. 2a; also A.2, Dugan et al., Fig. 3"


def test_many_settings_are_shown_as_a_range(book, sources):
    table = ledger.ledger("notebooks", sources)
    assert row(table, "linear/loose")["laptop"] == "0.2 to 0.4 in 3 settings (d = 64)"


def test_other_runs_have_their_own_verdicts_beside_those_of_the_book(book, sources):
    table = ledger.ledger("_runs", sources)
    lag = row(table, "hebbians/fig-2a-lag")
    assert lag["verdict"] == claims.NOT_REPRODUCED
    assert lag["laptop"] == "holds in part: d = 128: 0.05, d = 64: 0.2 (d = 64)"
    assert lag["larger"] == "d = 256: 0.02 (d = 64)"
    loose = row(table, "linear/loose")
    assert loose["verdict"] == claims.NOT_RUN
    assert loose["laptop"].startswith("reproduced: ")
    assert loose["larger"] == ""
    assert "<th>the book</th><th>these runs</th>" in ledger.page(table).content


def test_a_claim_that_only_the_runs_have_is_listed(book, sources):
    write_chapter(book / "_runs", "16_new", claim("hebbians/lemma-b36-tails", {"d = 64": 0.3}))
    tails = row(ledger.ledger("_runs", sources), "hebbians/lemma-b36-tails")
    assert (tails["verdict"], tails["laptop"]) == (claims.REPRODUCED, "")
    assert "hebbians/lemma-b36" not in set(ledger.ledger("_runs", sources)["id"])


def test_counts_and_their_sentence(book, sources):
    table = ledger.ledger("notebooks", sources)
    number = ledger.counts(table)
    assert (
        number.loc["all"].to_dict()
        == table["verdict"].value_counts().reindex(ledger.VERDICTS, fill_value=0).to_dict()
    )
    assert number.to_numpy()[:-1].sum() == len(table)
    assert ledger.summary(table) == (
        "Of 4 entries: reproduced **1**, holds in part **1**, "
        "not reproduced at this scale **0**, not run **2**."
    )


def test_the_page_escapes_its_words_and_links_to_chapters(book, sources):
    content = ledger.page(ledger.ledger("notebooks", sources)).content
    assert "A &lt; B." in content
    assert "h &amp; 1" in content
    assert "<th>laptop</th><th>at a larger scale</th>" in content
    assert content.count('<a href="14_recall.html#claims">14</a>') == 1
    keys = json.loads(re.search(r"const keys = (.*);", content).group(1))
    assert ["Garcia et al.", claims.IN_PART] in keys
    assert len(keys) == content.count("<tr>") - 1


@pytest.mark.parametrize("runs", ["_runs/nowhere", "empty", "without_claims"])
def test_a_folder_without_executed_chapters_is_refused(book, sources, runs):
    (book / "empty").mkdir()
    (book / "without_claims").mkdir()
    nbformat.write(nbformat.v4.new_notebook(), book / "without_claims" / "01_plain.ipynb")
    with pytest.raises(ValueError, match=f"no executed chapters in {book / runs}; make run"):
        ledger.ledger(runs, sources)


def test_two_chapters_cannot_claim_the_same(book):
    write_chapter(book / "notebooks", "16_again", claim("hebbians/fig-2a-lag", {}))
    with pytest.raises(ValueError, match="fig-2a-lag is claimed in 14_recall and 16_again"):
        ledger.records(book / "notebooks")


def test_a_claim_of_no_text_is_named(book, sources):
    write_chapter(book / "notebooks", "16_other", claim("other/thing", {}))
    with pytest.raises(ValueError, match=r"claims must begin with .*; got \['other/thing'\]"):
        ledger.ledger("notebooks", sources)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "hebbians/lemma-b36"}, "hebbians/lemma-b36 is repeated"),
        ({"id": "linear/fig-2a"}, "linear/fig-2a does not begin with a prefix of Garcia et al."),
        ({"claims": []}, "hebbians/fig-2a needs claims, or says and published"),
    ],
)
def test_a_wrong_list_is_refused(tmp_path, change, message):
    content = json.loads(json.dumps(LISTING))
    content["texts"][1]["statements"][0] |= change
    with pytest.raises(ValueError, match=re.escape(message)):
        listing(tmp_path / "claims.yml", content)
