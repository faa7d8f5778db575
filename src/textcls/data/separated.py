"""Files of separated values (CSV, TSV): the separator, the quotes, the header, and the rows, read one by one."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from textcls.config import DataConfig
from textcls.data.encodings import TextFile, text_file
from textcls.data.table import SAMPLE_ROWS, Row, Table, is_known
from textcls.errors import ConfigError, DataError

MAX_CELL = 1 << 24
"""Characters of a cell at most; a longer one is a quote that is never closed."""
_SAMPLE_CHARACTERS = 1 << 18
_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
_QUOTES = ('"', "", "'")
_END = "\x1cend of table\x1c"


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """What parts the cells of a line, and what a cell that holds a separator or a line end is put into."""

    separator: str
    quote: str
    """"" where nothing quotes."""

    def reader(self, lines: Iterator[str], *, strict: bool = False) -> Any:
        """A `csv.reader` of lines; a strict one raises csv.Error where a quote is amiss."""
        csv.field_size_limit(MAX_CELL)
        if self.quote:
            return csv.reader(lines, delimiter=self.separator, quotechar=self.quote, strict=strict)
        return csv.reader(lines, delimiter=self.separator, quoting=csv.QUOTE_NONE)

    @property
    def note(self) -> str:
        """The dialect in words."""
        quotes = f"quoted by {self.quote}" if self.quote else "without quotes"
        return f"separated by {_SEPARATORS.get(self.separator, self.separator)}, {quotes}"


def read_separated(path: Path, config: DataConfig) -> Table:
    """The table in a file of separated values.

    Raises:
        DataError: the file is empty, or has one column only; reading its rows may raise it too.
        ConfigError: --encoding, --separator or data.quote can't be used.
    """
    file = text_file(path, config.encoding)
    with file.open() as stream:
        sample = list(io.StringIO(stream.read(_SAMPLE_CHARACTERS), newline=""))
        whole = not stream.read(1)
    preferred = "\t" if path.suffix.lower() == ".tsv" else ","
    dialect = _sniff(sample if whole else sample[:-1] or sample, whole, config, preferred)
    rows = [row for row in islice(dialect.reader(iter(sample)), SAMPLE_ROWS + 1) if row]
    if not rows:
        raise DataError(f"{path}: is empty; a table of texts and labels is needed.")
    names = tuple(name.replace("\0", "").strip() for name in rows[0])
    if len(names) < 2:
        raise DataError(
            f"{path}: line 1: only one column was found, {names[0][:40]!r}; a text and a label are needed, and "
            "--separator says what parts them."
        )
    header = _is_header(names, rows[1:], config)
    columns = names if header else ("",) * len(names)
    note = f"{file.note}; {dialect.note}" + ("" if header else "; no header, so that columns go by their numbers")
    return Table(name=str(path), columns=columns, rows=lambda: _rows(file, dialect, columns, header), note=note)


def _sniff(sample: Sequence[str], whole: bool, config: DataConfig, preferred: str) -> Dialect:
    """The dialect of the greatest merit; of equals the preferred separator, and the usual quote."""
    separators = [preferred, *(separator for separator in _SEPARATORS if separator != preferred)]
    if config.separator != "auto":
        separators = [{"tab": "\t", "\\t": "\t"}.get(config.separator, config.separator)]
        if len(separators[0]) != 1 or separators[0] in "\r\n\"'":
            raise ConfigError(f"--separator {config.separator}: can't part columns; give one character, or tab.")
    quotes: Sequence[str] = _QUOTES
    if config.quote != "auto":
        quotes = ["" if config.quote == "none" else config.quote]
        if len(config.quote) > 1 and config.quote != "none":
            raise ConfigError(f"data.quote: {config.quote!r} can't quote; give one character, none, or auto.")
    candidates = [Dialect(separator=separator, quote=quote) for separator in separators for quote in quotes]
    return max(candidates, key=lambda dialect: _merit(dialect, sample, whole))


def _merit(dialect: Dialect, sample: Sequence[str], whole: bool) -> tuple[bool, bool, int]:
    """How well a dialect fits a sample, the greater the better.

    First, whether most rows have as many cells as the first, of two at least; then whether its quotes are used without
    a fault, for one that opens by chance can swallow lines and leave the rest in order; then how many rows more have
    that number of cells than have not.
    """
    reader = dialect.reader(iter(sample))
    balance = last = width = 0
    clean = True
    for cells in reader:
        width = width or len(cells)
        cut = not whole and reader.line_num == len(sample) and reader.line_num > last + 1
        if cells and not cut:
            balance += 1 if len(cells) == width > 1 else -1
        clean = clean and not _shows_quotes(dialect, cells, first=last == 0)
        last = reader.line_num
    return balance > 0, clean and _quotes_well(dialect, sample, whole), balance


def _shows_quotes(dialect: Dialect, cells: Sequence[str], *, first: bool) -> bool:
    """Whether cells still have quotes around them that another dialect would have taken off."""
    if dialect.quote != '"' and any(cell[:1] == '"' for cell in cells):
        return True
    return dialect.quote != "'" and first and all(len(cell) > 1 and cell[0] == cell[-1] == "'" for cell in cells)


def _quotes_well(dialect: Dialect, sample: Sequence[str], whole: bool) -> bool:
    """Whether every quote that opens is closed at the end of its cell, but for one that the sample's end may cut."""
    reader = dialect.reader(iter(sample), strict=True)
    try:
        for _ in reader:
            pass
    except csv.Error as error:
        return not whole and "unexpected end" in str(error)
    return True


def _is_header(names: Sequence[str], rows: Sequence[Sequence[str]], config: DataConfig) -> bool:
    """Whether the first row names the columns.

    It does if one of its cells is a name that was set or that says what a column holds; it doesn't if one comes again
    below in its own column, as a label would.
    """
    if any(name in (*config.text_columns, config.label_column) or is_known(name) for name in names if name):
        return True
    again = (row[i] == name for row in rows for i, name in enumerate(names) if name and i < len(row))
    return not any(again)


def _rows(file: TextFile, dialect: Dialect, columns: Sequence[str], header: bool) -> Iterator[Row]:
    """Every row but the header; a row of more cells than columns, or too few, has None for its cells."""
    needed = max((i + 1 for i, name in enumerate(columns) if name), default=len(columns))
    with file.open() as stream:
        # The last line tells an open quote: inside of one it is a part of a cell, and no row of its own.
        reader = dialect.reader(chain(stream, [_END]))
        line, seen_header = 1, not header
        while True:
            try:
                cells = next(reader)
            except csv.Error:
                raise DataError(
                    f"{file.path}: line {line}: a cell is longer than {MAX_CELL:,} characters; a quote that opens "
                    "there is not closed, or --set data.quote=none is needed."
                ) from None
            if cells == [_END]:
                return
            if cells and _END in cells[-1]:
                raise DataError(
                    f"{file.path}: line {line}: a quote that opens there is never closed; close it, or read the file "
                    "with --set data.quote=none."
                )
            if cells and seen_header:
                yield f"line {line}", _fitted(cells, needed, len(columns))
            seen_header = seen_header or bool(cells)
            line = reader.line_num + 1


def _fitted(cells: list[str], needed: int, n_columns: int) -> list[str] | None:
    """As many cells as there are columns; columns without a name may be missing at the end, and empty cells be over."""
    if len(cells) < needed or any(cells[n_columns:]):
        return None
    return [*cells[:n_columns], *[""] * (n_columns - len(cells))]
