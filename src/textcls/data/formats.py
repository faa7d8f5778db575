"""What a user's own data can be: a file of a kind, a folder of splits, a folder of class folders; each as tables."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from textcls.config import DataConfig
from textcls.data.encodings import TextFile, text_file
from textcls.data.separated import read_separated
from textcls.data.table import SAMPLE_ROWS, Row, Table
from textcls.errors import DataError

SPLITS = {"train": ("train",), "valid": ("valid", "validation", "val", "dev"), "test": ("test",)}
"""The splits, and what their files or folders may be called."""
_CHUNK_CHARACTERS = 1 << 20
_BATCH_ROWS = 1_000
_SPACE = re.compile(r"\s*")


def split_paths(path: Path) -> dict[str, Path]:
    """The file or folder of each split: one of train for a single file, or a folder of class folders.

    Raises:
        DataError: a folder has no train split, or two files of one split.
    """
    if path.is_file():
        return {"train": path}
    found: dict[str, Path] = {}
    for split, stems in SPLITS.items():
        entries = [entry for entry in sorted(path.iterdir()) if entry.stem in stems and _is_readable(entry)]
        if len(entries) > 1:
            shown = " and ".join(entry.name for entry in entries)
            raise DataError(f"{path}: {shown} are both {split}; keep one of them.")
        if entries:
            found[split] = entries[0]
    if "train" in found:
        return found
    if not found and _class_files(path):
        return {"train": path}
    raise DataError(
        f"{path}: has no train.csv, .tsv, .jsonl, .json or .parquet, and no folders of .txt files, one a class; put "
        "one of these there, or give a file."
    )


def files_of(path: Path) -> list[Path]:
    """The files that a split is read from, in a fixed order."""
    return [path] if path.is_file() else _class_files(path)


def read_table(path: Path, config: DataConfig) -> Table:
    """The table of a file or of a folder of class folders.

    Raises:
        DataError: it is of no known kind, or can't be read; reading its rows may raise it too.
    """
    if path.is_dir():
        return _read_class_folders(path, config)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: a {path.suffix or 'nameless'} file can't be read; give one of {', '.join(_READERS)}.")
    return reader(path, config)


def _is_readable(path: Path) -> bool:
    return path.suffix.lower() in _READERS if path.is_file() else bool(_class_files(path))


def _read_json(path: Path, config: DataConfig) -> Table:
    """Objects one a line, or in one array."""
    file = text_file(path, config.encoding)
    with file.open() as stream:
        is_array = stream.read(_CHUNK_CHARACTERS).lstrip().startswith("[")
    objects = _array_objects if is_array else _line_objects
    names: dict[str, None] = {}  # a set that keeps the order
    for _, value in islice(objects(file), SAMPLE_ROWS):
        names.update(dict.fromkeys(value))
    if not names:
        raise DataError(f"{path}: is empty; objects with a text and a label are needed.")
    columns = tuple(names)

    def rows() -> Iterator[Row]:
        for place, value in objects(file):
            yield place, [value.get(name) for name in columns]

    kind = "an array of objects" if is_array else "an object a line"
    return Table(name=str(path), columns=columns, rows=rows, note=f"{file.note}; {kind}")


def _line_objects(file: TextFile) -> Iterator[tuple[str, dict[str, Any]]]:
    with file.open() as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise _not_json(file, number, error) from None
                yield f"line {number}", _object(file, number, value)


def _array_objects(file: TextFile) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of an array, each parsed as soon as it has been read whole."""
    decoder = json.JSONDecoder()
    with file.open() as stream:
        text, line = stream.read(_CHUNK_CHARACTERS), 1
        at = text.index("[") + 1
        line += text.count("\n", 0, at)
        while True:
            start = _skip(text, at)
            if start < len(text) and text[start] == "]":
                return
            try:
                value, end = decoder.raw_decode(text, start)
                after = _skip(text, end)
                if after == len(text) or text[after] not in ",]":
                    raise json.JSONDecodeError("Expecting ',' or ']'", text, after)
            except (ValueError, RecursionError) as error:
                line += text.count("\n", at, start)
                # What isn't whole may be so with more of the file; reading as much again keeps the work linear.
                text, at = text[start:], 0
                chunk = stream.read(max(_CHUNK_CHARACTERS, len(text)))
                if not chunk:
                    raise _not_json(file, line, error) from None
                text += chunk
                continue
            line += text.count("\n", at, start)
            yield f"line {line}", _object(file, line, value)
            line += text.count("\n", start, after)
            at = after + (text[after] == ",")


def _skip(text: str, at: int) -> int:
    """Where the white space that begins at `at` ends."""
    match = _SPACE.match(text, at)
    assert match is not None  # it matches nothing too
    return match.end()


def _object(file: TextFile, line: int, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(
            f'{file.path}: line {line}: is not a JSON object; give one such as {{"text": ..., "label": ...}}.'
        )
    return value


def _not_json(file: TextFile, line: int, error: Exception) -> DataError:
    reason = getattr(error, "msg", None) or str(error)
    return DataError(f"{file.path}: line {line}: is not JSON ({reason}); mend that line.")


def _read_parquet(path: Path, config: DataConfig) -> Table:
    """The columns of a Parquet file, a batch of rows at a time."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            columns = tuple(file.schema_arrow.names)
    except (ArrowException, OSError) as error:
        raise DataError(f"{path}: is not a readable Parquet file ({type(error).__name__}).") from None

    def rows() -> Iterator[Row]:
        number = 0
        try:
            with ParquetFile(path) as file:
                for batch in file.iter_batches(_BATCH_ROWS):
                    for cells in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                        number += 1
                        yield f"row {number}", cells
        except (ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: row {number + 1}: can't be read ({type(error).__name__}).") from None

    return Table(name=str(path), columns=columns, rows=rows, note="Parquet")


def _class_files(path: Path) -> list[Path]:
    """The .txt files of the folders in a folder, by class and name."""
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    return [file for folder in folders for file in sorted(folder.glob("*.txt")) if file.is_file()]


def _read_class_folders(path: Path, config: DataConfig) -> Table:
    """A row a .txt file; its label is its folder's name."""

    def rows() -> Iterator[Row]:
        for file in _class_files(path):
            with text_file(file, config.encoding).open() as stream:
                yield str(file.relative_to(path)), (stream.read(), file.parent.name)

    return Table(name=str(path), columns=("text", "label"), rows=rows, note="a text a .txt file, a class a folder")


_READERS: Mapping[str, Callable[[Path, DataConfig], Table]] = {
    ".csv": read_separated,
    ".tsv": read_separated,
    ".jsonl": _read_json,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
