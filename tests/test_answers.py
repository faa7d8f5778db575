import csv
import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import textcls
from textcls.answers import Format, answer, write_answers
from textcls.data import sources
from textcls.data.texts import UnlabelledText, numbered
from textcls.errors import DataError
from textcls.infer import CHUNK_TEXTS, Classifier


@pytest.fixture(scope="module")
def classifier(small_run: Path) -> Classifier:
    return textcls.load(small_run, device="cpu")


def items() -> list[UnlabelledText]:
    """Real texts, in more than one chunk."""
    rows = sources.load("sample").splits["train"][:]
    assert len(rows) > CHUNK_TEXTS
    return [UnlabelledText(f"n{number}", row.text) for number, row in enumerate(rows)]


def written(classifier: Classifier, form: Format, top_k: int, **rules: object) -> str:
    file = io.StringIO()
    write_answers(answer(classifier, items(), top_k=top_k, **rules), file, form, top_k)  # type: ignore[arg-type]
    return file.getvalue()


def test_both_formats_hold_the_numbers_of_predict_in_order(classifier: Classifier) -> None:
    given = items()
    expected = classifier.predict([item.text for item in given], top_k=3)
    objects = [json.loads(line) for line in written(classifier, "jsonl", 3).splitlines()]
    rows = list(csv.DictReader(io.StringIO(written(classifier, "csv", 3))))
    for item, prediction, entry, row in zip(given, expected, objects, rows, strict=True):
        assert (entry["id"], entry["text"]) == (row["id"], row["text"]) == (item.id, item.text)
        assert entry["class"] == row["class"] == prediction.class_name
        assert entry["probability"] == float(row["probability"]) == prediction.probability
        assert list(entry["probabilities"].items()) == list(prediction.probabilities.items())
        ranked = [(row[f"class_{rank}"], float(row[f"probability_{rank}"])) for rank in (1, 2, 3)]
        assert ranked == list(prediction.probabilities.items())


def test_without_top_k_there_is_the_class_alone(classifier: Classifier) -> None:
    assert set(json.loads(written(classifier, "jsonl", 0).splitlines()[0])) == {"id", "text", "class", "probability"}
    assert written(classifier, "csv", 0).splitlines()[0] == "id,text,class,probability"


@pytest.mark.parametrize("unsure", [None, "other"])
def test_below_the_threshold_the_class_is_null_or_unsure(classifier: Classifier, unsure: str | None) -> None:
    predictions = classifier.predict([item.text for item in items()])
    threshold = sorted(prediction.probability for prediction in predictions)[len(predictions) // 2]
    answers = list(answer(classifier, items(), threshold=threshold, unsure=unsure))
    assert {item.class_name for item in answers} > {unsure}
    for item, prediction in zip(answers, predictions, strict=True):
        assert item.class_name == (unsure if prediction.probability < threshold else prediction.class_name)
        assert item.probability == prediction.probability
    rows = csv.DictReader(io.StringIO(written(classifier, "csv", 0, threshold=threshold, unsure=unsure)))
    assert [row["class"] for row in rows] == [item.class_name or "" for item in answers]


def test_texts_without_end_are_read_by_chunks(classifier: Classifier) -> None:
    read = 0

    def endless() -> Iterator[UnlabelledText]:
        nonlocal read
        for item in itertools.cycle(items()):
            read += 1
            yield item

    answers = answer(classifier, endless())
    assert [item.id for item in itertools.islice(answers, CHUNK_TEXTS + 1)][-1] == f"n{CHUNK_TEXTS}"
    assert read == 2 * CHUNK_TEXTS


def test_what_was_read_before_a_bad_line_is_answered(classifier: Classifier) -> None:
    def broken() -> Iterator[UnlabelledText]:
        yield from numbered(["Shares fell.", "Goal!"])
        raise DataError("a bad line")

    file = io.StringIO()
    with pytest.raises(DataError, match="a bad line"):
        write_answers(answer(classifier, broken()), file, "jsonl", 0)
    assert [json.loads(line)["text"] for line in file.getvalue().splitlines()] == ["Shares fell.", "Goal!"]


def test_empty_in_empty_out(classifier: Classifier) -> None:
    for form, expected in (("lines", ""), ("jsonl", ""), ("csv", "id,text,class,probability\n")):
        file = io.StringIO()
        write_answers(answer(classifier, []), file, form, 0)  # type: ignore[arg-type]
        assert file.getvalue() == expected


def test_lines_and_json_hold_nothing_that_commands_a_terminal(classifier: Classifier) -> None:
    texts = ["\x1b[2J\x9b31m\a\u202e", "two\r\nlines\u2028here", "\ud83d"]
    for form, n_lines in (("lines", 2), ("jsonl", 1)):
        file = io.StringIO()
        write_answers(answer(classifier, numbered(texts), top_k=4), file, form, 4)  # type: ignore[arg-type]
        lines = file.getvalue().splitlines()
        assert len(lines) == n_lines * len(texts)
        assert all(line.isprintable() for line in lines)
