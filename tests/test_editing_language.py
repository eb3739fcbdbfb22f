import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.editing.language import (
    HELD_OUT,
    TEMPLATES,
    Corpus,
    invented_corpus,
    read_corpus,
)
from lib.editing.names import invented_authors, invented_titles
from lib.numerics import generator

CORPUS = invented_corpus(12, generator=generator(0))


def every_sentence(corpus):
    count = len(corpus.templates) + len(corpus.held_out)
    facts = torch.arange(len(corpus)).repeat(count)
    templates = torch.arange(count).repeat_interleave(len(corpus))
    return facts, templates, corpus.sentences(facts, templates, corpus.answers)


def test_there_are_sixteen_templates_and_others_of_the_same_words():
    assert len(TEMPLATES) == 16 and not set(TEMPLATES) & set(HELD_OUT)
    words = {word for template in TEMPLATES for word in template.split(" ")}
    assert {word for template in HELD_OUT for word in template.split(" ")} <= words


def test_a_word_that_ends_a_template_stands_at_another_distance_within_the_others():
    ends, within = set(), set()
    for template in TEMPLATES:
        behind = template.partition("{title} ")[2].split(" ")[:-1]
        places = list(enumerate(behind, start=1))
        ends.add(places[-1])
        within |= set(places[:-1])
    assert not ends & within


def test_sentences_are_read_back_as_they_were_written():
    facts, templates, sentences = every_sentence(CORPUS)
    forms = (*TEMPLATES, *HELD_OUT)
    for i in range(len(facts)):
        tokens = sentences.tokens[i, : int(sentences.last[i]) + 1].tolist()
        title, author = CORPUS.titles[facts[i]], CORPUS.authors[CORPUS.answers[facts[i]]]
        text = forms[templates[i]].format(title=f"[{title}]", author=f"[{author}]")
        assert CORPUS.decode(tokens) == text
        assert CORPUS.encode(text) == tokens
        assert sentences.present[i].tolist() == [
            j < len(tokens) for j in range(sentences.tokens.shape[1])
        ]


@given(st.lists(st.integers(0, len(CORPUS.vocabulary) - 1), max_size=20))
def test_the_tokeniser_round_trips(tokens):
    assert CORPUS.encode(CORPUS.decode(tokens)) == tokens


def test_a_title_that_is_a_word_or_a_number_stays_one_token():
    corpus = Corpus(("It", "1984", "And Then There Were None"), ("A", "B"), torch.tensor([0, 1, 0]))
    tokens = corpus.encode("Who is the author of [It] ? It is [A]")
    assert len(tokens) == 10 and tokens[5] == 0 and tokens[7] not in (0, 1, 2)
    with pytest.raises(ValueError, match=r"in the vocabulary; got 1984, \[C\]"):
        corpus.encode("The author of 1984 is [C]")


@pytest.mark.parametrize("text", ["[A", "A]", "[A]]", "[[A]]", "]A["])
def test_brackets_stand_in_pairs(text):
    corpus = Corpus(("It", "X"), ("A", "B"), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="brackets must stand in pairs around names"):
        corpus.encode(text)


def test_names_are_distinct_plausible_and_the_same_every_time():
    titles = invented_titles(16384, generator=generator(1))
    authors = invented_authors(16384, generator=generator(2))
    assert len({*titles, *authors}) == 2 * 16384
    assert all(re.fullmatch(r"(The|A) [A-Za-z' ]+", title) for title in titles)
    assert all(re.fullmatch(r"[A-Z][a-z]+ [A-Z][a-z]+", author) for author in authors)
    assert titles == invented_titles(16384, generator=generator(1))
    assert titles[:5] != invented_titles(16384, generator=generator(3))[:5]


@pytest.mark.parametrize("n", [1, 10**6])
def test_more_names_than_there_are_is_an_error(n):
    with pytest.raises(ValueError, match=r"must be (in 1\.\.\d+|at least 2).*|answers must"):
        invented_corpus(n, generator=generator(0))


