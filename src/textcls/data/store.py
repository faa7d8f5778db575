"""The cache of data sets: one SQLite file each, built once, checked when opened.

A file holds the rows of every split in one table, and in another what they are: format, class names, rows a split, and
a digest of the whole content. It is built under a temporary name and renamed when complete, so a file of the right name
is a whole one; a lock, which the system frees when its holder dies, lets one of several processes build it.
"""

import hashlib
import json
import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from filelock import FileLock

from textcls.data.dataset import TextClassificationDataset, TextClassificationItem
from textcls.errors import StorageError
from textcls.files import replaced, writing

log = logging.getLogger(__name__)

FORMAT = "1"


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a source gives to be stored: the class names in label order, and the rows of each split."""

    origin: str
    """Where the rows came from, down to the revision."""
    class_names: tuple[str, ...]
    splits: dict[str, Iterable[TextClassificationItem]]
    notes: Callable[[], Sequence[str]] = tuple
    """What to say of how the rows were read; asked for when all of them were."""


class SqliteDataset(TextClassificationDataset):
    """The rows of one split in a cache file."""

    def __init__(self, path: Path, split: str, class_names: tuple[str, ...], n_rows: int) -> None:
        self._connection = _connect_readonly(path)
        self._split = split
        self._class_names = class_names
        self._n_rows = n_rows

    @property
    def class_names(self) -> tuple[str, ...]:
        return self._class_names

    def __len__(self) -> int:
        return self._n_rows

    @overload
    def __getitem__(self, index: int) -> TextClassificationItem: ...
    @overload
    def __getitem__(self, index: slice) -> list[TextClassificationItem]: ...
    def __getitem__(self, index: int | slice) -> TextClassificationItem | list[TextClassificationItem]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._n_rows)
            return self.rows(start, stop) if step == 1 else [self[i] for i in range(start, stop, step)]
        if not -self._n_rows <= index < self._n_rows:
            raise IndexError(f"row {index} of {self._n_rows}")
        return self.rows(index % self._n_rows, index % self._n_rows + 1)[0]

    def __iter__(self) -> Iterator[TextClassificationItem]:
        # Row by row, since texts may be of any length; on a cursor of its own, so that loops may nest.
        query = "SELECT text, label FROM rows WHERE split = ? ORDER BY row"
        for row in self._connection.execute(query, (self._split,)):
            yield TextClassificationItem(*row)

    def rows(self, start: int, stop: int) -> list[TextClassificationItem]:
        query = "SELECT text, label FROM rows WHERE split = ? AND row >= ? AND row < ? ORDER BY row"
        return [TextClassificationItem(*row) for row in self._connection.execute(query, (self._split, start, stop))]

    def labels(self) -> list[int]:
        """The label of every row, in order."""
        query = "SELECT label FROM rows WHERE split = ? ORDER BY row"
        return [label for (label,) in self._connection.execute(query, (self._split,))]

    def sizes(self) -> Iterator[int]:
        """The bytes of every text in UTF-8, in order."""
        query = "SELECT length(CAST(text AS BLOB)) FROM rows WHERE split = ? ORDER BY row"
        return (size for (size,) in self._connection.execute(query, (self._split,)))


@dataclass(frozen=True, kw_only=True)
class StoredData:
    """An opened cache file: its splits by name, and the digest that names its content."""

    splits: dict[str, SqliteDataset]
    class_names: tuple[str, ...]
    origin: str
    digest: str
    notes: tuple[str, ...]
    """What there is to say of how the rows were read."""


def cache_folder() -> Path:
    """Where the cache is: TEXTCLS_CACHE, or else the platform's folder for caches."""
    if chosen := os.environ.get("TEXTCLS_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "textcls" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "textcls"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "textcls"


def open_or_build(path: Path, produce: Callable[[], Content]) -> StoredData:
    """Open the cache file at `path`; where it is missing, damaged or of another format, build it from `produce()`.

    Of several processes that call this at once, one builds and the others wait for it.
    """
    stored = _open(path)
    if stored is None:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path.with_suffix(".lock")).acquire()
        with lock:
            stored = _open(path)
            if stored is None:
                if path.is_file():
                    log.info("%s: is damaged, or of another version; building it again", path)
                with replaced(path) as temporary, _naming_faults(path):
                    _write(temporary, produce())
                stored = _open(path)
    if stored is None:
        raise RuntimeError(f"{path} was just built, but does not read back as what was written")
    return stored


@contextmanager
def _naming_faults(path: Path) -> Iterator[None]:
    """Make what SQLite calls a full or failing disk the error that `writing` makes of it."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise
        raise StorageError(
            f"{path}: can't be written ({error}); nothing was kept of it: make room, or name another folder for the "
            "cache with TEXTCLS_CACHE."
        ) from error


def _write(path: Path, content: Content) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode = OFF")  # the file is thrown away if anything fails
        connection.execute("CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        connection.execute(
            "CREATE TABLE rows (split TEXT, row INTEGER, text TEXT NOT NULL, label INTEGER NOT NULL,"
            " PRIMARY KEY (split, row)) WITHOUT ROWID"
        )
        counts: dict[str, int] = {}
        for split, items in content.splits.items():
            rows = ((split, row, item.text, item.label) for row, item in enumerate(items))
            counts[split] = connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", rows).rowcount
        about = {
            "format": FORMAT,
            "origin": content.origin,
            "class_names": json.dumps(content.class_names),
            "rows": json.dumps(counts),
            "notes": json.dumps(list(content.notes())),
            "digest": _digest(connection),
        }
        connection.executemany("INSERT INTO about VALUES (?, ?)", about.items())


def _open(path: Path) -> StoredData | None:
    """The data of a whole and unchanged cache file, or else None."""
    if not path.is_file():
        return None
    try:
        with closing(_connect_readonly(path)) as connection:
            about = dict(connection.execute("SELECT key, value FROM about"))
            if about.get("format") != FORMAT or about["digest"] != _digest(connection):
                return None
            counts: dict[str, int] = json.loads(about["rows"])
            class_names: tuple[str, ...] = tuple(json.loads(about["class_names"]))
            notes: tuple[str, ...] = tuple(json.loads(about.get("notes", "[]")))
            found = dict(connection.execute("SELECT split, count(*) FROM rows GROUP BY split"))
    except (sqlite3.Error, KeyError, ValueError):
        return None
    if found != {split: count for split, count in counts.items() if count}:
        return None
    splits = {split: SqliteDataset(path, split, class_names, count) for split, count in counts.items()}
    return StoredData(
        splits=splits, class_names=class_names, origin=about["origin"], digest=about["digest"], notes=notes
    )


def _connect_readonly(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)


def _digest(connection: sqlite3.Connection) -> str:
    """SHA-256 of every row, in order; each text is preceded by its length, so no two contents share a stream."""
    digest = hashlib.sha256()
    for split, row, text, label in connection.execute("SELECT * FROM rows ORDER BY split, row"):
        encoded = text.encode("utf-8")
        digest.update(f"{split}\0{row}\0{label}\0{len(encoded)}\0".encode())
        digest.update(encoded)
    return digest.hexdigest()
