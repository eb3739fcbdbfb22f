"""Fact sets: key and value embeddings and the map between them.

Rows are embeddings throughout: keys (F, d), values (N, d_v). Fact i says that key i has the
value ``targets[i]``.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lib.numerics import check_count, check_nonnegative, unit_rows


@dataclass(frozen=True, eq=False)
class FactSet:
    """Keys, values and the map f between them, checked when made.

    Attributes:
        keys: K, one row per fact.
        values: V, one row per candidate answer; at least two.
        targets: f, the row of V that answers each key.

    Raises:
        ValueError: shapes or dtypes disagree; an entry is NaN or infinite; a target is out of
            range; equal keys have different targets (no function of the key can store those).

    Source: Garcia et al., Section 2.1.
    """

    keys: Float[Tensor, "F d"]
    values: Float[Tensor, "N d_v"]
    targets: Int[Tensor, " F"]

    def __post_init__(self) -> None:
        for name, table in (("keys", self.keys), ("values", self.values)):
            check_embeddings(name, table)
        if self.keys.dtype != self.values.dtype:
            raise ValueError(
                f"keys and values must share one dtype; got {self.keys.dtype} "
                f"and {self.values.dtype}"
            )
        devices = {str(t.device) for t in (self.keys, self.values, self.targets)}
        if len(devices) > 1:
            raise ValueError(f"keys, values and targets must share one device; got {devices}")
        if len(self.values) < 2:
            raise ValueError(f"values must have at least 2 rows; got {len(self.values)}")
        _check_targets(self.targets, len(self.keys), len(self.values))
        _check_repeated_keys(self.keys, self.targets)

    def __len__(self) -> int:
        return len(self.targets)

    @cached_property
    def distinct_values(self) -> tuple[Float[Tensor, "M d_v"], Int[Tensor, " N"] | None]:
        """The values without repetitions, and where each is among them; None if all are distinct.

        Scores of equal values must be equal to the last bit, or a tie passes for a success.
        """
        distinct, copies = torch.unique(self.values, dim=0, return_inverse=True)
        return (self.values, None) if len(distinct) == len(self.values) else (distinct, copies)

    @property
    def answers(self) -> Float[Tensor, "F d_v"]:
        """The value embedding v_f(i) of each fact."""
        return self.values[self.targets]

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "FactSet":
        """The same facts on another device or in another floating dtype."""
        return FactSet(
            self.keys.to(device=device, dtype=dtype),
            self.values.to(device=device, dtype=dtype),
            self.targets.to(device=device),
        )


# --- samplers: drawn in float64 on the CPU; move with FactSet.to -------------------------------


def gaussian(n: int, d: int, *, generator: torch.Generator) -> Float[Tensor, "n d"]:
    """n rows drawn from N(0, I_d / d), so that a row has expected squared norm 1."""
    check_count(n=n, d=d)
    return torch.randn(n, d, dtype=torch.float64, generator=generator) / d**0.5


def sphere(n: int, d: int, *, generator: torch.Generator) -> Float[Tensor, "n d"]:
    """n rows drawn uniformly from the unit sphere of R^d."""
    return unit_rows(gaussian(n, d, generator=generator))


def spike(
    embeddings: Float[Tensor, "n d"], direction: Float[Tensor, " d"], strength: float
) -> Float[Tensor, "n d"]:
    """Crowd rows along one direction u: x -> (x + beta <x, u> u), scaled back to unit norm.

    Args:
        embeddings: rows x, none of them zero.
        direction: u, scaled to unit norm here.
        strength: beta >= 0; 0 only normalises the rows.

    Raises:
        ValueError: strength is negative or not finite, or direction is zero.

    Source: Garcia et al., Appendix A.3.2.
    """
    check_embeddings("embeddings", embeddings)
    check_embeddings("direction", direction[None])
    check_nonnegative(strength=strength)
    check_nonzero_rows("direction", direction[None])
    check_nonzero_rows("embeddings", embeddings)
    x, u = unit_rows(embeddings), unit_rows(direction[None])[0]
    return unit_rows(x + strength * torch.outer(x @ u, u))


def ill_condition(
    embeddings: Float[Tensor, "n d"], condition_number: float
) -> Float[Tensor, "n d"]:
    """Give a matrix a chosen condition number, keeping its singular vectors.

    The logarithms of the singular values are mapped affinely, so that the largest stays and the
    smallest becomes largest / condition_number. Rows do not keep unit norm.

    Args:
        embeddings: a matrix of full rank whose singular values are not all equal.
        condition_number: kappa >= 1, below 1 / (4 eps) of the dtype.

    Raises:
        ValueError: condition_number is out of range; or the matrix is not finite, is
            rank-deficient, or has equal singular values, which cannot be spread.

    Source: Dugan et al., Appendix A.1.1.
    """
    check_embeddings("embeddings", embeddings)
    eps = torch.finfo(embeddings.dtype).eps
    if not 1 <= condition_number < 1 / (4 * eps):
        raise ValueError(
            f"condition_number must be in [1, {1 / (4 * eps):.2g}); got {condition_number}"
        )
    U, s, Vt = torch.linalg.svd(embeddings, full_matrices=False)
    if s[-1] <= s[0] * max(embeddings.shape) * eps:
        raise ValueError("embeddings must have full rank; the smallest singular value is zero")
    spread = torch.log(s[0] / s[-1])
    if spread < 1e3 * eps:
        raise ValueError("embeddings must have unequal singular values; all are equal")
    position = torch.log(s[0] / s) / spread
    return U @ torch.diag(s[0] * condition_number**-position) @ Vt


def bijection(n: int, *, generator: torch.Generator) -> Int[Tensor, " n"]:
    """A uniformly random permutation of 0, ..., n - 1: each value answers exactly one key."""
    check_count(n=n)
    return torch.randperm(n, generator=generator)


def other_facts(facts: FactSet, *, generator: torch.Generator) -> FactSet:
    """The same keys and the same answers, matched at random so that no key keeps its answer.

    Args:
        facts: at least two, with distinct targets. Where their values have equal rows, a key can
            get another target whose embedding is the one it had.
        generator: on the CPU.

    Raises:
        ValueError: two keys have the same target, or there is only one.
    """
    targets = facts.targets.cpu()
    if len(targets) < 2 or len(targets.unique()) < len(targets):
        raise ValueError("facts must have at least 2 keys, and a target of its own for each")
    while True:  # about one permutation in e moves everything
        other = targets[bijection(len(targets), generator=generator)]
        if (other != targets).all():
            return FactSet(facts.keys, facts.values, other.to(facts.targets.device))


def random_facts(F: int, d: int, *, generator: torch.Generator) -> FactSet:
    """F facts with keys and values uniform on the sphere, untied, matched by a random bijection.

    Source: Garcia et al., Appendix A.3.2 (the isotropic setting).
    """
    return FactSet(
        sphere(F, d, generator=generator),
        sphere(F, d, generator=generator),
        bijection(F, generator=generator),
    )


def gaussian_facts(F: int, d: int, *, generator: torch.Generator) -> FactSet:
    """F facts with keys and values drawn from N(0, I_d / d); key i has value i.

    Source: Barnfield et al., eq. 3.
    """
    keys, values = gaussian(F, d, generator=generator), gaussian(F, d, generator=generator)
    return FactSet(keys, values, torch.arange(F))


def trigram_embeddings(
    names: Sequence[str], d: int, *, generator: torch.Generator
) -> Float[Tensor, "n d"]:
    """Unit embeddings in which names that share letters are close.

    Every run of three letters gets a random vector, a name the normalised sum of those of its
    trigrams (a space is put before and after, case is ignored).

    Args:
        names: distinct, not empty, upper and lower case taken for the same.
        d: dimension, at least 1.

    Raises:
        ValueError: a name is empty or repeated.
    """
    _check_names("names", [name.lower() for name in names])
    padded = [f" {name.lower()} " for name in names]
    trigrams = [[word[i : i + 3] for i in range(len(word) - 2)] for word in padded]
    vocabulary = {t: i for i, t in enumerate(sorted({t for word in trigrams for t in word}))}
    table = gaussian(len(vocabulary), d, generator=generator)
    return unit_rows(
        torch.stack([table[[vocabulary[t] for t in word]].sum(0) for word in trigrams])
    )


# --- a reader's own data -----------------------------------------------------------------------


@dataclass(frozen=True)
class NamedFacts:
    """A fact set with the names of its keys and values."""

    facts: FactSet
    key_names: tuple[str, ...]
    value_names: tuple[str, ...]


def read_rows(path: str | Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Header and rows of a CSV file, rows with their line numbers, cells without outer spaces.

    Raises:
        ValueError: the file is not CSV in UTF-8, has no row, or one with more or fewer cells than
            the header.
        OSError: the file cannot be read.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [cell.strip() for cell in next(reader, [])]
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: the file must be CSV in UTF-8; {error}") from None
    if not rows:
        raise ValueError(f"{path}: the file must have a header line and at least one row")
    for line, row in rows:
        if len(row) != len(header):
            raise ValueError(f"{path}, line {line}: {len(row)} cells; the header has {len(header)}")
    return header, rows


def read_embeddings(path: str | Path) -> tuple[tuple[str, ...], Float[Tensor, "n d"]]:
    """Names and embeddings from a CSV file: a header, then one row ``name,x1,...,xd`` each.

    Returns:
        The names, distinct and in the file's order, and the matrix, float64.

    Raises:
        ValueError: the file has no rows, a row has another length than the header, a name is
            empty or repeated, or a cell is not a finite number; with file and line.
        OSError: the file cannot be read.
    """
    header, rows = read_rows(path)
    if len(header) < 2:
        raise ValueError(f"{path}, line 1: at least 2 columns are needed; got {len(header)}")
    if all(_is_number(cell) for cell in header[1:]):
        raise ValueError(f"{path}, line 1: a header line is needed; this one holds numbers")
    names = [row[0] for _, row in rows]
    _check_names(f"{path}: names", names, [line for line, _ in rows])
    return tuple(names), torch.tensor(
        [[_number(path, line, cell) for cell in row[1:]] for line, row in rows], dtype=torch.float64
    )


def read_facts(
    pairs: str | Path, key_embeddings: str | Path, value_embeddings: str | Path
) -> NamedFacts:
    """A fact set from three CSV files: pairs ``key,value`` of names, and two tables of embeddings.

    Each file has a header line. Every key named in ``pairs`` becomes a fact, in that order; every
    row of ``value_embeddings`` is a candidate answer, whether or not a fact points to it.

    Raises:
        ValueError: as :func:`read_embeddings`; or a pair names an unknown key or value, or a key
            is paired twice; with file and line.
        OSError: a file cannot be read.
    """
    key_names, K = read_embeddings(key_embeddings)
    value_names, V = read_embeddings(value_embeddings)
    header, rows = read_rows(pairs)
    if len(header) != 2:
        raise ValueError(f"{pairs}, line 1: the header must have 2 cells; got {len(header)}")
    key_row = {name: i for i, name in enumerate(key_names)}
    value_row = {name: i for i, name in enumerate(value_names)}
    paired: dict[str, int] = {}
    for line, (key, value) in rows:
        if key not in key_row:
            raise ValueError(f"{pairs}, line {line}: key {key!r} is not in {key_embeddings}")
        if value not in value_row:
            raise ValueError(f"{pairs}, line {line}: value {value!r} is not in {value_embeddings}")
        if key in paired:
            raise ValueError(f"{pairs}, line {line}: key {key!r} already has a value")
        paired[key] = value_row[value]
    try:
        facts = FactSet(K[[key_row[key] for key in paired]], V, torch.tensor(list(paired.values())))
    except ValueError as error:
        raise ValueError(f"{pairs}, facts counted from 0: {error}") from None
    return NamedFacts(facts, tuple(paired), value_names)


# --- checks ------------------------------------------------------------------------------------


def check_embeddings(name: str, table: Tensor) -> None:
    """Raise ValueError unless the table is a nonempty, floating-point, finite matrix."""
    if not isinstance(table, Tensor):
        raise ValueError(f"{name} must be a torch tensor; got {type(table).__name__}")
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(f"{name} must be a nonempty matrix; got shape {tuple(table.shape)}")
    if not table.is_floating_point():
        raise ValueError(f"{name} must be floating point; got {table.dtype}")
    if not (finite := table.isfinite()).all():
        i, j = (~finite).nonzero()[0].tolist()
        raise ValueError(f"{name} must be finite; row {i}, column {j} is {table[i, j].item()}")


def check_nonzero_rows(name: str, table: Tensor) -> None:
    """Raise ValueError if a row is zero, and has no direction."""
    if (zero := ~table.any(1)).any():
        raise ValueError(f"{name} must not be zero; row {int(zero.nonzero()[0])} is")


def _check_targets(targets: Tensor, n_keys: int, n_values: int) -> None:
    if targets.shape != (n_keys,):
        raise ValueError(f"targets must have shape ({n_keys},); got {tuple(targets.shape)}")
    if targets.dtype != torch.int64:
        raise ValueError(f"targets must be int64; got {targets.dtype}")
    outside = (targets < 0) | (targets >= n_values)
    if outside.any():
        i = int(outside.nonzero()[0])
        raise ValueError(f"targets must be in [0, {n_values - 1}]; fact {i} has {int(targets[i])}")


def _check_repeated_keys(keys: Tensor, targets: Tensor) -> None:
    _, group = torch.unique(keys, dim=0, return_inverse=True)
    order = torch.argsort(group, stable=True)
    clash = (group[order].diff() == 0) & (targets[order].diff() != 0)
    if clash.any():
        at = int(clash.nonzero()[0])
        i, j = int(order[at]), int(order[at + 1])
        raise ValueError(
            f"equal keys must have equal targets; keys {i} and {j} are equal, "
            f"with targets {int(targets[i])} and {int(targets[j])}"
        )


def _check_names(what: str, names: Sequence[str], lines: Sequence[int] | None = None) -> None:
    if not names:
        raise ValueError(f"{what} must not be empty")
    seen: set[str] = set()
    for i, name in enumerate(names):
        where = f"line {lines[i]}" if lines else f"number {i + 1}"
        if not name.strip():
            raise ValueError(f"{what} must not be empty; {where} is {name!r}")
        if name in seen:
            raise ValueError(f"{what} must be distinct; {where} repeats {name!r}")
        seen.add(name)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell  # Python's 1_000 is nobody's CSV


def _number(path: str | Path, line: int, cell: str) -> float:
    if not _is_number(cell):
        raise ValueError(f"{path}, line {line}: {cell!r} is not a number")
    number = float(cell)
    if not abs(number) < float("inf"):
        raise ValueError(f"{path}, line {line}: {cell!r} is not finite")
    return number
