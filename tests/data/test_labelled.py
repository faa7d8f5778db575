import csv
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import conftest
import pytest

from textcls.config import DataConfig
from textcls.data import sources
from textcls.data.labelled import class_order
from textcls.data.store import StoredData
from textcls.errors import DataError

pytestmark = pytest.mark.usefixtures("own_cache")


def write(path: Path, rows: Sequence[Sequence[str]], header: Sequence[str] = ("text", "label")) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


def many(n: int = 20, labels: str = "ab") -> list[list[str]]:
    return [[f"text {i}", labels[i % len(labels)]] for i in range(n)]


def pairs(stored: StoredData, split: str) -> list[tuple[str, str]]:
    return [(item.text, stored.class_names[item.label]) for item in stored.splits[split]]


def load(path: Path, **config: Any) -> StoredData:
    return sources.load(str(path), DataConfig(**config))


@pytest.mark.parametrize(
    ("labels", "ordered"),
    [
        (("10", "2", "-1", "0"), ("-1", "0", "2", "10")),
        (("b", "10", "2"), ("10", "2", "b")),
        (("1.5", "-2", "10.0"), ("-2", "1.5", "10.0")),
        (("01", "1", "+1"), ("+1", "01", "1")),
        (("1e3", "2"), ("1e3", "2")),
        (("9" * 400, "1"), ("1", "9" * 400)),
    ],
)
def test_numbers_are_ordered_by_size_and_the_rest_by_text(labels: tuple[str, ...], ordered: tuple[str, ...]) -> None:
    assert class_order(labels) == ordered == class_order(labels[::-1])


class TestCarving:
    def test_every_class_in_proportion_and_no_row_lost(self, tmp_path: Path) -> None:
        rows = [[f"text {i}", "rare" if i % 10 == 0 else "often"] for i in range(1_000)]
        stored = load(write(tmp_path / "a.csv", rows))
        assert Counter(label for _, label in pairs(stored, "test")) == {"often": 180, "rare": 20}
        assert sorted(pairs(stored, "train") + pairs(stored, "test")) == sorted(map(tuple, rows))
        assert "no test split: 200 of 1,000 rows were carved for it" in " ".join(stored.notes)

    def test_it_is_a_function_of_content_and_seed(self, tmp_path: Path) -> None:
        path, again = (write(tmp_path / name, many(200)) for name in ("a.csv", "b.csv"))
        chosen = pairs(load(path), "test")
        assert chosen == pairs(load(again), "test")
        assert chosen != pairs(load(path, split_seed=1), "test")
        shuffled = write(tmp_path / "c.csv", many(200)[::-1])
        assert sorted(chosen) == sorted(pairs(load(shuffled), "test"))

    def test_equal_texts_are_on_one_side(self, tmp_path: Path) -> None:
        stored = load(write(tmp_path / "a.csv", many(60) * 3))
        train, test = (set(pairs(stored, split)) for split in ("train", "test"))
        assert train & test == set()
        assert len(train) + len(test) == 60

    def test_too_few_rows_are_a_sentence(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"a\.csv: has too few different texts for a test split"):
            load(write(tmp_path / "a.csv", [["one", "a"], ["two", "b"]]))


class TestLabels:
    @pytest.mark.parametrize("suffix", ["csv", "jsonl"])
    def test_integers_of_any_values(self, tmp_path: Path, suffix: str) -> None:
        rows = [(f"text {i}", (-3, 2, 10)[i % 3]) for i in range(30)]
        path = tmp_path / f"a.{suffix}"
        if suffix == "csv":
            write(path, [[text, str(label)] for text, label in rows])
        else:
            path.write_text("".join(f'{{"text": "{text}", "label": {label}}}\n' for text, label in rows))
        stored = load(path)
        assert stored.class_names == ("-3", "2", "10")
        assert sorted(pairs(stored, "train") + pairs(stored, "test")) == sorted((t, str(n)) for t, n in rows)

    def test_a_label_that_train_lacks_is_named_with_count_and_line(self, tmp_path: Path) -> None:
        write(tmp_path / "train.csv", many())
        write(tmp_path / "test.csv", [["x", "a"], ["y", "refund"], ["z", "refund"]])
        with pytest.raises(
            DataError, match=r"test\.csv: line 3: the label 'refund' \(2 rows\) is none of those in .*train\.csv"
        ):
            load(tmp_path)

    def test_one_class_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"a\.csv: every row has the label 'a'; a classifier needs two classes"):
            load(write(tmp_path / "a.csv", many(labels="a")))
        with pytest.raises(DataError, match=r"the label 'a' \(rows without a label, skipped: 1 \(first: line 2\)\)"):
            load(write(tmp_path / "b.csv", [["x", ""], *many(labels="a")]))

    def test_a_column_of_values_is_no_column_of_classes(self, tmp_path: Path) -> None:
        for n in (30, 300):
            rows = [[f"text {i}", str(i)] for i in range(n)]
            with pytest.raises(DataError, match=f"column label has {n} different labels in {n} rows, too many"):
                load(write(tmp_path / "a.csv", rows))

    def test_space_around_a_label_is_no_part_of_it(self, tmp_path: Path) -> None:
        assert load(write(tmp_path / "a.csv", [*many(), ["more", " a "]])).class_names == ("a", "b")

    def test_imbalance_is_shown(self, tmp_path: Path) -> None:
        rows = [[f"text {i}", "rare" if i % 10 == 0 else "often"] for i in range(100)]
        assert load(write(tmp_path / "a.csv", rows)).notes[-1] == "classes: often 72, rare 8 rows"
        rows = [[f"text {i}", f"c{i % 20}" if i < 400 else "big"] for i in range(500)]
        assert load(write(tmp_path / "b.csv", rows)).notes[-1] == "21 classes, of 16 (c0) to 80 (big) rows"


