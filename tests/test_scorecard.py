import csv
import json
import os
from pathlib import Path

import numpy
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import classification_report, confusion_matrix, log_loss

import textcls
from textcls import artifact
from textcls.artifact import Artifact
from textcls.data import sources
from textcls.data.dataset import TextClassificationItem
from textcls.data.store import Content, StoredData, open_or_build
from textcls.metrics import CALIBRATION_BINS
from textcls.scorecard import MATRIX_CLASSES, Scorecard, save, scorecard

CPU = torch.device("cpu")
DATA = Path(os.environ.get("TEXTCLS_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
BANKING = DATA / "banking77" / "test.csv"


def make(trained: Artifact, stored: StoredData, n: int = 10) -> Scorecard:
    return scorecard(trained, stored, "test", device=CPU, dtype="f32", n_mistakes=n)


@pytest.fixture(scope="module")
def trained(small_run: Path) -> Artifact:
    return artifact.load(small_run / "model.safetensors")


def test_every_number_is_that_of_scikit_learn_on_the_predictions(trained: Artifact, small_run: Path) -> None:
    stored = sources.load("sample")
    items = stored.splits["test"][:]
    predictions = textcls.load(small_run, device="cpu").predict([item.text for item in items])
    truth = [stored.class_names[item.label] for item in items]
    predicted = [p.class_name for p in predictions]
    names = list(trained.class_names)
    found = make(trained, stored).to_dict()

    expected = classification_report(truth, predicted, labels=names, output_dict=True)
    assert (found["data"], found["split"], found["rows"]) == (stored.origin, "test", len(items))
    assert found["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-12)
    assert found["macro_f1"] == pytest.approx(expected["macro avg"]["f1-score"], abs=1e-12)
    assert found["weighted_f1"] == pytest.approx(expected["weighted avg"]["f1-score"], abs=1e-12)
    assert [row["name"] for row in found["classes"]] == names
    for row in found["classes"]:
        reference = expected[row["name"]]
        assert row["precision"] == pytest.approx(reference["precision"], abs=1e-12)
        assert row["recall"] == pytest.approx(reference["recall"], abs=1e-12)
        assert row["f1"] == pytest.approx(reference["f1-score"], abs=1e-12)
        assert row["support"] == reference["support"]
    assert found["confusion"] == confusion_matrix(truth, predicted, labels=names).tolist()

    probabilities = numpy.array([[p.probabilities[name] for name in sorted(names)] for p in predictions])
    probabilities /= probabilities.sum(1, keepdims=True)  # to the last bit of float64
    assert found["loss"] == pytest.approx(log_loss(truth, probabilities, labels=sorted(names)), rel=1e-4)
    confidence = numpy.array([p.probability for p in predictions])
    right = numpy.array([a == b for a, b in zip(truth, predicted, strict=True)])
    true, mean = calibration_curve(right, confidence, n_bins=CALIBRATION_BINS)
    rows, _ = numpy.histogram(confidence, bins=CALIBRATION_BINS, range=(0, 1))
    error = (abs(true - mean) * rows[rows > 0]).sum() / len(items)
    assert found["calibration_error"] == pytest.approx(error, abs=1e-5)


def test_the_mistakes_are_the_most_confident_ones(trained: Artifact, small_run: Path) -> None:
    stored = sources.load("sample")
    items = stored.splits["test"][:]
    predictions = textcls.load(small_run, device="cpu").predict([item.text for item in items])
    wrong = [
        (number, item, p)
        for number, (item, p) in enumerate(zip(items, predictions, strict=True), 1)
        if p.class_name != stored.class_names[item.label]
    ]
    wrong.sort(key=lambda entry: -entry[2].probability)
    assert len(wrong) > 10
    card = make(trained, stored)
    assert len(card.mistakes) == 10
    for mistake, (number, item, p) in zip(card.mistakes, wrong, strict=False):
        assert (mistake.row, mistake.text) == (number, item.text)
        assert (mistake.true, mistake.predicted) == (stored.class_names[item.label], p.class_name)
        assert mistake.confidence == pytest.approx(p.probability, abs=1e-6)
    assert make(trained, stored, n=0).mistakes == []
    assert len(make(trained, stored, n=10_000).mistakes) == len(wrong)


def test_the_files_hold_the_scorecard_and_every_row(trained: Artifact, tmp_path: Path) -> None:
    stored = sources.load("sample")
    card = make(trained, stored)
    save(card, stored, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("report.json", "classes.csv", "confusion.csv", "predictions.jsonl"),
    }
    assert json.loads((tmp_path / "report.json").read_text()) == card.to_dict()
    with (tmp_path / "classes.csv").open(newline="") as file:
        classes = [{k: v if k == "name" else float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    assert classes == card.to_dict()["classes"]
    with (tmp_path / "confusion.csv").open(newline="") as file:
        header, *matrix = csv.reader(file)
    assert tuple(header[1:]) == tuple(row[0] for row in matrix) == trained.class_names
    assert [list(map(int, row[1:])) for row in matrix] == card.judged.counts.confusion.tolist()
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert [row["row"] for row in rows] == list(range(1, 321))
    assert [row["text"] for row in rows] == [item.text for item in stored.splits["test"]]
    assert sum(row["true"] == row["predicted"] for row in rows) == card.judged.counts.confusion.trace()


def banking(path: Path) -> StoredData:
    """The 3,080 test rows of banking77."""
    with BANKING.open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["category"]) for row in csv.DictReader(file)]
    names = tuple(sorted({name for _, name in rows}))
    items = [TextClassificationItem(text, names.index(name)) for text, name in rows]
    return open_or_build(path, lambda: Content(origin="banking77", class_names=names, splits={"test": items}))


@pytest.mark.skipif(not BANKING.is_file(), reason=f"needs the rows of banking77: no {BANKING}")
def test_77_classes_stay_readable(trained: Artifact, tmp_path: Path) -> None:
    stored = banking(tmp_path / "data.sqlite")
    assert len(stored.class_names) == 77 > MATRIX_CLASSES
    model = artifact.new_model(trained.config, vocab_size=trained.tokenizer.vocab_size, n_classes=77)
    untrained = Artifact(
        model=model, config=trained.config, class_names=stored.class_names, tokenizer=trained.tokenizer
    )
    card = make(untrained, stored)
    assert card.judged.counts.rows == 3_080
    table = card.table().splitlines()
    assert all(line.isprintable() for line in table)
    assert max(len(line) for line in table[1:]) <= 2 * 40 + 40
    assert sum(any(line.startswith(name[:39]) for name in stored.class_names) for line in table) >= 77
    at = next(number for number, line in enumerate(table) if line.startswith("in truth"))
    true, predicted, n = table[at + 1].split()
    matrix = card.judged.counts.confusion.clone().fill_diagonal_(0)
    assert int(n.replace(",", "")) == matrix.max()
    labels = [next(i for i, name in enumerate(stored.class_names) if name[:39] == x[:39]) for x in (true, predicted)]
    assert matrix[labels[0], labels[1]] == matrix.max()


def test_the_table_is_safe_for_the_terminal(trained: Artifact, tmp_path: Path) -> None:
    names = (*trained.class_names[:3], "\x1b[2Jevil\n")
    items = [TextClassificationItem(f"\x1b]0;title\a {text}\r\nmore", 3) for text in ("shares", "goal", "war")]
    content = Content(origin="evil", class_names=names, splits={"test": items})
    stored = open_or_build(tmp_path / "data.sqlite", lambda: content)
    evil = Artifact(model=trained.model, config=trained.config, class_names=names, tokenizer=trained.tokenizer)
    assert all(line.isprintable() for line in make(evil, stored).table().split("\n"))
