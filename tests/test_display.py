import json

import pytest

from textcls.display import json_line, printable, shortened

SHOWN = ["Müller", "日本語　東京", "👩‍💻 ❤️", "می‌خواهم", "non\u00a0breaking", "back\\slash", ""]
HIDDEN = ["\x1b[2J", "\x9b31m", "bell\a", "a\r\nb", "\u202eevil", "\u2028", "\x7f", "\ud83d", "nul\0", "\U000e0041"]


@pytest.mark.parametrize("text", SHOWN)
def test_what_people_write_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == text
    assert json_line(text) == f'"{text}"'.replace("\\", "\\\\")


@pytest.mark.parametrize("text", HIDDEN)
def test_what_commands_a_terminal_is_written_out(text: str) -> None:
    for shown in (printable(text), json_line({"text": text}), shortened(text, 100)):
        assert shown.isprintable()
        assert "\\" in shown


def test_the_json_of_every_character_is_one_line_and_reads_back_as_it_was() -> None:
    for first in range(0, 0x110000, 0x1000):
        text = "".join(map(chr, reversed(range(first, first + 0x1000))))  # no high surrogate before a low one
        line = json_line({"text": text})
        assert len(line.splitlines()) == 1
        assert json.loads(line) == {"text": text}


def test_shortened_keeps_the_width() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("abcd", 3) == "ab…"
    assert len(shortened("\0" * 1_000, 20)) == 20
    assert shortened("\0" * 5, 20) == r"\x00\x00\x00\x00\x00"
