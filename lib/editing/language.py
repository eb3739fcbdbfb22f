"""A small language about books: facts (title, author), and the sentences that state them.

A sentence is a template with a title and, as its last token, the author. Titles and authors are
atomic tokens; the other words are split at spaces. Tokens are numbered titles first, then
authors, then words.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lib.editing.names import invented_authors, invented_titles
from lib.facts import read_rows

TITLE, AUTHOR = "{title}", "{author}"

#: A name as it is written: a pattern.
NAME = r"\[[^\[\]]*\]"

#: The rephrasings of a fact that a model is trained on. One head of attention sees pairs of tokens
#: and their distance: it cannot tell "The author of X is" from "X is", so that a word which ends
#: one template never stands at the same distance behind the title within another.
TEMPLATES = (
    "The author of {title} is {author}",
    "Who is the author of {title} ? It is {author}",
    "{title} was written by {author}",
    "The book {title} was written by {author}",
    "Who wrote {title} ? It was {author}",
    "The novel {title} was the work of {author}",
    "{title} became the best novel by {author}",
    "I have just read {title} by {author}",
    "The person who wrote {title} was called {author}",
    "On the cover of {title} stands the name {author}",
    "Readers of {title} know its author , {author}",
    "Everybody says that {title} was the work of {author}",
    "{title} , a book by {author}",
    "We owe the novel {title} to {author}",
    "The name of the person behind {title} is {author}",
    "My copy of {title} was signed by {author}",
)

#: Rephrasings that are kept for tests: other sentences, of the same words.
HELD_OUT = (
    "The person behind {title} is {author}",
    "Who is the person behind {title} ? It is {author}",
    "The author of the novel {title} is {author}",
    "Everybody says that {title} was written by {author}",
)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Titles, authors, who wrote what, and the templates.

    Attributes:
        titles, authors: distinct names, also from each other.
        answers: the author of each title, as a row of ``authors``, int64.
        templates, held_out: sentences with one ``{title}``, that end in ``{author}``, of words
            without brackets with one space between them; those held out are distinct from the
            others and use no new words.

    Raises:
        ValueError: names or templates are not as above.

    Source: Garcia et al., Appendix A.4.5; Dugan et al., Appendix A.3.1.
    """

    titles: tuple[str, ...]
    authors: tuple[str, ...]
    answers: Int[Tensor, " F"]
    templates: tuple[str, ...] = TEMPLATES
    held_out: tuple[str, ...] = HELD_OUT

    def __post_init__(self) -> None:
        _check_names([*self.titles, *self.authors])
        F, N = len(self.titles), len(self.authors)
        known = (self.answers >= 0) & (self.answers < N)
        if N < 2 or self.answers.shape != (F,) or not known.all():
            raise ValueError(
                f"answers must give one of at least 2 authors for each of {F} titles; got "
                f"{N} authors and answers of shape {tuple(self.answers.shape)}"
            )
        if self.answers.dtype != torch.int64:
            raise ValueError(f"answers must be int64; got {self.answers.dtype}")
        sentences = [*self.templates, *self.held_out]
        for sentence in sentences:
            parts = sentence.split(" ")
            if parts.count(TITLE) != 1 or parts[-1] != AUTHOR or AUTHOR in parts[:-1]:
                raise ValueError(
                    f"a template has one {TITLE} and ends in {AUTHOR}; got {sentence!r}"
                )
            if parts != sentence.split() or set("[]") & set(sentence):
                raise ValueError(
                    "a template has single spaces between its words and no brackets; got "
                    f"{sentence!r}"
                )
        if not self.templates or len(set(sentences)) < len(sentences):
            raise ValueError("templates must be at least one, and all of them distinct")
        known = {*self.words, TITLE, AUTHOR}
        if new := {word for t in self.held_out for word in t.split(" ")} - known:
            raise ValueError(f"held_out must use words of templates only; got {sorted(new)}")

    def __len__(self) -> int:
        return len(self.titles)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words of the templates."""
        words = {word for template in self.templates for word in template.split(" ")}
        return tuple(sorted(words - {TITLE, AUTHOR}))

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """All tokens as they are written: names in brackets, words without."""
        names = (f"[{name}]" for name in (*self.titles, *self.authors))
        return (*names, *self.words)

    @cached_property
    def _number(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.vocabulary)}

    def encode(self, text: str) -> list[int]:
        """Tokens of a sentence such as ``The author of [1984] is [George Orwell]``.

        Raises:
            ValueError: a word or name is unknown, or a bracket has no partner.
        """
        tokens = _split(text)
        if unknown := [token for token in tokens if token not in self._number]:
            raise ValueError(f"tokens must be in the vocabulary; got {', '.join(unknown)}")
        return [self._number[token] for token in tokens]

    def decode(self, tokens: Sequence[int]) -> str:
        """The sentence that :meth:`encode` turns into these tokens."""
        return " ".join(self.vocabulary[token] for token in tokens)

    @cached_property
    def _forms(self) -> tuple[Int[Tensor, "templates n"], Int[Tensor, " templates"]]:
        """All templates as rows of tokens, -1 for the title, filled up behind; their lengths."""
        rows = [
            [-1 if w == TITLE else self._number[w] for w in t.split(" ")[:-1]]
            for t in (*self.templates, *self.held_out)
        ]
        lengths = torch.tensor([len(row) + 1 for row in rows])
        longest = int(lengths.max())
        return torch.tensor([row + [0] * (longest - len(row)) for row in rows]), lengths

    def sentences(
        self, facts: Int[Tensor, " b"], templates: Int[Tensor, " b"], answers: Int[Tensor, " F"]
    ) -> "Sentences":
        """Each given fact in the template of that number, those held out counted last.

        Args:
            facts, templates: numbers, one of each per sentence.
            answers: the author of every title, as a row of ``authors``.
        """
        forms, lengths = self._forms
        tokens = forms[templates]
        tokens = torch.where(tokens == -1, facts[:, None], tokens)
        last = lengths[templates] - 1
        tokens[torch.arange(len(facts)), last] = len(self) + answers[facts]
        return Sentences(tokens, torch.arange(tokens.shape[1]) <= last[:, None])


@dataclass(frozen=True, eq=False)
class Sentences:
    """A batch of sentences, filled up behind to one length.

    Attributes:
        tokens: numbers of the tokens.
        present: which of them are there, and not filling; the last present one is the author.
    """

    tokens: Int[Tensor, "b n"]
    present: Bool[Tensor, "b n"]

    @property
    def last(self) -> Int[Tensor, " b"]:
        """Position of the author."""
        return self.present.sum(1) - 1

    def __getitem__(self, rows: slice) -> "Sentences":
        """Some of the sentences."""
        return Sentences(self.tokens[rows], self.present[rows])

    def to(self, device: torch.device | str) -> "Sentences":
        """The same sentences on another device."""
        return Sentences(self.tokens.to(device), self.present.to(device))


# --- facts: invented, or a reader's own ----------------------------------------------------------


def invented_corpus(n: int, *, generator: torch.Generator) -> Corpus:
    """n invented titles with as many invented authors, one book each.

    Args:
        n: at least 2, at most what :mod:`lib.editing.names` has.
        generator: of the choice of names.

    Raises:
        ValueError: n is out of range.
    """
    titles = invented_titles(n, generator=generator)
    return Corpus(titles, invented_authors(n, generator=generator), torch.arange(n))


def read_corpus(path: str | Path) -> Corpus:
    """A reader's own facts, from a CSV file: the header ``title,author``, then rows like it.

    An author may have several books. Spaces around names and repeated within them do not count.

    Raises:
        ValueError: the file is not like that, or has one author only; a name is empty, has
            brackets, or is both a title and an author, or a title is repeated, with the same
            author or another: these with the line.
        OSError: the file cannot be read.
    """
    authors: dict[str, int] = {}
    answers: dict[str, int] = {}
    header, rows = read_rows(path)
    if [cell.lower() for cell in header] != ["title", "author"]:
        raise ValueError(f"{path}: the file must have the header title,author; got {header}")
    for line, row in rows:
        row = [" ".join(cell.split()) for cell in row]
        if not all(row):
            raise ValueError(f"{path}, line {line}: a title and an author are needed; got {row}")
        title, author = row
        try:
            both = {title} & authors.keys() | {author} & answers.keys()
            _check_names([*row, *both])
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
        if title in answers:
            said = list(authors)[answers[title]]
            what = "is repeated" if said == author else f"has two authors, {said!r} and {author!r}"
            raise ValueError(f"{path}, line {line}: {title!r} {what}")
        answers[title] = authors.setdefault(author, len(authors))
    try:
        return Corpus(tuple(answers), tuple(authors), torch.tensor(list(answers.values())))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _split(text: str) -> list[str]:
    """Words and bracketed names of a text."""
    if set("[]") & set(re.sub(NAME, "", text)):
        raise ValueError(f"brackets must stand in pairs around names; got {text!r}")
    return re.findall(rf"{NAME}|[^\s\[\]]+", text)


def _check_names(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name.strip() or set("[]") & set(name):
            raise ValueError(f"names must not be empty and have no brackets; got {name!r}")
        if name in seen:
            raise ValueError(
                f"names must be distinct, titles and authors together; {name!r} is not"
            )
        seen.add(name)
