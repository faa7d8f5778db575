"""Counts in, rates out: a metric is a sum over rows, divided once.

Shapes: B rows, C classes, K calibration bins.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

CALIBRATION_BINS = 15


@dataclass(frozen=True, kw_only=True)
class ClassScores:
    """Precision, recall and F1 of one class; 0 where the denominator is 0, as scikit-learn has it."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass
class Guesses:
    """What is summed over the hidden tokens of pretraining."""

    tokens: int = 0
    loss_sum: float = 0.0
    hits: int = 0

    def add(self, logits: Tensor, labels: Tensor, loss_sum: float) -> None:
        """Count hidden tokens: logits (N, K), labels (N,), and the cross-entropy summed over them (nats)."""
        self.tokens += len(labels)
        self.loss_sum += loss_sum
        self.hits += int((logits.detach().argmax(-1) == labels).sum())

    @property
    def loss(self) -> float:
        """Mean cross-entropy of a token, in nats."""
        return self.loss_sum / self.tokens if self.tokens else 0.0

    @property
    def accuracy(self) -> float:
        """Share of the tokens whose most probable guess is right."""
        return self.hits / self.tokens if self.tokens else 0.0

    def rates(self) -> dict[str, float]:
        """How many tokens, and the rates that are followed in pretraining."""
        return {"tokens": self.tokens, "loss": self.loss, "accuracy": self.accuracy}


@dataclass
class Counts:
    """What is summed over the rows of a split; `add` batches, then read the rates."""

    n_classes: int
    rows: int = 0
    loss_sum: float = 0.0
    confusion: Tensor = field(init=False)  # (C, C) int64, [true, predicted]
    bins: Tensor = field(init=False)  # (3, K) float64: rows, summed confidence, hits

    def __post_init__(self) -> None:
        self.confusion = torch.zeros(self.n_classes, self.n_classes, dtype=torch.int64)
        self.bins = torch.zeros(3, CALIBRATION_BINS, dtype=torch.float64)

    def add(self, logits: Tensor, labels: Tensor, loss_sum: float) -> None:
        """Count a batch: logits (B, C), labels (B,), and the cross-entropy summed over its rows (nats)."""
        logits, labels = logits.detach().float().cpu(), labels.cpu()
        predicted = logits.argmax(-1)
        flat = labels * self.n_classes + predicted
        self.confusion += torch.bincount(flat, minlength=self.n_classes**2).view_as(self.confusion)
        confidence = logits.softmax(-1).amax(-1).double()
        slot = (confidence * CALIBRATION_BINS).long().clamp(max=CALIBRATION_BINS - 1)
        values = torch.stack([torch.ones_like(confidence), confidence, (predicted == labels).double()])
        self.bins.index_add_(1, slot, values)
        self.rows += len(labels)
        self.loss_sum += loss_sum

    def rates(self) -> dict[str, float]:
        """How many rows, and the rates that are followed in training."""
        return {"rows": self.rows, "loss": self.loss, "accuracy": self.accuracy, "macro_f1": self.macro_f1}

    def confusions(self) -> list[tuple[int, int, int]]:
        """(true label, predicted label, rows) wherever they differ, most rows first."""
        wrong = self.confusion - self.confusion.diagonal().diag()
        pairs = [(true, predicted, int(wrong[true, predicted])) for true, predicted in wrong.nonzero().tolist()]
        return sorted(pairs, key=lambda pair: -pair[2])

    @property
    def loss(self) -> float:
        """Mean cross-entropy of a row, in nats."""
        return self.loss_sum / self.rows if self.rows else 0.0

    @property
    def accuracy(self) -> float:
        """Share of rows whose most probable class is the true one."""
        return float(self.confusion.trace()) / self.rows if self.rows else 0.0

    @property
    def macro_f1(self) -> float:
        """Unweighted mean of the classes' F1, over the classes that occur as a label or as a prediction."""
        seen = (self.confusion.sum(0) + self.confusion.sum(1)) > 0
        f1 = _f1(self.confusion)[seen]
        return float(f1.mean()) if len(f1) else 0.0

    @property
    def weighted_f1(self) -> float:
        """Mean of the classes' F1, weighted by their number of true rows."""
        support = self.confusion.sum(1).double()
        return float((_f1(self.confusion) * support).sum() / support.sum()) if self.rows else 0.0

    @property
    def calibration_error(self) -> float:
        """Expected calibration error over 15 equal bins: sum_k n_k/n |accuracy_k - confidence_k|.

        (Guo et al. 2017, arXiv:1706.04599)
        """
        return float((self.bins[1] - self.bins[2]).abs().sum() / self.rows) if self.rows else 0.0

    def per_class(self, names: tuple[str, ...]) -> list[ClassScores]:
        """A row a class, in label order."""
        hits = self.confusion.diagonal().double()
        precision, recall = _ratio(hits, self.confusion.sum(0)), _ratio(hits, self.confusion.sum(1))
        columns = zip(names, precision, recall, _f1(self.confusion), self.confusion.sum(1), strict=True)
        return [
            ClassScores(name=name, precision=float(p), recall=float(r), f1=float(f), support=int(n))
            for name, p, r, f, n in columns
        ]


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole.clamp(min=1), torch.zeros_like(part))


def _f1(confusion: Tensor) -> Tensor:
    """F1 = 2 TP / (2 TP + FP + FN) of each class: (C, C) -> (C,)."""
    return _ratio(2 * confusion.diagonal().double(), confusion.sum(0) + confusion.sum(1))
