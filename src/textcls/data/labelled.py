"""Tables to labelled texts: cleaning, the order of the classes, the splits, and notes on all that was met.

Every table is read twice at least: once for its labels and a 64-bit hash of every text, then to be stored. Beyond
those, 12 bytes a row, nothing of a table is held.
"""

import hashlib
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from textcls.config import DataConfig
from textcls.data.dataset import TextClassificationItem
from textcls.data.splits import Repeats, thresholds
from textcls.data.store import Content
from textcls.data.table import Columns, Table, choose, index
from textcls.errors import DataError

MAX_CLASSES = 10_000
_INTEGER, _NUMBER = re.compile(r"[+-]?\d{1,300}"), re.compile(r"[+-]?\d{1,300}(\.\d{1,300})?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHOWN_CLASSES = 12


@dataclass
class Tally:
    """How often each thing was met, and where first."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, what: str, place: str) -> None:
        """Count one more."""
        self.counts[what] += 1
        self.first.setdefault(what, place)

    def __str__(self) -> str:
        return ", ".join(f"{what}: {count:,} (first: {self.first[what]})" for what, count in self.counts.items())


@dataclass(frozen=True, slots=True)
class Example:
    """A row with both a text and a label."""

    place: str
    text: str
    label: str
    hash: int
    """Of the text, 64 bits: equal for equal texts, and for no others but by a rare chance."""


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What the first reading of a split finds. N rows."""

    table: Table
    columns: Columns
    labels: tuple[str, ...]
    """As they were met."""
    codes: NDArray[np.int32]  # (N,) each row's label, an index into `labels`
    hashes: NDArray[np.uint64]  # (N,)
    tally: Tally
    first: dict[str, str]
    """Where each label was met first."""


def labelled(origin: str, tables: Mapping[str, Table], config: DataConfig) -> Content:
    """The rows of tables by split: of "train", of "valid" where there is one, and of "test", or else it is carved.

    A "test" alone is rows to evaluate a classifier on, whose labels need not be those of a whole training set.

    Raises:
        DataError: the columns can't be told, or the labels can't be those of a classifier; the message says where.
    """
    main = "train" if "train" in tables else "test"
    columns = choose(tables[main], config)
    scans = {split: _scan(table, columns, config) for split, table in tables.items()}
    _check_labels(scans, scans[main])
    names = class_order(scans[main].labels)
    readings = _readings({split: scan for split, scan in scans.items() if len(scan.codes)}, config)
    return Content(
        origin=origin,
        class_names=names,
        splits={split: reading.items(names) for split, reading in readings.items()},
        notes=lambda: _notes(scans, readings, names, config),
    )


def class_order(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Labels in the order of their classes: numbers by size if all are numbers, else by text."""
    if all(map(_INTEGER.fullmatch, labels)):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    if all(map(_NUMBER.fullmatch, labels)):
        return tuple(sorted(labels, key=lambda label: (float(label), label)))
    return tuple(sorted(labels))


def _scan(table: Table, columns: Columns, config: DataConfig) -> Scan:
    codes, hashes = array("i"), array("Q")
    labels: dict[str, int] = {}
    first: dict[str, str] = {}
    tally = Tally()
    for example in _examples(table, columns, tally, config.split_seed):
        if example.label not in labels:
            labels[example.label] = len(labels)
            first[example.label] = example.place
            if len(labels) > MAX_CLASSES:
                raise DataError(_not_classes(table, columns, len(labels), len(codes) + 1))
        codes.append(labels[example.label])
        hashes.append(example.hash)
    if len(labels) > max(100, len(codes) / 2):
        raise DataError(_not_classes(table, columns, len(labels), len(codes)))
    return Scan(
        table=table,
        columns=columns,
        labels=tuple(labels),
        codes=np.frombuffer(codes, dtype=np.int32) if codes else np.zeros(0, np.int32),
        hashes=np.frombuffer(hashes, dtype=np.uint64) if hashes else np.zeros(0, np.uint64),
        tally=tally,
        first=first,
    )


def _not_classes(table: Table, columns: Columns, n_labels: int, n_rows: int) -> str:
    return (
        f"{table.name}: column {columns.label} has {n_labels:,} different labels in {n_rows:,} rows, too many to be "
        "classes; give another --label-column."
    )


def _examples(table: Table, columns: Columns, tally: Tally, seed: int) -> Iterator[Example]:
    """Every row that has both a text and a label; the others are counted."""
    texts = [index(table, key) for key in columns.text]
    label_at = index(table, columns.label)
    key = seed.to_bytes(8, "little")
    for place, cells in table.rows():
        if cells is None:
            tally.add("rows with too few or too many cells, skipped", place)
            continue
        parts = [_cell(table, place, columns.text[i], cells[at]) for i, at in enumerate(texts)]
        text = "\n".join(part for part in parts if part and part.strip())
        label = (_cell(table, place, columns.label, cells[label_at]) or "").strip()
        text, label = _clean(text, place, tally), _clean(label, place, tally)
        if not text.strip():
            tally.add("empty texts, skipped", place)
        elif not label:
            tally.add("rows without a label, skipped", place)
        else:
            digest = hashlib.blake2b(text.encode(), digest_size=8, key=key).digest()
            yield Example(place, text, label, int.from_bytes(digest, "little"))


def _cell(table: Table, place: str, column: str, value: Any) -> str | None:
    """A cell as text; None where it is missing. A whole number is written without a point, whatever its type."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return None if math.isnan(value) else str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, int):
        return str(value)
    raise DataError(
        f"{table.name}: {place}: column {column} holds a {type(value).__name__}; a text or a number is needed."
    )


def _clean(text: str, place: str, tally: Tally) -> str:
    """A text without NUL characters and lone surrogates, and with plain line ends."""
    if "\0" in text:
        tally.add("rows with NUL characters, which are left out", place)
        text = text.replace("\0", "")
    if not text.isascii() and _SURROGATE.search(text):
        tally.add("rows with lone surrogates, read as U+FFFD", place)
        text = _SURROGATE.sub("\ufffd", text)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _check_labels(scans: Mapping[str, Scan], train: Scan) -> None:
    skipped = f" ({train.tally})" if train.tally.counts else ""
    if len(train.codes) == 0:
        raise DataError(
            f"{train.table.name}: has no row with both a text and a label{skipped}; {train.columns.note}; add rows, or "
            "name other columns."
        )
    if len(train.labels) == 1 and "train" in scans:
        raise DataError(
            f"{train.table.name}: every row has the label {train.labels[0]!r}{skipped}; a classifier needs two "
            "classes, and --label-column says which column they are in."
        )
    for scan in scans.values():
        for label in scan.labels:
            if label not in train.labels:
                count = int((scan.codes == scan.labels.index(label)).sum())
                raise DataError(
                    f"{scan.table.name}: {scan.first[label]}: the label {label!r} ({count:,} "
                    f"{'row' if count == 1 else 'rows'}) is none of those in {train.table.name}; mend it, or add "
                    "rows of it there."
                )


@dataclass(kw_only=True)
class Reading:
    """The second reading of a split, whose rows are stored."""

    scan: Scan
    hashes: NDArray[np.uint64]
    """Of the rows of this split."""
    keep: Callable[[Example], bool]
    """Whether a row of the table is one of this split."""
    shared: NDArray[np.uint64]
    """Hashes of the texts that a later split has too: valid and test for train, test for valid."""
    config: DataConfig
    tally: Tally = field(default_factory=Tally)
    classes: Counter[str] = field(default_factory=Counter)

    def items(self, names: tuple[str, ...]) -> Iterator[TextClassificationItem]:
        """The rows to store, counted as they go by."""
        number = {name: label for label, name in enumerate(names)}
        repeats, shared = Repeats(self.hashes), set(self.shared.tolist())
        self.tally, self.classes = Tally(), Counter()
        for example in _examples(self.scan.table, self.scan.columns, Tally(), self.config.split_seed):
            if not self.keep(example):
                continue
            is_shared, is_repeat = example.hash in shared, repeats.again(example.hash)
            if is_shared:
                self.tally.add("rows whose text is in a later split too", example.place)
            elif is_repeat:
                self.tally.add("rows that repeat an earlier text", example.place)
            if not (self.config.drop_duplicates and (is_shared or is_repeat)):
                self.classes[example.label] += 1
                yield TextClassificationItem(example.text, number[example.label])


def _readings(scans: Mapping[str, Scan], config: DataConfig) -> dict[str, Reading]:
    """The splits to store in the order train, valid, test; where there is no test, train's table is read for both."""
    parts: dict[str, tuple[Scan, NDArray[np.uint64], Callable[[Example], bool]]] = {
        split: (scans[split], scans[split].hashes, lambda _: True)
        for split in ("train", "valid", "test")
        if split in scans
    }
    if "test" not in scans:
        train = scans["train"]
        last = dict(zip(train.labels, thresholds(train.hashes, train.codes, len(train.labels)), strict=True))
        is_test = train.hashes < np.array([last[label] for label in train.labels], dtype=np.uint64)[train.codes]
        parts["train"] = (train, train.hashes[~is_test], lambda example: example.hash >= last[example.label])
        parts["test"] = (train, train.hashes[is_test], lambda example: example.hash < last[example.label])
        if not is_test.any() and len(train.labels) == len(train.codes) > 2:
            raise DataError(_not_classes(train.table, train.columns, len(train.labels), len(train.codes)))
        if not is_test.any():
            raise DataError(
                f"{train.table.name}: has too few different texts for a test split, which takes a fifth of each class; "
                "add rows, or give a folder with a train and a test file."
            )
    readings: dict[str, Reading] = {}
    later = np.zeros(0, dtype=np.uint64)
    for split, (scan, hashes, keep) in reversed(parts.items()):
        shared = np.intersect1d(hashes, later)
        readings[split] = Reading(scan=scan, hashes=hashes, keep=keep, shared=shared, config=config)
        later = np.concatenate([later, hashes])
    return dict(reversed(readings.items()))


def _notes(
    scans: Mapping[str, Scan], readings: Mapping[str, Reading], names: tuple[str, ...], config: DataConfig
) -> list[str]:
    """What to know of how the data was read, a sentence a line."""
    notes = [f"{scan.table.name}: {scan.table.note}; {scan.columns.note}" for scan in scans.values()]
    notes += [f"{scan.table.name}: {scan.tally}" for scan in scans.values() if scan.tally.counts]
    if "train" in readings and readings["test"].scan is readings["train"].scan:
        n_test, n_train = (readings[split].classes.total() for split in ("test", "train"))
        notes.append(
            f"no test split: {n_test:,} of {n_test + n_train:,} rows were carved for it, of every class in proportion, "
            f"chosen by data.split_seed = {config.split_seed}"
        )
    found = [f"{split}: {reading.tally}" for split, reading in readings.items() if reading.tally.counts]
    if found:
        advice = "dropped" if config.drop_duplicates else "kept (see --drop-duplicates)"
        notes.append(f"duplicates, {advice}: {'; '.join(found)}")
    if conflicts := _conflicts(scans):
        notes.append(f"texts that come with more than one label: {conflicts:,}")
    notes.append(_classes_note(next(iter(readings.values())).classes, names))
    return notes


def _conflicts(scans: Mapping[str, Scan]) -> int:
    """How many texts come with more than one label."""
    by_class: dict[str, list[NDArray[np.uint64]]] = {}
    for scan in scans.values():
        for code, label in enumerate(scan.labels):
            by_class.setdefault(label, []).append(scan.hashes[scan.codes == code])
    distinct = [np.unique(np.concatenate(hashes)) for hashes in by_class.values()]
    counts = np.unique(np.concatenate(distinct), return_counts=True)[1]
    return int((counts > 1).sum())


def _classes_note(counts: Counter[str], names: tuple[str, ...]) -> str:
    """The classes with their rows in train, or where there are many only the smallest and the largest."""
    if len(names) <= _SHOWN_CLASSES:
        return f"classes: {', '.join(f'{name} {counts[name]:,}' for name in names)} rows"
    ranked = sorted(names, key=lambda name: counts[name])
    return f"{len(names)} classes, of {counts[ranked[0]]:,} ({ranked[0]}) to {counts[ranked[-1]]:,} ({ranked[-1]}) rows"
