"""What a run says while it goes: notes and a bar on stderr, experiment.log and metrics.jsonl in its folder."""

import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from tqdm import tqdm

from textcls.artifact import LOG, METRICS

PLAIN_INTERVAL_S = 30
log = logging.getLogger("textcls")

T = TypeVar("T")


class _TerminalHandler(logging.Handler):
    """Writes notes to stderr, above the bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


def show_notes() -> None:
    """Let the package's notes appear on stderr."""
    if not any(isinstance(handler, _TerminalHandler) for handler in log.handlers):
        log.addHandler(_TerminalHandler())
    log.setLevel(logging.INFO)


class Journal:
    """The record of one run."""

    def __init__(self, folder: Path, *, resume: bool = False) -> None:
        """Open the folder's files: to go on writing if resuming, else afresh."""
        folder.mkdir(parents=True, exist_ok=True)
        mode = "a" if resume else "w"
        self._metrics = (folder / METRICS).open(mode, encoding="utf-8")
        self._handler = logging.FileHandler(folder / LOG, mode=mode, encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(self._handler)
        log.setLevel(logging.INFO)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        log.removeHandler(self._handler)
        self._handler.close()
        self._metrics.close()

    def metrics(self, values: dict[str, Any]) -> None:
        """Append an object to metrics.jsonl."""
        self._metrics.write(json.dumps(values) + "\n")
        self._metrics.flush()

    @property
    def metrics_bytes(self) -> int:
        """The size of metrics.jsonl."""
        return self._metrics.tell()

    def rewind(self, size: int) -> None:
        """Cut metrics.jsonl back to `size` bytes: what was written after the checkpoint will be written again."""
        self._metrics.seek(size)
        self._metrics.truncate()


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
