import numpy
import pytest
import torch
from sklearn import metrics as sklearn_metrics
from sklearn.calibration import calibration_curve

from textcls.metrics import CALIBRATION_BINS, Counts


def counted(logits: torch.Tensor, labels: torch.Tensor, batch: int) -> Counts:
    counts = Counts(logits.shape[1])
    for part, truth in zip(logits.split(batch), labels.split(batch), strict=True):
        loss = torch.nn.functional.cross_entropy(part, truth, reduction="sum")
        counts.add(part, truth, loss.item())
    return counts


def test_equal_to_scikit_learn_whatever_the_batches() -> None:
    labels = torch.randint(5, (997,))
    logits = torch.randn(997, 5) + 1.5 * torch.nn.functional.one_hot(labels, 5)
    predicted = logits.argmax(-1)
    names = tuple("abcde")
    expected = sklearn_metrics.precision_recall_fscore_support(labels, predicted)
    for batch in (1, 32, 997):
        counts = counted(logits, labels, batch)
        assert counts.rows == 997
        assert counts.accuracy == sklearn_metrics.accuracy_score(labels, predicted)
        assert counts.macro_f1 == pytest.approx(sklearn_metrics.f1_score(labels, predicted, average="macro"), abs=1e-12)
        weighted = sklearn_metrics.f1_score(labels, predicted, average="weighted")
        assert counts.weighted_f1 == pytest.approx(weighted, abs=1e-12)
        assert counts.loss == pytest.approx(sklearn_metrics.log_loss(labels, logits.double().softmax(-1)), rel=1e-5)
        assert counts.confusion.tolist() == sklearn_metrics.confusion_matrix(labels, predicted).tolist()
        for i, scores in enumerate(counts.per_class(names)):
            own = (scores.precision, scores.recall, scores.f1, scores.support)
            assert own == pytest.approx(tuple(column[i] for column in expected), abs=1e-12)


def test_a_class_that_never_occurs_counts_for_nothing() -> None:
    labels, predicted = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])
    counts = counted(torch.nn.functional.one_hot(predicted, 4).float(), labels, 3)
    assert counts.macro_f1 == pytest.approx(sklearn_metrics.f1_score(labels, predicted, average="macro"))
    assert counts.per_class(tuple("abcd"))[3].f1 == 0


def test_no_rows_give_zero_not_a_crash() -> None:
    counts = Counts(3)
    assert (counts.accuracy, counts.loss, counts.macro_f1, counts.weighted_f1, counts.calibration_error) == (0,) * 5


def test_calibration_error_by_hand() -> None:
    # Two rows of confidence 0.9, one right: |0.9 - 0.5| over both; two of 0.6, both right: |0.6 - 1| over both.
    confidence = torch.tensor([0.9, 0.9, 0.6, 0.6], dtype=torch.float64)
    logits = torch.stack([confidence, 1 - confidence], 1).log()
    counts = counted(logits, torch.tensor([0, 1, 0, 0]), 4)
    assert counts.calibration_error == pytest.approx(0.5 * 0.4 + 0.5 * 0.4, abs=1e-6)


def test_calibration_error_agrees_with_scikit_learn() -> None:
    labels = torch.randint(4, (2_000,))
    logits = torch.randn(2_000, 4) + torch.nn.functional.one_hot(labels, 4)
    confidence, predicted = logits.softmax(-1).max(-1)
    right = (predicted == labels).numpy()
    true, mean = calibration_curve(right, confidence.numpy(), n_bins=CALIBRATION_BINS)
    rows, _ = numpy.histogram(confidence.numpy(), bins=CALIBRATION_BINS, range=(0, 1))
    expected = (abs(true - mean) * rows[rows > 0]).sum() / 2_000
    assert counted(logits, labels, 64).calibration_error == pytest.approx(expected, abs=1e-6)


def test_confusions_are_ranked_by_rows() -> None:
    labels, predicted = torch.tensor([0, 0, 0, 1, 2, 2, 2]), torch.tensor([1, 1, 0, 0, 2, 2, 1])
    counts = counted(torch.nn.functional.one_hot(predicted, 3).float(), labels, 7)
    assert counts.confusions() == [(0, 1, 2), (1, 0, 1), (2, 1, 1)]
