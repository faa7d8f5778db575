from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score

from textcls import artifact, load
from textcls.data import sources
from textcls.data.dataset import TextClassificationItem
from textcls.data.store import Content, StoredData, open_or_build
from textcls.errors import DataError
from textcls.evaluate import evaluate_split, judge_split

CPU = torch.device("cpu")


def test_it_counts_what_the_predictions_say(small_run: Path) -> None:
    stored = sources.load("sample")
    counts = evaluate_split(artifact.load(small_run / "model.safetensors"), stored, "test", CPU, "f32")
    items = stored.splits["test"][:]
    predicted = [p.class_name for p in load(small_run, device="cpu").predict([item.text for item in items])]
    truth = [stored.class_names[item.label] for item in items]
    assert counts.rows == 320
    assert counts.accuracy == accuracy_score(truth, predicted)
    assert counts.macro_f1 == pytest.approx(f1_score(truth, predicted, average="macro"))


def reordered(path: Path, names: tuple[str, ...]) -> StoredData:
    """The sample's test split with its classes in another order."""
    stored = sources.load("sample")
    items = [
        TextClassificationItem(item.text, names.index(stored.class_names[item.label])) for item in stored.splits["test"]
    ]
    return open_or_build(path, lambda: Content(origin="other", class_names=names, splits={"test": items}))


def test_labels_are_matched_by_name(small_run: Path, tmp_path: Path) -> None:
    other = reordered(tmp_path / "data.sqlite", ("Technology", "Sports", "World", "Business"))
    loaded = artifact.load(small_run / "model.safetensors")
    counts = evaluate_split(loaded, other, "test", CPU, "f32")
    expected = evaluate_split(loaded, sources.load("sample"), "test", CPU, "f32")
    assert torch.equal(counts.confusion, expected.confusion)
    assert counts.loss == pytest.approx(expected.loss, abs=1e-6)


def test_other_classes_and_splits_are_a_sentence(small_run: Path) -> None:
    loaded, stored = artifact.load(small_run / "model.safetensors"), sources.load("sample")
    with pytest.raises(DataError, match=r"--split valid: .* no such split; use one of train, test"):
        evaluate_split(loaded, stored, "valid", CPU, "f32")
    with pytest.raises(DataError, match=r"its class 'World' is not one of the model's \(a, b\); finetune"):
        evaluate_split(replace(loaded, class_names=("a", "b")), stored, "test", CPU, "f32")
    many = tuple(f"c{number}" for number in range(77))
    with pytest.raises(DataError, match=r"\(c0, .*, c13 and 63 more\); finetune"):
        evaluate_split(replace(loaded, class_names=many), stored, "test", CPU, "f32")


def test_data_may_lack_a_class_of_the_model(small_run: Path, tmp_path: Path) -> None:
    names = ("Technology", "World")
    items = [
        TextClassificationItem(item.text, names.index("World")) for item in sources.load("sample").splits["test"][:80]
    ]
    content = Content(origin="other", class_names=names, splits={"test": items})
    other = open_or_build(tmp_path / "data.sqlite", lambda: content)
    counts = evaluate_split(artifact.load(small_run / "model.safetensors"), other, "test", CPU, "f32")
    assert counts.confusion.sum(1).tolist() == [80, 0, 0, 0]


def test_rows_are_judged_in_their_order(small_run: Path) -> None:
    loaded, stored = artifact.load(small_run / "model.safetensors"), sources.load("sample")
    judged = judge_split(loaded, stored, "test", CPU, "f32")
    assert judged.labels.tolist() == [item.label for item in stored.splits["test"]]
    predictions = load(small_run, device="cpu").predict([item.text for item in stored.splits["test"]])
    assert [loaded.class_names[label] for label in judged.predicted.tolist()] == [p.class_name for p in predictions]
    assert judged.confidence.tolist() == pytest.approx([p.probability for p in predictions], abs=1e-6)
