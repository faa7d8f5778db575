import random
from pathlib import Path

import pytest

from textcls.data.encodings import text_file
from textcls.errors import ConfigError, DataError

TEXT = "text,label\r\nnaïve café Łódź,a\n日本語 مرحبا 🙂,b\n" * 3
EUROPEAN = "text,label\nnaïve café,a\nüber die Straße,b\n"


def read(path: Path, encoding: str = "auto") -> str:
    with text_file(path, encoding).open() as stream:
        return stream.read()


@pytest.mark.parametrize(
    ("encoding", "prefix", "note"),
    [
        ("utf-8", b"", "utf-8"),
        ("utf-8-sig", b"", "utf-8 with a byte order mark"),
        ("utf-16", b"", "utf-16 with a byte order mark"),
        ("utf-16-be", b"\xfe\xff", "utf-16 with a byte order mark"),
        ("utf-16-le", b"", "utf-16-le"),
        ("utf-16-be", b"", "utf-16-be"),
        ("utf-32", b"", "utf-32 with a byte order mark"),
    ],
)
def test_unicode_is_detected(tmp_path: Path, encoding: str, prefix: bytes, note: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(prefix + TEXT.encode(encoding))
    assert text_file(path, "auto").note == note
    assert read(path) == TEXT


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_what_is_not_unicode_is_of_the_latin_family(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.csv"
    text = EUROPEAN + ("“quoted” 5 €" if encoding == "cp1252" else "\x81")
    path.write_bytes(text.encode(encoding))
    file = text_file(path, "auto")
    assert file.encoding == encoding
    assert file.note.startswith(encoding)
    assert "latin-1" in file.note
    assert read(path) == text


def test_a_few_damaged_bytes_leave_the_rest_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes((EUROPEAN * 20).encode() + b"caf\xe9,a\n" + "\ud800".encode("utf-8", "surrogatepass"))
    assert text_file(path, "auto").note == "utf-8 with 4 damaged bytes, each read as U+FFFD"
    assert read(path).startswith(EUROPEAN * 20 + "caf\ufffd,a\n\ufffd")


def test_a_fault_far_into_a_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"plain,a\n" * 400_000 + "naïve,b\n".encode("latin-1"))
    assert text_file(path, "auto").encoding == "cp1252"


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_character_that_two_chunks_share_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    monkeypatch.setattr("textcls.data.encodings._CHUNK_BYTES", cut)
    path = tmp_path / "a.csv"
    path.write_bytes(TEXT.encode())
    assert text_file(path, "auto").encoding == "utf-8"


def test_a_set_encoding_is_used_and_its_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(TEXT.encode("utf-8-sig"))
    assert read(path, "utf8") == TEXT
    path.write_bytes("Привет".encode("cp1251"))
    assert read(path, "cp1251") == "Привет"
    assert text_file(path, "cp1251").note == "cp1251, as set"


@pytest.mark.parametrize("encoding", ["klingon", "zip", "hex", "a\0b", ""])
def test_an_unknown_encoding_is_refused(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(ConfigError, match="there is no such encoding"):
        text_file(tmp_path / "a.csv", encoding)


@pytest.mark.parametrize("lines", [0, 1, 77, 5_000])
def test_a_wrong_encoding_names_the_line(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "a.csv"
    width = random.Random(lines).randint(1, 200)
    path.write_bytes(("ï" * width + "\n").encode() * lines + b"x caf\xe9 y\n" + b"more\n" * 100)
    with pytest.raises(DataError, match=rf"a\.csv: line {lines + 1}: is not in utf-8"):
        read(path, "utf-8")


def test_a_file_that_is_no_text_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(random.Random(0).randbytes(5_000))
    with pytest.raises(DataError, match=r"a\.csv: is not a text file"):
        text_file(path, "auto")
