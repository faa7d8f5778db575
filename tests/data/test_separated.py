import csv
import io
import random
from pathlib import Path

import pytest

from textcls.config import DataConfig
from textcls.data.separated import MAX_CELL, read_separated
from textcls.data.table import Table
from textcls.errors import ConfigError, DataError

HARD = ["plain", "a, b; c\td|e", 'she said "hi"', "two\nlines", "it's", "'tis nice, isn't it", "ends;", "über", ""]


def table(tmp_path: Path, content: str | bytes, name: str = "a.csv", **config: str) -> Table:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_separated(path, DataConfig(**config))  # type: ignore[arg-type]  # only texts are given


def cells(read: Table) -> list[list[str] | None]:
    return [row if row is None else list(row) for _, row in read.rows()]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("quote", ['"', "'"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_what_a_csv_writer_wrote_is_read(tmp_path: Path, separator: str, quote: str, end: str) -> None:
    rows = [[text, random.Random(i).choice("xyz")] for i, text in enumerate(HARD * 5)]
    stream = io.StringIO(newline="")
    # All are quoted, since the writer leaves other line ends than its own as they are.
    writer = csv.writer(stream, delimiter=separator, quotechar=quote, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([["body", "kind of thing"], *rows])
    read = table(tmp_path, stream.getvalue())
    assert read.columns == ("body", "kind of thing")
    assert cells(read) == rows
    assert f"quoted by {quote}" in read.note


def test_text_of_a_tsv_that_nothing_quotes(tmp_path: Path) -> None:
    rows = [["a film", "pos"], ['"unbalanced', "neg"], ["fine, thanks", "pos"], ['5" screen', "neg"]] * 3
    read = table(tmp_path, "sentence\tlabel\n" + "".join("\t".join(row) + "\n" for row in rows), "a.tsv")
    assert cells(read) == rows
    assert read.note == "utf-8; separated by tabs, without quotes"


def test_single_quotes_around_every_cell(tmp_path: Path) -> None:
    read = table(tmp_path, "'text','label'\n'a','x'\n'b','y'\n")
    assert (read.columns, cells(read)) == (("text", "label"), [["a", "x"], ["b", "y"]])


def test_a_quoted_text_of_two_lines_that_look_like_rows(tmp_path: Path) -> None:
    read = table(tmp_path, 'text,label\n"one, two\nthree",a\nplain,b\n')
    assert cells(read) == [["one, two\nthree", "a"], ["plain", "b"]]


def test_a_faulty_quote_among_many_spoils_its_own_row_alone(tmp_path: Path) -> None:
    good = [[f"a, {i}", "x"] for i in range(20)]
    read = table(tmp_path, "text,label\n" + "".join(f'"{text}",x\n' for text, _ in good) + '"he said "hi" there",y\n')
    assert cells(read) == [*good, ['he said hi" there"', "y"]]


@pytest.mark.parametrize(("separator", "character"), [("tab", "\t"), ("\\t", "\t"), (";", ";"), ("~", "~")])
def test_a_set_separator(tmp_path: Path, separator: str, character: str) -> None:
    read = table(tmp_path, f"text{character}label\na,b{character}x\n", separator=separator)
    assert cells(read) == [["a,b", "x"]]


def test_a_set_quote(tmp_path: Path) -> None:
    assert cells(table(tmp_path, "text,label\n/a,b/,x\n", quote="/")) == [["a,b", "x"]]
    assert cells(table(tmp_path, 'text,label\n"a,x\n', quote="none")) == [['"a', "x"]]


@pytest.mark.parametrize("config", [{"separator": ";;"}, {"separator": ""}, {"separator": '"'}, {"quote": "ab"}])
def test_what_cannot_part_or_quote_is_refused(tmp_path: Path, config: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"^(--separator|data\.quote)"):
        table(tmp_path, "text,label\na,b\n", **config)


def test_the_first_line_of_a_row_is_named(tmp_path: Path) -> None:
    read = table(tmp_path, 'text,label\r\n\r\n"one\r\n\r\ntwo",a\r\nthree,b\r\n\r\n')
    assert [place for place, _ in read.rows()] == ["line 3", "line 6"]


def test_rows_that_do_not_fit_have_no_cells(tmp_path: Path) -> None:
    read = table(tmp_path, "text,label,\none,a\ntwo,b,\nthree\nfour,c,,\nfive, d,e,f\n")
    assert list(read.rows()) == [
        ("line 2", ["one", "a", ""]),  # the column that is missing has no name
        ("line 3", ["two", "b", ""]),
        ("line 4", None),
        ("line 5", ["four", "c", ""]),
        ("line 6", None),
    ]


@pytest.mark.parametrize(
    ("content", "header"),
    [
        ("text,label\ntext,label\n", True),  # a known name is one, whatever else
        ("v1,v2\nham,hello there\nspam,win now\n", True),
        ("ham,hello there\nspam,win now\nham,later\n", False),
        ("3,Oil climbs\n1,Vote held\n3,Shares fall\n", False),
        (",words,kind\n0,a b,x\n1,c d,y\n", True),
    ],
)
def test_a_header_is_told_from_a_row(tmp_path: Path, content: str, header: bool) -> None:
    read = table(tmp_path, content)
    first = tuple(content.splitlines()[0].split(","))
    assert read.columns == (first if header else ("", ""))
    assert len(cells(read)) == content.count("\n") - header
    assert ("no header" in read.note) != header


def test_a_set_column_makes_a_header(tmp_path: Path) -> None:
    content = "ham,hello there\nham,win now\n"
    assert table(tmp_path, content, label_column="ham").columns == ("ham", "hello there")


@pytest.mark.parametrize("first", ['"never closed', 'fine,x\n"label before text'])
def test_a_quote_that_is_never_closed_names_its_line(tmp_path: Path, first: str) -> None:
    good = "".join(f'"text {i}, quoted",x\n' for i in range(20_000))  # beyond the sample that finds the dialect
    read = table(tmp_path, f"text,label\n{good}{first},a\nmore,b\nand,c\n")
    with pytest.raises(DataError, match=rf"a\.csv: line {20_002 + first.count(chr(10))}: a quote that opens there"):
        list(read.rows())


def test_long_cells_are_read_up_to_a_bound(tmp_path: Path) -> None:
    long = "x" * 1_000_000
    assert cells(table(tmp_path, f"text,label\n{long},a\n")) == [[long, "a"]]
    with pytest.raises(DataError, match="line 3: a cell is longer than 16,777,216 characters"):
        cells(table(tmp_path, f"text,label\nok,b\n{'x' * (MAX_CELL + 1)},a\n"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is empty; a table of texts and labels is needed"),
        ("\n\r\n\n", "is empty"),
        ("text\none\n", "line 1: only one column was found, 'text'"),
    ],
)
def test_what_is_no_table_is_a_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        table(tmp_path, content)


def test_nul_bytes_part_nothing(tmp_path: Path) -> None:
    assert cells(table(tmp_path, b"te\0xt,label\na\0b,x\n")) == [["a\0b", "x"]]
    assert table(tmp_path, b"te\0xt,label\na\0b,x\n").columns == ("text", "label")


def test_rows_are_read_as_asked_for(tmp_path: Path) -> None:
    """A file of 40 MB is not held: reading it takes no more than a few."""
    import tracemalloc

    read = table(tmp_path, "text,label\n" + f"{'word ' * 40},a\n" * 200_000)
    tracemalloc.start()
    assert sum(1 for _ in read.rows()) == 200_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000
