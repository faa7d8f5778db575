"""Texts as they can be shown: nothing in them commands the terminal, and each stays on one line."""

import json
import unicodedata
from typing import Any

JOINERS = "\u200c\u200d"
"""The zero-width characters that emoji, Persian and the scripts of India are written with."""


def printable(text: str) -> str:
    r"""A text with its control characters, line ends and lone surrogates written out, such as \x1b."""
    return text if text.isprintable() else "".join(map(_shown, text))


def shortened(text: str, width: int) -> str:
    """A text made printable and cut to `width` characters, the last of which then says so."""
    shown = printable(text[:width])
    return shown if len(text) <= width and len(shown) <= width else f"{shown[: width - 1]}…"


def json_line(values: Any) -> str:
    """JSON on one line, readable in any script; what can't be shown is escaped, so it reads back as it was."""
    line = json.dumps(values, ensure_ascii=False)
    return line if line.isprintable() else "".join(c if _is_shown(c) else json.dumps(c)[1:-1] for c in line)


def _shown(character: str) -> str:
    return character if _is_shown(character) else character.encode("unicode_escape").decode()


def _is_shown(character: str) -> bool:
    # Python counts every space but the ASCII one as unprintable, the ideographic one of Chinese and Japanese as well.
    return character.isprintable() or character in JOINERS or unicodedata.category(character) == "Zs"
