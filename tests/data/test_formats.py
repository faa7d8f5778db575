import json
from pathlib import Path
from typing import Any

import pytest

from textcls.config import DataConfig
from textcls.data.formats import files_of, read_table, split_paths
from textcls.errors import DataError

OBJECTS: list[dict[str, Any]] = [
    {"text": "one, {two} [three]", "label": 1, "id": 7},
    {"label": -1, "text": 'a\nb \\ " ] , {'},
    {"text": None, "label": True, "tags": ["x"]},
    {"text": "🙂 日本語", "label": 2.0},
]


def read(path: Path) -> list[tuple[str, list[Any] | None]]:
    return [(place, None if cells is None else list(cells)) for place, cells in read_table(path, DataConfig()).rows()]


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(value) for value in OBJECTS[:2]) + "\n\n" + json.dumps(OBJECTS[3]))
    assert read_table(path, DataConfig()).columns == ("text", "label", "id")
    expected = [
        (f"line {n}", [o["text"], o["label"], o.get("id")])
        for n, o in zip((1, 2, 4), OBJECTS[:2] + OBJECTS[3:], strict=True)
    ]
    assert read(path) == expected


@pytest.mark.parametrize("chunk", [3, 7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_is_read_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, chunk: int
) -> None:
    path = tmp_path / "a.json"
    text = json.dumps(OBJECTS, indent=indent)
    path.write_text(f"\n {text}\n")
    table = read_table(path, DataConfig())
    monkeypatch.setattr("textcls.data.formats._CHUNK_CHARACTERS", chunk)
    rows = list(table.rows())
    assert [list(cells or ()) for _, cells in rows] == [
        [o.get(name) for name in ("text", "label", "id", "tags")] for o in OBJECTS
    ]
    lines = path.read_text().split("\n")
    starts = [f"line {n}" for n, line in enumerate(lines, 1) if line.strip() == "{"]
    assert [place for place, _ in rows] == (starts if indent else ["line 2"] * 4)


def test_a_json_file_may_have_an_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"text": "a", "label": 1}\n{"text": "b", "label": 2}\n')
    assert [cells for _, cells in read(path)] == [["a", 1], ["b", 2]]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", '{"text": "a", "label": 1}\n\n{"text": "b",', "line 3: is not JSON"),
        ("a.jsonl", '{"text": "a", "label": 1}\n["b", 2]\n', "line 2: is not a JSON object"),
        ("a.json", '[{"text": "a",\n"label": 1},\n{"text": "b" "label": 2}]', "line 3: is not JSON"),
        ("a.json", '[{"text": "a", "label": 1}\n', "line 1: is not JSON"),
        ("a.json", '[{"text": "a", "label": 1}\n{"text": "a", "label": 1}]', "line 1: is not JSON"),
        ("a.json", '[{"text": "a", "label": 1},\n3]', "line 2: is not a JSON object"),
        ("a.json", "[]", "is empty"),
        ("a.jsonl", "", "is empty"),
        ("a.jsonl", "[" * 100_000, "line 1: is not JSON"),
    ],
)
def test_broken_json_names_its_line(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=sentence):
        read(tmp_path / name)


def test_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow.parquet import write_table

    rows = {"text": [f"text {i}" if i % 7 else None for i in range(3_000)], "label": [i % 3 - 1 for i in range(3_000)]}
    write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet", DataConfig())
    assert table.columns == ("text", "label")
    assert read(tmp_path / "a.parquet") == [
        (f"row {i}", [text, label]) for i, (text, label) in enumerate(zip(*rows.values(), strict=True), 1)
    ]


def test_a_damaged_parquet_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match=r"a\.parquet: is not a readable Parquet file"):
        read_table(tmp_path / "a.parquet", DataConfig())


def test_class_folders(tmp_path: Path) -> None:
    for name, text in (("pos/b.txt", "fine\r\nreally"), ("pos/a.txt", ""), ("neg/x.txt", "naïve".encode("latin-1"))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "pos/notes.md").write_text("not a text")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/a.txt").write_text("not a class")
    assert split_paths(tmp_path) == {"train": tmp_path}
    assert read(tmp_path) == [
        ("neg/x.txt", ["naïve", "neg"]),
        ("pos/a.txt", ["", "pos"]),
        ("pos/b.txt", ["fine\r\nreally", "pos"]),
    ]
    assert [file.name for file in files_of(tmp_path)] == ["x.txt", "a.txt", "b.txt"]


@pytest.mark.parametrize("valid", ["valid.jsonl", "validation.csv", "dev.tsv", "val.parquet"])
def test_a_folder_of_splits(tmp_path: Path, valid: str) -> None:
    for name in ("train.csv", "test.tsv", valid, "readme.txt", "train.log"):
        (tmp_path / name).write_text("x")
    assert split_paths(tmp_path) == {
        "train": tmp_path / "train.csv",
        "valid": tmp_path / valid,
        "test": tmp_path / "test.tsv",
    }


def test_a_folder_of_splits_of_class_folders(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / split / "pos").mkdir(parents=True)
        (tmp_path / split / "pos" / "1.txt").write_text("a")
    assert split_paths(tmp_path) == {"train": tmp_path / "train", "test": tmp_path / "test"}


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ((), r"has no train\.csv"),
        (("test.csv",), r"has no train\.csv"),
        (("train.csv", "train.jsonl"), r"train\.csv and train\.jsonl are both train; keep one"),
    ],
)
def test_a_folder_that_cannot_be_read_is_a_sentence(tmp_path: Path, names: tuple[str, ...], sentence: str) -> None:
    for name in names:
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match=sentence):
        split_paths(tmp_path)


def test_an_unknown_kind_of_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_text("x")
    with pytest.raises(DataError, match=r"a \.xlsx file can't be read; give one of \.csv, \.tsv, \.jsonl"):
        read_table(tmp_path / "a.xlsx", DataConfig())