class TestQuirks:
    def test_rows_that_cannot_be_used_are_skipped_counted_and_located(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.csv", [*many(), ["", "a"], [" \t", "b"], ["no label", ""], ["ragged"]])
        with path.open("a") as stream:
            stream.write("one,a,too many\n")
        stored = load(path)
        assert len(pairs(stored, "train")) + len(pairs(stored, "test")) == 20
        (note,) = [note for note in stored.notes if "skipped" in note]
        assert note == (
            f"{path}: empty texts, skipped: 2 (first: line 22), rows without a label, skipped: 1 (first: line 24), "
            "rows with too few or too many cells, skipped: 2 (first: line 25)"
        )

    def test_null_and_na_are_texts_but_json_s_null_is_none(self, tmp_path: Path) -> None:
        rows = [*many(), ["null", "a"], ["NA", "b"], ["NaN", "a"], ["None", "b"]]
        stored = load(write(tmp_path / "a.csv", rows))
        texts = {text for text, _ in pairs(stored, "train") + pairs(stored, "test")}
        assert {"null", "NA", "NaN", "None"} <= texts
        objects = [
            *(f'{{"text": "{text}", "label": "{label}"}}' for text, label in rows),
            '{"text": null, "label": "a"}',
        ]
        (tmp_path / "b.jsonl").write_text("\n".join(objects))
        assert "empty texts, skipped: 1 (first: line 25)" in " ".join(load(tmp_path / "b.jsonl").notes)

    def test_nul_and_lone_surrogates_are_taken_out_and_counted(self, tmp_path: Path) -> None:
        objects = [f'{{"text": "{text}", "label": "{label}"}}' for text, label in many()]
        objects += ['{"text": "a\\u0000b \\ud83d c", "label": "a"}', '{"text": "🙂 \\ud83d\\ude42", "label": "b"}']
        (tmp_path / "a.jsonl").write_text("\n".join(objects), encoding="utf-8")
        stored = load(tmp_path / "a.jsonl")
        texts = {text for text, _ in pairs(stored, "train") + pairs(stored, "test")}
        assert {"ab \ufffd c", "🙂 🙂"} <= texts
        notes = " ".join(stored.notes)
        assert "NUL characters, which are left out: 1 (first: line 21)" in notes
        assert "lone surrogates, read as U+FFFD: 1 (first: line 21)" in notes

    @pytest.mark.parametrize(
        "text", ["🙂👨‍👩‍👧 ok", "مرحبا بالعالم", "我喜欢这部电影", "a" * 200_000, "two\nlines", "'; DROP TABLE rows"]
    )
    def test_any_text_comes_back_as_it_was(self, tmp_path: Path, text: str) -> None:
        stored = load(write(tmp_path / "a.csv", [*many(), [text, "a"]]))
        assert text in {own for own, _ in pairs(stored, "train") + pairs(stored, "test")}

    def test_line_ends_are_no_difference(self, tmp_path: Path) -> None:
        text = "".join(f'"one\n{text}",{label}\n' for text, label in [("text", "label"), *many(40)])
        for name, end in (("a.csv", "\n"), ("b.csv", "\r\n"), ("c.csv", "\r")):
            (tmp_path / name).write_bytes(text.replace("\n", end).encode())
        a, b, c = (load(tmp_path / f"{name}.csv", text_columns=("1",), label_column="2") for name in "abc")
        assert a.digest == b.digest == c.digest

    def test_several_text_columns_are_joined(self, tmp_path: Path) -> None:
        rows = [[f"title {i}", f"body {i}" if i else "", "ab"[i % 2]] for i in range(20)]
        stored = load(write(tmp_path / "a.csv", rows, ("title", "body", "label")))
        texts = {text for text, _ in pairs(stored, "train") + pairs(stored, "test")}
        assert texts == {"title 0", *(f"title {i}\nbody {i}" for i in range(1, 20))}

    def test_numbers_and_booleans_of_json(self, tmp_path: Path) -> None:
        objects = [f'{{"text": {i}.5, "label": {"true" if i % 2 else 2.0}}}' for i in range(20)]
        (tmp_path / "a.jsonl").write_text("\n".join(objects))
        stored = load(tmp_path / "a.jsonl")
        assert stored.class_names == ("2", "true")
        assert ("0.5", "2") in pairs(stored, "train") + pairs(stored, "test")
        (tmp_path / "b.jsonl").write_text('{"text": ["a"], "label": 1}\n')
        with pytest.raises(DataError, match=r"b\.jsonl: line 1: column text holds a list"):
            load(tmp_path / "b.jsonl")

    def test_nothing_to_read_is_a_sentence(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"a\.csv: has no row with both a text and a label"):
            load(write(tmp_path / "a.csv", []))
        with pytest.raises(
            DataError, match=r"no row with both .* \(rows without a label, skipped: 2 \(first: line 2\)\)"
        ):
            load(write(tmp_path / "b.csv", [["x", ""], ["y", ""]]))


class TestDuplicates:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        write(tmp_path / "train.csv", [*many(10), ["text 1", "b"], ["text 1", "b"], ["in test", "a"], ["text 2", "b"]])
        write(tmp_path / "valid.csv", [["v", "a"], ["in test", "a"], ["text 3", "b"]])
        write(tmp_path / "test.csv", [["in test", "a"], ["t", "b"], ["t", "b"]])
        return tmp_path

    def test_they_are_counted_and_located(self, folder: Path) -> None:
        stored = load(folder)
        assert [len(pairs(stored, split)) for split in ("train", "valid", "test")] == [14, 3, 3]
        (note,) = [note for note in stored.notes if note.startswith("duplicates")]
        assert note == (
            "duplicates, kept (see --drop-duplicates): "
            "train: rows whose text is in a later split too: 2 (first: line 5), "
            "rows that repeat an earlier text: 3 (first: line 12); "
            "valid: rows whose text is in a later split too: 1 (first: line 3); "
            "test: rows that repeat an earlier text: 1 (first: line 4)"
        )
        assert "texts that come with more than one label: 1" in stored.notes

    def test_they_are_dropped_on_request(self, folder: Path) -> None:
        stored = load(folder, drop_duplicates=True)
        assert pairs(stored, "train") == [tuple(row) for row in many(10) if row[0] != "text 3"]
        assert pairs(stored, "valid") == [("v", "a"), ("text 3", "b")]
        assert pairs(stored, "test") == [("in test", "a"), ("t", "b")]
        assert any(note.startswith("duplicates, dropped") for note in stored.notes)

    def test_without_any_nothing_is_said(self, tmp_path: Path) -> None:
        assert not any("duplicate" in note for note in load(write(tmp_path / "a.csv", many())).notes)


def test_a_file_to_evaluate_on_is_read_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", many(labels="a"))
    stored = sources.load(str(path), DataConfig(), whole=True)
    assert stored.splits.keys() == {"test"}
    assert pairs(stored, "test") == [tuple(row) for row in many(labels="a")]


def test_the_notes_are_said_again_from_the_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.csv", many())
    caplog.set_level(logging.INFO, "textcls")
    load(path)
    first = caplog.messages
    caplog.clear()
    load(path)
    assert first == [f"reading {path}", *caplog.messages]
    assert f'{path}: utf-8; separated by commas, quoted by "; text from column text, label from column label' in first


DATA = conftest.HUB.parents[1] / "data"


@pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the example files: no {DATA}")
class TestRealFiles:
    def test_banking77(self) -> None:
        stored = load(DATA / "banking77")
        assert len(stored.class_names) == 77
        for split, n in (("train", 10_003), ("test", 3_080)):
            with (DATA / "banking77" / f"{split}.csv").open(encoding="utf-8", newline="") as stream:
                expected = [(row["text"].replace("\r\n", "\n"), row["category"]) for row in csv.DictReader(stream)]
            assert pairs(stored, split) == expected
            assert len(expected) == n
        assert any("\n" in text for text, _ in pairs(stored, "train"))

    def test_sms_spam(self) -> None:
        stored = load(DATA / "sms_spam" / "spam.csv")
        with (DATA / "sms_spam" / "spam.csv").open(encoding="cp1252", newline="") as stream:
            expected = [(row["v2"].replace("\r", "\n"), row["v1"]) for row in csv.DictReader(stream)]
        assert sorted(pairs(stored, "train") + pairs(stored, "test")) == sorted(expected)
        assert Counter(label for _, label in pairs(stored, "test")) == {"ham": 965, "spam": 149}
        assert "text from column v2, label from column v1" in stored.notes[0]
        assert "latin-1" in stored.notes[0]
