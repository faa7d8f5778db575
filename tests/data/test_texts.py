import itertools
import json
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from textcls.data.texts import MAX_FIELD, UnlabelledText, numbered, read_texts
from textcls.errors import ConfigError, DataError


def texts_of(path: Path, content: str | bytes, *columns: str) -> list[tuple[object, str]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return [(item.id, item.text) for item in read_texts(str(path), columns)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
def test_every_line_of_a_txt_is_a_text(tmp_path: Path, end: str, last: bool) -> None:
    content = end.join(["Shares fell.", "", "  a\tb ", "日本語 🙂 \u2028 \x85"]) + end * last
    expected = [(1, "Shares fell."), (2, ""), (3, "  a\tb "), (4, "日本語 🙂 \u2028 \x85")]
    assert texts_of(tmp_path / "a.txt", content) == expected
    assert texts_of(tmp_path / "A.TXT", b"\xef\xbb\xbf" + content.encode()) == expected


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_table_keeps_ids_and_quoted_line_ends(tmp_path: Path, separator: str, end: str) -> None:
    rows = [("ID", "Text", "x"), ("007", '"He said ""no"",;\t\n\nand left"', "1"), ("8", "", "2"), ("8", "NA", "")]
    content = end.join(map(separator.join, rows)) + end + end
    expected = [("007", 'He said "no",;\t\n\nand left'), ("8", ""), ("8", "NA")]
    for name in ("a.csv", "a.tsv"):
        assert texts_of(tmp_path / name, content) == expected
        assert texts_of(tmp_path / name, b"\xef\xbb\xbf" + content.encode()) == expected


def test_a_table_without_ids_counts_its_texts(tmp_path: Path) -> None:
    assert texts_of(tmp_path / "a.csv", "text\nfirst\n\nthird\n") == [(1, "first"), (2, "third")]


def test_columns_are_found_by_name_or_named_and_joined(tmp_path: Path) -> None:
    content = "Title,Body,note,Text\nBig,news,x,y\n,only,x,y\n"
    for columns, first, second in (
        ((), "y", "y"),
        (("Title", "Body"), "Big\nnews", "only"),
        (("note",), "x", "x"),
    ):
        assert texts_of(tmp_path / "a.csv", content, *columns) == [(1, first), (2, second)]
    assert texts_of(tmp_path / "a.csv", content.replace("Text", "x")) == [(1, "Big\nnews"), (2, "only")]
    lines = '{"title": "Big", "body": "news"}\n{"message": ""}\n'
    assert texts_of(tmp_path / "a.jsonl", lines) == [(1, "Big\nnews"), (2, "")]


def test_json_lines(tmp_path: Path) -> None:
    values = [{"text": "a\nb", "id": "x"}, "plain", {"text": "", "id": None}, {"id": [1], "text": "🙂"}, "\ud83d"]
    content = "\r\n\n".join(map(json.dumps, values))
    expected = [("x", "a\nb"), (2, "plain"), (3, ""), ([1], "🙂"), (5, "\ud83d")]
    assert texts_of(tmp_path / "a.jsonl", content) == expected


def test_a_very_long_text(tmp_path: Path) -> None:
    text = "word " * 200_000
    assert texts_of(tmp_path / "a.csv", f"text\n{text}\n") == [(1, text)]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl"])
def test_empty_in_empty_out(tmp_path: Path, name: str) -> None:
    for content in (b"", b"\xef\xbb\xbf"):
        assert texts_of(tmp_path / name, content) == []


@pytest.mark.parametrize(
    ("name", "content", "n_good", "sentence"),
    [
        ("a.csv", b'text,x\ngood,1\n"two\nlines",1\na,b,c\n', 2, r"a.csv, line 5: has 3 fields where .* has 2; put"),
        ("a.csv", b"text,x\ngood,1\nshort\n", 1, r"a.csv, line 3: has 1 fields where the header has 2"),
        ("a.csv", b'text\ngood\n"open\nline\n', 1, r"a.csv, line 3: its quotes don't match"),
        ("a.csv", b'text\n"open' + b"x" * MAX_FIELD, 0, r"a.csv, line 2: its quotes don't match \(field larger"),
        ("a.csv", b"name,label\na,b\n", 0, r"a.csv, line 1: no column is named text; give --text-column; .* 'label'"),
        ("a.jsonl", b'"good"\n\n{"text": \n', 1, r"a.jsonl, line 3: is not JSON \(Expecting value"),
        ("a.jsonl", b'"good"\n[1]\n', 1, r"a.jsonl, line 2: is not an object"),
        ("a.jsonl", b'"good"\n{"text": null}\n', 1, r"a.jsonl, line 2: its text is not a string"),
        ("a.jsonl", b'"good"\n{"label": "x"}\n', 1, r"a.jsonl, line 2: no column is named text; .* 'label'"),
        ("a.jsonl", b"[" * 100_000 + b"\n", 0, r"a.jsonl, line 1: is not JSON"),
    ],
)
def test_a_bad_line_is_named_after_the_good_ones_are_read(
    tmp_path: Path, name: str, content: bytes, n_good: int, sentence: str
) -> None:
    (tmp_path / name).write_bytes(content)
    items = read_texts(str(tmp_path / name))
    assert len(list(itertools.islice(items, n_good))) == n_good
    with pytest.raises(DataError, match=sentence):
        next(items)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le"])
def test_the_encoding_of_a_file_is_detected(tmp_path: Path, encoding: str) -> None:
    for name in ("a.txt", "a.csv", "a.jsonl"):
        lines = {"a.csv": ["text", "Müller", "café"], "a.jsonl": ['"Müller"', '{"text": "café"}']}
        content = "\n".join(lines.get(name, ["Müller", "café"])).encode(encoding)
        assert texts_of(tmp_path / name, content) == [(1, "Müller"), (2, "café")]


def test_an_encoding_that_is_given_is_held_to(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("text\ngood\nMüller\n".encode("cp1252"))
    assert [item.text for item in read_texts(str(path), encoding="latin-1")] == ["good", "Müller"]
    with pytest.raises(DataError, match=r"a.csv: line 3: is not in utf-8"):
        list(read_texts(str(path), encoding="utf-8"))
    with pytest.raises(ConfigError, match=r"--encoding nonsense: there is no such encoding"):
        list(read_texts(str(path), encoding="nonsense"))
    with pytest.raises(ConfigError, match=r"--encoding latin-1: standard input is read as UTF-8"):
        read_texts("-", encoding="latin-1")


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--text-column body: .*a.csv, line 1 has no such column, but 'text'"):
        texts_of(tmp_path / "a.csv", "text\na\n", "body")
    with pytest.raises(DataError, match=r"--text-column text: .* has lines of text and no columns"):
        texts_of(tmp_path / "a.txt", "a\n", "text")


def test_a_file_that_is_not_there_or_of_another_kind(tmp_path: Path) -> None:
    for name, sentence in (
        ("none.csv", "there is no such file"),
        ("a.parquet", r"give a file that ends in .txt, .csv"),
    ):
        with pytest.raises(DataError, match=sentence):
            read_texts(str(tmp_path / name))


def test_lines_are_read_only_as_they_are_asked_for(tmp_path: Path) -> None:
    # The writer gets no further ahead than the pipe and two buffers hold, so what it wrote was never whole in memory.
    pipe = tmp_path / "long.txt"
    os.mkfifo(pipe)
    written = 0

    def write() -> None:
        nonlocal written
        with suppress(BrokenPipeError), pipe.open("w") as file:
            for _ in range(1_000_000):
                file.write("a line of text\n")
                written += 1

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    items = read_texts(str(pipe))
    assert len(list(itertools.islice(items, 1_000))) == 1_000
    assert written < 100_000
    del items  # closes the pipe
    writer.join(timeout=60)
    assert not writer.is_alive()


@pytest.mark.parametrize(
    ("name", "content", "n_good", "sentence"),
    [
        ("a.txt", b"good\nM\xfcller\n", 1, r"a.txt, line 2: is not UTF-8"),
        ("a.txt", "good".encode("utf-16"), 0, r"a.txt, line 1: is not UTF-8"),
        ("a.csv", b'text\ngood\n"two\nlines"\nM\xfcller\n', 2, r"a.csv, line 5: is not UTF-8"),
    ],
)
def test_what_is_piped_must_be_utf_8(tmp_path: Path, name: str, content: bytes, n_good: int, sentence: str) -> None:
    pipe = tmp_path / name
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=[content], daemon=True).start()
    items = read_texts(str(pipe))
    assert len(list(itertools.islice(items, n_good))) == n_good
    with pytest.raises(DataError, match=sentence):
        next(items)


def test_a_file_called_like_standard_input_is_not_it(in_tmp: Path) -> None:
    (in_tmp / "-").write_text("of the file\n")
    with (in_tmp / "piped").open("w+b") as piped:
        piped.write(b"of the pipe\n")
        piped.seek(0)
        saved = os.dup(0)
        os.dup2(piped.fileno(), 0)
        try:
            assert [item.text for item in read_texts("-")] == ["of the pipe"]
        finally:
            os.dup2(saved, 0)
            os.close(saved)


def test_numbered() -> None:
    assert list(numbered(["a", "b"])) == [UnlabelledText(1, "a"), UnlabelledText(2, "b")]
