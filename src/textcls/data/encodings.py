"""Text files of any encoding: which one a file is in, and its lines."""

import codecs
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from textcls.errors import ConfigError, DataError

_CHUNK_BYTES = 1 << 20
_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before that of UTF-16, which it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_NOT_TEXT = re.compile(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]")
_BINARY_SHARE = 0.02
"""Of control characters, from which on a file is held for no text; random bytes have five times as many."""
_NOT_IN_CP1252 = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")


@dataclass(frozen=True, kw_only=True)
class TextFile:
    """A file with the encoding that it is read in."""

    path: Path
    encoding: str
    errors: str = "strict"
    """What is done with bytes that aren't of the encoding: "strict" refuses, "replace" reads each as U+FFFD."""
    note: str
    """The encoding in words, and how it was found."""

    @contextmanager
    def open(self) -> Iterator[TextIO]:
        """The text, with its line ends as they are.

        Raises:
            DataError: it is not of this encoding; the message names the line.
        """
        try:
            with self.path.open(encoding=self.encoding, errors=self.errors, newline="") as stream:
                yield stream
        except UnicodeError as error:
            line, shown = _bad_line(self.path, self.encoding), self.encoding.removesuffix("-sig")
            raise DataError(
                f"{self.path}: line {line}: is not in {shown} "
                f"({getattr(error, 'reason', error)}); give another --encoding, or none to have it detected."
            ) from None


def text_file(path: Path, encoding: str) -> TextFile:
    """A file in a given encoding, or with "auto" in the one that all of its bytes speak for.

    A byte order mark decides; then NUL bytes in every other place (UTF-16 without a mark); then whether the bytes are
    UTF-8, up to a few damaged ones; and what is none of these is taken as cp1252, or latin-1 where it can't be.

    Raises:
        ConfigError: there is no encoding of that name.
        DataError: the file is no text.
    """
    if encoding == "auto":
        return _detect(path)
    try:
        known = codecs.lookup(encoding)
        "".encode(encoding)  # refuses codecs that aren't of text, such as zip
    except (LookupError, ValueError):
        raise ConfigError(
            f"--encoding {encoding}: there is no such encoding; latin-1 is one, utf-16 another."
        ) from None
    # A mark before the text is none of it, whatever the encoding was called.
    return TextFile(
        path=path, encoding="utf-8-sig" if known.name == "utf-8" else known.name, note=f"{encoding}, as set"
    )


def _detect(path: Path) -> TextFile:
    with path.open("rb") as file:
        head = file.read(_CHUNK_BYTES)
    for mark, encoding in _BOMS.items():
        if head.startswith(mark):
            shown = encoding.removesuffix("-sig")
            return TextFile(path=path, encoding=encoding, note=f"{shown} with a byte order mark")
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        here, there = (head[start::2].count(0) for start in (first, 1 - first))
        if here > len(head) // 8 and here > 8 * there:
            return TextFile(path=path, encoding=encoding, note=encoding)
    if len(_NOT_TEXT.findall(head)) > _BINARY_SHARE * len(head):
        raise DataError(f"{path}: is not a text file; give one, or its encoding with --encoding if it is one.")
    damaged, other = _count_utf8(path)
    if damaged == 0:
        return TextFile(path=path, encoding="utf-8", note="utf-8")
    if 10 * damaged < other:
        note = f"utf-8 with {damaged:,} damaged bytes, each read as U+FFFD"
        return TextFile(path=path, encoding="utf-8", errors="replace", note=note)
    if _is_cp1252(path):
        return TextFile(path=path, encoding="cp1252", note="cp1252 (latin-1 as Windows has it), since it is not utf-8")
    return TextFile(path=path, encoding="latin-1", note="latin-1, since it is not utf-8")


def _count_utf8(path: Path) -> tuple[int, int]:
    """Of a file read as UTF-8: the bytes that can't be, and the characters beyond ASCII."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")  # which keeps each bad byte as one surrogate
    damaged = other = 0
    for chunk in _chunks(path):
        text = decoder.decode(chunk, final=not chunk)
        if not text.isascii():
            good = text.encode("utf-8", "ignore").decode()
            damaged += len(text) - len(good)
            other += len(good) - len(good.encode("ascii", "ignore"))
    return damaged, other


def _is_cp1252(path: Path) -> bool:
    return not any(_NOT_IN_CP1252.search(chunk) for chunk in _chunks(path))


def _bad_line(path: Path, encoding: str) -> int:
    """The number of the first line that an encoding can't read."""
    decoder = codecs.getincrementaldecoder(encoding)()
    line = 1
    for chunk in _chunks(path):
        for start in range(0, max(1, len(chunk)), 64):  # small pieces, since what a piece had before its fault is lost
            try:
                line += decoder.decode(chunk[start : start + 64], final=not chunk).count("\n")
            except UnicodeError as error:
                if isinstance(error, UnicodeDecodeError):
                    line += error.object[: error.start].decode(encoding, "ignore").count("\n")
                return line
    return line


def _chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file piece by piece; the last piece is empty."""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
    yield b""
