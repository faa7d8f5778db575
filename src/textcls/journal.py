"""What a run says while it goes: notes and a bar on stderr, experiment.log and metrics.jsonl in its folder."""

import json
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from filelock import FileLock, Timeout
from tqdm import tqdm

from textcls.artifact import LOG, METRICS
from textcls.errors import ArtifactError, StorageError
from textcls.files import writing

PLAIN_INTERVAL_S = 30
LOCK = ".lock"
log = logging.getLogger("textcls")

T = TypeVar("T")


class _TerminalHandler(logging.Handler):
    """Writes notes to stderr, above the bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


class _LogFile(logging.FileHandler):
    """Stops the run where a line can't be written, rather than print a traceback for each."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the standard library's name
        with writing(Path(self.baseFilename)):
            raise  # the error that is being handled


def show_notes() -> None:
    """Let the package's notes appear on stderr."""
    if not any(isinstance(handler, _TerminalHandler) for handler in log.handlers):
        log.addHandler(_TerminalHandler())
    log.setLevel(logging.INFO)


class Journal:
    """The record of one run.

    Its files are opened with the first thing that they have to keep. Until then what is noted is held in memory: a
    command that fails before it trains leaves the folder as it was.
    """

    def __init__(self, folder: Path, *, resume: bool = False) -> None:
        """Lock the folder: to go on writing its files if resuming, else to write them afresh.

        Raises:
            StorageError: the folder can't be made, or another process is training into it.
        """
        self._folder, self._mode = folder, "a" if resume else "w"
        self._metrics: IO[str] | None = None
        self._file: _LogFile | None = None
        self._notes = logging.handlers.MemoryHandler(100_000, flushLevel=logging.CRITICAL + 1, flushOnClose=False)
        self._lock = FileLock(folder / LOCK)  # which the system frees when its holder dies
        self._made = not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise StorageError(f"{folder}: another training is writing there; wait for it, or give --out.") from None
        except OSError as error:
            raise self._not_writable(error) from error
        log.addHandler(self._notes)
        log.setLevel(logging.INFO)

    def _not_writable(self, error: OSError) -> StorageError:
        return StorageError(f"{self._folder}: can't be written ({error.strerror}); give a folder with --out.")

    def _opened(self) -> IO[str]:
        """metrics.jsonl; the first time it opens both files, and writes down what was noted so far."""
        if self._metrics is None:
            try:
                self._metrics = (self._folder / METRICS).open(self._mode, encoding="utf-8")
                self._file = _LogFile(self._folder / LOG, mode=self._mode, encoding="utf-8")
            except OSError as error:
                raise self._not_writable(error) from error
            self._file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            self._notes.setTarget(self._file)
            self._notes.flushLevel = logging.NOTSET  # from now on each note at once
            self._notes.flush()
        return self._metrics

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        log.removeHandler(self._notes)
        for file in (self._file, self._metrics):
            with suppress(OSError):  # each line was flushed; one that could not be has raised its error already
                if file is not None:
                    file.close()
        self._lock.release()
        if self._made and self._metrics is None:
            with suppress(OSError):  # somebody else has put something there
                (self._folder / LOCK).unlink(missing_ok=True)
                self._folder.rmdir()

    def metrics(self, values: dict[str, Any]) -> None:
        """Append an object to metrics.jsonl."""
        file = self._opened()
        with writing(Path(file.name)):
            file.write(json.dumps(values) + "\n")
            file.flush()

    def sync(self) -> int:
        """Flush metrics.jsonl down to the disk: its size in bytes, for `rewind`."""
        file = self._opened()
        with writing(Path(file.name)):
            os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size

    def rewind(self, size: int) -> None:
        """Cut metrics.jsonl back to `size` bytes: what was written after the checkpoint will be written again.

        Raises:
            ArtifactError: it has fewer; lines were lost that no resumed run would write again.
        """
        file = self._opened()
        if (present := os.fstat(file.fileno()).st_size) < size:
            raise ArtifactError(
                f"{file.name}: has {present} bytes, and had {size} at the checkpoint; put the file back that "
                "was there, or train anew with --overwrite."
            )
        file.truncate(size)


class Bar:
    """Progress: a bar on a terminal, else a plain line now and then."""

    def __init__(self, title: str, total: int | None, start: int, unit: str) -> None:
        self._bar = tqdm(total=total, initial=start, desc=title, unit=unit, disable=not sys.stderr.isatty())
        self._title, self._done = title, start
        self._line = f"%s: {unit} %s" + ("" if total is None else f" of {total:,}")
        self._last = time.monotonic()

    def advance(self, state: dict[str, str]) -> None:
        """One step is done."""
        self._done += 1
        self._bar.set_postfix(state, refresh=False)
        self._bar.update()
        if self._bar.disable and time.monotonic() - self._last > PLAIN_INTERVAL_S:
            self._last = time.monotonic()
            shown = "".join(f", {name} {value}" for name, value in state.items())
            log.info(self._line + "%s", self._title, f"{self._done:,}", shown)

    def close(self) -> None:
        """Take the bar off the terminal."""
        self._bar.close()


@contextmanager
def bar(title: str, total: int | None, start: int = 0, unit: str = "step") -> Iterator[Bar]:
    """A `Bar` that is closed whatever happens; without a total it counts."""
    shown = Bar(title, total, start, unit)
    try:
        yield shown
    finally:
        shown.close()


def counted(title: str, items: Iterable[T], unit: str) -> Iterator[T]:
    """The items as they come, with a `Bar` that counts those done with."""
    with bar(title, None, unit=unit) as shown:
        for item in items:
            yield item
            shown.advance({})
