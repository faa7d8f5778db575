"""Tables of any origin: their rows, and which columns hold the text and the label."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from textcls.config import DataConfig
from textcls.data.texts import BODIES, HEADINGS, TEXTS
from textcls.errors import DataError

Row = tuple[str, Sequence[Any] | None]
"""Where a row is, such as "line 12", and its cells in the order of the columns; None for one that doesn't fit them."""

SAMPLE_ROWS = 1_000

_LABELS = (
    *("label", "class", "category", "intent", "target", "labels", "labeltext", "labelname", "classname", "sentiment"),
    *("topic", "tag", "emotion", "type", "y"),
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows that are read as often as asked for, never held."""

    name: str
    """What a message calls it: a file's path, or a data set's name and split."""
    columns: tuple[str, ...]
    """"" where a column has no name."""
    rows: Callable[[], Iterator[Row]]
    note: str
    """How it is read: the encoding, the separator, and the like."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns are read: each by its name, or by its number from 1 where it has none of its own."""

    text: tuple[str, ...]
    label: str

    @property
    def note(self) -> str:
        """The choice in words."""
        return f"text from {' + '.join(map(_named, self.text))}, label from {_named(self.label)}"


def is_known(name: str) -> bool:
    """Whether a column's name says that it holds the text or the label."""
    return _fold(name) in {*TEXTS, *BODIES, *HEADINGS, *_LABELS}


def choose(table: Table, config: DataConfig) -> Columns:
    """The columns that hold the text and the label: those set, else by their names, else by what is in them.

    Raises:
        DataError: a column that was set isn't there, or one that wasn't can't be told; the message lists the columns.
    """
    sample = [cells for _, cells in islice(table.rows(), SAMPLE_ROWS) if cells is not None]
    keys = [name if name and table.columns.count(name) == 1 else str(i) for i, name in enumerate(table.columns, 1)]
    for flag, given in (("--text-column", config.text_columns), ("--label-column", [config.label_column])):
        for key in filter(None, given):
            index(table, key, flag)
    text, label = config.text_columns, config.label_column
    label = label or _label_by_name(keys, text) or _label_by_content(keys, sample, text)
    if not label:
        raise DataError(
            f"{table.name}: which column is the label can't be told; name it with --label-column: {_listed(table)}"
        )
    text = text or _text_by_name(keys, label) or _text_by_content(keys, sample, index(table, label))
    if not text:
        raise DataError(
            f"{table.name}: which column is the text can't be told; name it with --text-column: {_listed(table)}"
        )
    if index(table, label) in {index(table, key) for key in text}:
        raise DataError(f"{table.name}: {_named(label)} can't be both text and label; name another: {_listed(table)}")
    return Columns(text=text, label=label)


def index(table: Table, key: str, flag: str = "") -> int:
    """The place, from 0, of the column of a name, or else of a number from 1.

    Raises:
        DataError: there is none; the message lists those there are.
    """
    if key in table.columns:
        return table.columns.index(key)
    if key.isdecimal() and 1 <= int(key) <= len(table.columns):
        return int(key) - 1
    asked = f"{flag} {key}: {table.name} has no such column" if flag else f"{table.name}: has no column {key!r}"
    raise DataError(f"{asked}; {_listed(table)}")


def _label_by_name(keys: Sequence[str], text: Sequence[str]) -> str:
    return _first(keys, _LABELS, text)


def _text_by_name(keys: Sequence[str], label: str) -> tuple[str, ...]:
    """A text or sentence alone; else a heading and a body, both where there are both."""
    if text := _first(keys, TEXTS, [label]):
        return (text,)
    return tuple(filter(None, (_first(keys, HEADINGS, [label]), _first(keys, BODIES, [label]))))


def _first(keys: Sequence[str], names: Sequence[str], taken: Sequence[str]) -> str:
    """The column whose name comes first in `names`, of those that aren't taken."""
    free = {_fold(key): key for key in reversed(keys) if key not in taken}
    return next((free[name] for name in names if name in free), "")


def _label_by_content(keys: Sequence[str], sample: Sequence[Sequence[Any]], text: Sequence[str]) -> str:
    """The one column that is nearly always filled with something short that comes again and again; "" unless one is."""
    found = []
    for key, values in zip(keys, zip(*sample, strict=True), strict=bool(sample)):
        filled = [str(value).strip() for value in values if value not in (None, "")]
        repeats = len(set(filled)) <= len(filled) / 2
        if key not in text and len(filled) >= 0.9 * len(sample) and repeats and _mean_length(filled) <= 64:
            found.append(key)
    return found[0] if len(found) == 1 else ""


def _text_by_content(keys: Sequence[str], sample: Sequence[Sequence[Any]], label: int) -> tuple[str, ...]:
    """The column of the longest cells, if they are more than numbers."""
    lengths: dict[str, float] = {}
    for i, (key, values) in enumerate(zip(keys, zip(*sample, strict=True), strict=bool(sample))):
        filled = [str(value) for value in values if value not in (None, "")]
        words = [value for value in filled if re.search(r"[^\W\d]", value)]
        if i != label and len(filled) >= 0.5 * len(sample) and len(words) >= 0.5 * len(filled):
            lengths[key] = _mean_length(filled)
    return (max(lengths, key=lambda key: lengths[key]),) if lengths else ()


def _mean_length(values: Sequence[str]) -> float:
    return sum(map(len, values)) / max(1, len(values))


def _fold(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


def _named(key: str) -> str:
    return f"column {key}"


def _listed(table: Table) -> str:
    shown = ", ".join(name or f"{i} (unnamed)" for i, name in enumerate(table.columns[:20], 1))
    return f"its columns are {shown}{', ...' if len(table.columns) > 20 else ''}."
