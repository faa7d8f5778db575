"""What `textcls evaluate` shows and writes: rates, a row a class, confusions, and the most confident mistakes."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from textcls.artifact import Artifact
from textcls.data.store import StoredData
from textcls.display import json_line, printable, shortened
from textcls.evaluate import Judged, judge_split
from textcls.files import replaced, write_text
from textcls.metrics import Counts

REPORT, CLASSES, CONFUSION, PREDICTIONS = "report.json", "classes.csv", "confusion.csv", "predictions.jsonl"
MATRIX_CLASSES = 10
"""Up to here the terminal shows the whole confusion matrix, beyond it the largest confusions."""
LARGEST_CONFUSIONS = 15
NAME_WIDTH = 40
TEXT_WIDTH = 160


@dataclass(frozen=True, kw_only=True)
class JudgedRow:
    """One row with its true class and the model's."""

    row: int
    """Its number in the split, counted from 1."""
    text: str
    true: str
    predicted: str
    confidence: float
    """The probability of the predicted class."""


@dataclass(frozen=True, kw_only=True)
class Scorecard:
    """How well a classifier does on a split."""

    data: str
    split: str
    class_names: tuple[str, ...]
    judged: Judged
    mistakes: list[JudgedRow]
    """The most confident ones, most confident first."""

    def to_dict(self) -> dict[str, Any]:
        """The scorecard as plain values for JSON; the confusion matrix has a row a true class, in order."""
        counts = self.judged.counts
        return {
            "data": self.data,
            "split": self.split,
            "rows": counts.rows,
            "loss": counts.loss,
            "accuracy": counts.accuracy,
            "macro_f1": counts.macro_f1,
            "weighted_f1": counts.weighted_f1,
            "calibration_error": counts.calibration_error,
            "classes": [asdict(scores) for scores in counts.per_class(self.class_names)],
            "confusion": counts.confusion.tolist(),
            "mistakes": [asdict(mistake) for mistake in self.mistakes],
        }

    def table(self) -> str:
        """The scorecard for a terminal."""
        counts = self.judged.counts
        names = [shortened(name, NAME_WIDTH) for name in self.class_names]
        width = max(5, *map(len, names))
        lines = [
            f"rows {counts.rows:,}   accuracy {counts.accuracy:.4f}   macro-F1 {counts.macro_f1:.4f}   "
            f"weighted F1 {counts.weighted_f1:.4f}   loss {counts.loss:.4f}   "
            f"calibration error {counts.calibration_error:.4f}",
            "",
            f"{'class':<{width}}  precision  recall      F1     rows",
        ]
        lines += [
            f"{name:<{width}}  {s.precision:9.4f}  {s.recall:6.4f}  {s.f1:6.4f}  {s.support:7,}"
            for name, s in zip(names, counts.per_class(self.class_names), strict=True)
        ]
        lines += _matrix(counts, names, width) if len(names) <= MATRIX_CLASSES else _largest(counts, names, width)
        if self.mistakes:
            lines += ["", "most confident mistakes"]
        for mistake in self.mistakes:
            lines += [
                f"{mistake.confidence:.4f}  {printable(mistake.predicted)}, in truth {printable(mistake.true)} "
                f"(row {mistake.row:,})",
                f"  {shortened(mistake.text, TEXT_WIDTH)}",
            ]
        return "\n".join(lines)


def _matrix(counts: Counts, names: list[str], width: int) -> Iterator[str]:
    yield from ["", "confusion: a row is a true class, a column a predicted one, in the same order"]
    for name, row in zip(names, counts.confusion.tolist(), strict=True):
        yield f"{name:<{width}}  " + " ".join(f"{n:6}" for n in row)


def _largest(counts: Counts, names: list[str], width: int) -> Iterator[str]:
    pairs = counts.confusions()
    if pairs:
        yield from ["", f"{'in truth':<{width}}  {'taken for':<{width}}    rows  (the largest confusions)"]
    for true, predicted, n in pairs[:LARGEST_CONFUSIONS]:
        yield f"{names[true]:<{width}}  {names[predicted]:<{width}}  {n:6,}"


def scorecard(
    artifact: Artifact, stored: StoredData, split: str, *, device: torch.device, dtype: str, n_mistakes: int
) -> Scorecard:
    """Judge every row of a split, whose labels are matched to the model's by class name.

    Raises:
        DataError: the data set has a class that the model lacks, or it has no such split.
    """
    judged = judge_split(artifact, stored, split, device, dtype)
    wrong = (judged.predicted != judged.labels).nonzero().flatten()
    ranked = wrong[judged.confidence[wrong].argsort(descending=True, stable=True)]
    rows = ((row, stored.splits[split][row].text) for row in ranked[:n_mistakes].tolist())
    return Scorecard(
        data=stored.origin,
        split=split,
        class_names=artifact.class_names,
        judged=judged,
        mistakes=[_judged_row(judged, row, text, artifact.class_names) for row, text in rows],
    )


def _judged_row(judged: Judged, row: int, text: str, names: tuple[str, ...]) -> JudgedRow:
    return JudgedRow(
        row=row + 1,
        text=text,
        true=names[int(judged.labels[row])],
        predicted=names[int(judged.predicted[row])],
        confidence=float(judged.confidence[row]),
    )


def save(card: Scorecard, stored: StoredData, folder: Path) -> None:
    """Write a scorecard into a folder, each file whole or not at all.

    report.json        all of the scorecard
    classes.csv        a row a class
    confusion.csv      a row a true class, a column a predicted one
    predictions.jsonl  a line a row of the split: its number, text, true and predicted class, confidence
    """
    write_text(folder / REPORT, json_line(card.to_dict()) + "\n")
    classes = [asdict(scores) for scores in card.judged.counts.per_class(card.class_names)]
    write_text(folder / CLASSES, _csv([list(classes[0]), *(list(row.values()) for row in classes)]))
    matrix = zip(card.class_names, card.judged.counts.confusion.tolist(), strict=True)
    write_text(folder / CONFUSION, _csv([["true", *card.class_names], *([name, *row] for name, row in matrix)]))
    with replaced(folder / PREDICTIONS) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(_predictions(card, stored))


def _predictions(card: Scorecard, stored: StoredData) -> Iterator[str]:
    for row, item in enumerate(stored.splits[card.split]):
        yield json_line(asdict(_judged_row(card.judged, row, item.text, card.class_names))) + "\n"


def _csv(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
