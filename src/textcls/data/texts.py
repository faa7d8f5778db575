"""Texts without labels, read one by one from a file or from standard input, each with an id.

    .txt, -      every line is a text, an empty one too; LF, CRLF and CR end a line
    .csv, .tsv   a header, then a row a text; separated by the one of , ; and tab that the header has most of
    .jsonl       a line a text: an object, or just a string

The id is that of a column or key `id`, or else the number of the text, counted from 1. A file's encoding is detected;
what is piped is UTF-8.
"""

import csv
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from textcls.data.encodings import text_file
from textcls.errors import ConfigError, DataError

STDIN = "-"
TEXTS = ("text", "sentence")
HEADINGS = ("title", "headline", "subject", "summary")
BODIES = (
    *("content", "body", "document", "description", "message", "review", "comment", "tweet", "article", "question"),
    *("abstract", "utterance", "query", "post", "sms", "email"),
)
"""Where a text is looked for unless the user names a column: in one of TEXTS, else in a heading and a body."""
MAX_FIELD = 10_000_000
"""Characters of a CSV field; one that is longer comes from a quote that never closes."""

_SURROGATE = re.compile("[\ud800-\udfff]")
Lines = Iterator[tuple[int, str]]
"""(line number from 1, line with its end)"""


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UnlabelledText:
    """One text to classify."""

    id: Any
    """The file's own, or the number of the text, counted from 1."""
    text: str


def numbered(texts: Sequence[str]) -> Iterator[UnlabelledText]:
    """Texts that have no ids of their own."""
    return (UnlabelledText(number, text) for number, text in enumerate(texts, 1))


def read_texts(file: str, columns: Sequence[str] = (), encoding: str = "auto") -> Iterator[UnlabelledText]:
    """The texts of a file, or of standard input for "-", read as they are asked for.

    Args:
        file: a path, whose ending says what is in it, or "-".
        columns: the columns or keys whose values make the text, joined with line ends; by default they are found by
            their names.
        encoding: of the file; "auto" detects it.

    Raises:
        ConfigError: the encoding isn't known, or one is given for standard input.
        DataError: there is no such file, or a line of it can't be used; the message names both.
    """
    suffix = ".txt" if file == STDIN else Path(file).suffix.lower()
    if suffix not in _READERS:
        raise DataError(
            f"--file {file}: give a file that ends in {', '.join(_READERS)}, or pipe lines of text in with --file -."
        )
    if file != STDIN and not os.path.exists(file):
        raise DataError(f"--file {file}: there is no such file.")
    name = "standard input" if file == STDIN else file
    if file != STDIN and os.path.isfile(file):  # and no pipe, which can't be read twice, as to detect takes
        return _READERS[suffix](name, _file_lines(file, encoding), columns)
    if encoding != "auto":
        raise ConfigError(f"--encoding {encoding}: {name} is read as UTF-8; leave it out, and pipe through iconv.")
    return _READERS[suffix](name, _piped_lines(name, 0 if file == STDIN else file), columns)


def _file_lines(path: str, encoding: str) -> Lines:
    """The lines of a file; the note on its encoding is shown where that isn't plain UTF-8."""
    try:
        file = text_file(Path(path), encoding)
        if file.note != "utf-8":
            log.info("%s: %s", path, file.note)
        with file.open() as stream:
            yield from enumerate(stream, 1)
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror}).") from None


def _piped_lines(name: str, source: str | int) -> Lines:
    """The lines of what can be read once; a byte of them that isn't UTF-8 decodes to a lone surrogate, and so shows."""
    try:
        opened = open(  # noqa: SIM115  # closed below
            source, encoding="utf-8-sig", errors="surrogateescape", newline="", closefd=source != 0
        )
    except OSError as error:
        raise DataError(f"{name}: can't be read ({error.strerror}).") from None
    with opened:
        for number, line in enumerate(opened, 1):
            if not line.isascii() and _SURROGATE.search(line):
                raise DataError(f"{name}, line {number}: is not UTF-8; pipe it through iconv.")
            yield number, line


def _read_lines(name: str, lines: Lines, columns: Sequence[str]) -> Iterator[UnlabelledText]:
    if columns:
        raise DataError(f"--text-column {columns[0]}: {name} has lines of text and no columns; leave it out.")
    return (UnlabelledText(number, line.rstrip("\r\n")) for number, line in lines)


def _read_table(name: str, lines: Lines, columns: Sequence[str]) -> Iterator[UnlabelledText]:
    csv.field_size_limit(MAX_FIELD)
    _, first = next(lines, (0, ""))
    separator = max(",;\t", key=first.count)
    reader = csv.reader(chain([first], (line for _, line in lines)), delimiter=separator, strict=True)
    rows = _table_rows(name, reader)
    _, header = next(rows, (0, []))
    if not header:  # nothing in the file: no texts
        return
    places = [header.index(column) for column in _chosen(f"{name}, line 1", header, columns)]
    id_place = next((place for place, column in enumerate(header) if column.strip().lower() == "id"), None)
    for number, (line, row) in enumerate(rows, 1):
        if len(row) != len(header):
            raise DataError(
                f"{name}, line {line}: has {len(row)} fields where the header has {len(header)}; put a text that has "
                f"{separator!r} in it into double quotes."
            )
        yield UnlabelledText(number if id_place is None else row[id_place], _joined([row[place] for place in places]))


def _table_rows(name: str, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """The rows that aren't blank, each with the number of the line that it begins on."""
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{name}, line {line}: its quotes don't match ({error}); write a quote inside a quoted text twice."
            ) from None
        if row:
            yield line, row


def _read_objects(name: str, lines: Lines, columns: Sequence[str]) -> Iterator[UnlabelledText]:
    written = ((number, line) for number, line in lines if line.strip())
    for count, (number, line) in enumerate(written, 1):
        where = f"{name}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: is not JSON ({getattr(error, 'msg', error)}); mend that line.") from None
        if isinstance(value, str) and not columns:
            yield UnlabelledText(count, value)
            continue
        if not isinstance(value, dict):
            raise DataError(f'{where}: is not an object; write one such as {{"text": "..."}}.')
        parts = [value[key] for key in _chosen(where, list(value), columns)]
        if not all(isinstance(part, str) for part in parts):
            raise DataError(f"{where}: its text is not a string; put it into double quotes.")
        own = value.get("id")
        yield UnlabelledText(count if own is None else own, _joined(parts))


def _joined(parts: Sequence[str]) -> str:
    return "\n".join(part for part in parts if part.strip()) if len(parts) > 1 else parts[0]


def _chosen(where: str, there: list[str], asked: Sequence[str]) -> list[str]:
    """The columns that make the text: those asked for, or else those known by their names."""
    for column in asked:
        if column not in there:
            raise DataError(f"--text-column {column}: {where} has no such column, but {_listed(there)}.")
    names = {column.strip().lower(): column for column in reversed(there)}
    text, heading, body = ([names[name] for name in known if name in names][:1] for known in (TEXTS, HEADINGS, BODIES))
    found = list(asked) or text or heading + body
    if not found:
        raise DataError(f"{where}: no column is named text; give --text-column; it has {_listed(there)}.")
    return found


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


_READERS: dict[str, Callable[[str, Lines, Sequence[str]], Iterator[UnlabelledText]]] = {
    ".txt": _read_lines,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".jsonl": _read_objects,
}
