from collections.abc import Sequence
from typing import Any

import pytest

from textcls.config import DataConfig
from textcls.data.table import Table, choose, index
from textcls.errors import DataError


def table(columns: str, *rows: Sequence[Any]) -> Table:
    names = tuple(columns.split(","))
    return Table(
        name="t.csv", columns=names, rows=lambda: ((f"line {i}", row) for i, row in enumerate(rows, 2)), note=""
    )


@pytest.mark.parametrize(
    ("columns", "text", "label"),
    [
        ("text,label", ["text"], "label"),
        ("id,Category,Review Text,content", ["content"], "Category"),
        ("label,title,body", ["title", "body"], "label"),
        ("Title,Description,Class Index,class", ["Title", "Description"], "class"),
        ("headline,intent", ["headline"], "intent"),
        ("label,label_text,sentence,title", ["sentence"], "label"),
        ("TEXT,Labels", ["TEXT"], "Labels"),
        ("idx,utterance,sentiment", ["utterance"], "sentiment"),
        (",text,label", ["text"], "label"),
        ("type,text,target", ["text"], "target"),
    ],
)
def test_columns_are_found_by_name(columns: str, text: list[str], label: str) -> None:
    chosen = choose(table(columns), DataConfig())
    assert (list(chosen.text), chosen.label) == (text, label)


FOUR = [("a long text of words", "x"), ("another long text", "y"), ("a third text", "x"), ("and a fourth", "y")]


def test_columns_are_found_by_what_is_in_them() -> None:
    rows = [(i, label, text, "") for i, (text, label) in enumerate(FOUR)]
    chosen = choose(table("n,v1,v2,", *rows), DataConfig())
    assert (chosen.text, chosen.label) == (("v2",), "v1")
    assert chosen.note == "text from column v2, label from column v1"


def test_columns_without_names_of_their_own_go_by_number() -> None:
    chosen = choose(table(",", *FOUR), DataConfig())
    assert (chosen.text, chosen.label) == (("1",), "2")
    chosen = choose(table("same,same", *FOUR), DataConfig())
    assert (chosen.text, chosen.label) == (("1",), "2")


def test_what_is_set_goes_first() -> None:
    read = table("text,title,label,kind")
    chosen = choose(read, DataConfig(text_columns=("title", "text"), label_column="kind"))
    assert (chosen.text, chosen.label) == (("title", "text"), "kind")
    assert choose(read, DataConfig(text_columns=("2",), label_column="4")).text == ("2",)
    assert choose(read, DataConfig(label_column="text")).text == ("title",)
    assert (index(read, "2"), index(read, "kind")) == (1, 3)


@pytest.mark.parametrize(
    ("columns", "config", "sentence"),
    [
        (
            "a,b",
            {},
            "t.csv: which column is the label can't be told; name it with --label-column: its columns are a, b.",
        ),
        ("a,label", {}, "t.csv: which column is the text can't be told; name it with --text-column"),
        (
            "text,label",
            {"label_column": "kind"},
            "--label-column kind: t.csv has no such column; its columns are text, ",
        ),
        ("text,label,", {"text_columns": ("9",)}, "--text-column 9: t.csv has no such column; .*, 3 \\(unnamed\\)"),
        (
            "text,label",
            {"text_columns": ("text", "label"), "label_column": "label"},
            "column label can't be both text and label",
        ),
    ],
)
def test_columns_that_cannot_be_told_are_a_sentence(columns: str, config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        choose(table(columns), DataConfig(**config))


def test_two_columns_that_could_be_labels_are_not_guessed_between() -> None:
    rows = [(text, label, label.upper()) for text, label in FOUR]
    with pytest.raises(DataError, match="which column is the label can't be told"):
        choose(table("a,b,c", *rows), DataConfig())