def test_a_corpus_is_checked_when_it_is_made():
    for titles, authors, message in (
        (("", "X"), ("A", "B"), "names must not be empty"),
        (("[X", "Y"), ("A", "B"), "have no brackets"),
        (("X", "X"), ("A", "B"), "must be distinct"),
        (("X", "A"), ("A", "B"), "must be distinct, titles and authors together"),
        (("X", "Y"), ("A",), "at least 2 authors"),
    ):
        with pytest.raises(ValueError, match=message):
            Corpus(titles, authors, torch.zeros(2, dtype=torch.int64))
    for answers in ([0, 2], [-1, 0], [0]):
        with pytest.raises(ValueError, match="answers must give one of at least 2 authors"):
            Corpus(("X", "Y"), ("A", "B"), torch.tensor(answers))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_answers_are_whole_numbers(dtype, unchecked_shapes):
    with pytest.raises(ValueError, match=f"answers must be int64; got {dtype}"):
        Corpus(("X", "Y"), ("A", "B"), torch.tensor([0, 1], dtype=dtype))


@pytest.mark.parametrize(
    ("templates", "held_out", "message"),
    [
        (("{title} by {author} .",), (), r"ends in {author}"),
        (("by {author}",), (), r"has one {title}"),
        (("{title} {title} {author}",), (), r"has one {title}"),
        (("{title} by {author}",), ("{title} by {author}",), "all of them distinct"),
        ((), (), "at least one"),
        (("[A] {title} by {author}",), (), r"no brackets; got '\[A\] "),
        (("{title}  by {author}",), (), "single spaces"),
        (("{title} by {author}",), ("{title} from {author}",), r"words of templates only.*from"),
    ],
)
def test_templates_are_checked(templates, held_out, message):
    with pytest.raises(ValueError, match=message):
        Corpus(("X", "Y"), ("A", "B"), torch.tensor([0, 1]), templates, held_out)


def test_a_readers_facts_are_read(tmp_path):
    path = tmp_path / "books.csv"
    path.write_text(
        'title,author\n1984,George Orwell\n"Guns,  Germs",  Jared Diamond \n\nCoda,George Orwell\n'
    )
    corpus = read_corpus(path)
    assert corpus.titles == ("1984", "Guns, Germs", "Coda")
    assert corpus.authors == ("George Orwell", "Jared Diamond")
    assert corpus.answers.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("It,King\nIt,King\n", r"line 3: 'It' is repeated"),
        ("It,King\n It ,Orwell\n", r"line 3: 'It' has two authors, 'King' and 'Orwell'"),
        ("It,\n", r"line 2: a title and an author are needed; got \['It', ''\]"),
        ("It,King,1986\n", r"line 2: 3 cells; the header has 2"),
        ("It,King\nOrwell,King\nX,Orwell\n", r"line 4: .* together; 'Orwell'"),
        ("It,King\nX,It\n", r"line 3: names must be distinct, .*; 'It' is not"),
        ("It,It\n", r"line 2: names must be distinct"),
        ("It,King\nSh[e],Haggard\n", r"line 3: .*no brackets; got 'Sh\[e\]'"),
        ("It,King\n", r"at least 2 authors"),
        ("", r"a header line and at least one row"),
    ],
)
def test_what_is_wrong_with_a_readers_file_is_said(tmp_path, rows, message):
    path = tmp_path / "books.csv"
    path.write_text("title,author\n" + rows)
    with pytest.raises(ValueError, match=message):
        read_corpus(path)


@pytest.mark.parametrize("text", ["", "It,King\nX,Orwell\n"])
def test_a_file_without_a_header_loses_no_fact_but_is_refused(tmp_path, text):
    path = tmp_path / "books.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"must have (the|a) header"):
        read_corpus(path)


def test_a_file_that_is_not_text_or_not_there(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="CSV in UTF-8"):
        read_corpus(tmp_path / "x.csv")
    with pytest.raises(OSError):
        read_corpus(tmp_path / "y.csv")
