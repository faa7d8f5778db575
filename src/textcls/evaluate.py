"""A model and rows to metrics, and to what it said of each row.

Shapes: N rows, B batch, T tokens, C classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from textcls.artifact import Artifact
from textcls.data.batcher import Batch, Batcher, ordered_batches
from textcls.data.encoded import encode_split
from textcls.data.store import StoredData
from textcls.errors import DataError
from textcls.metrics import Counts
from textcls.runtime import autocast, release_free_memory

EVAL_BATCH_TOKENS = 8_192
"""Of a batch, padding included: as many as a training batch of 32 rows of 256 tokens has, and no more memory."""
_NAMED_CLASSES = 14
"""Of the model, that an error lists."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a model says of rows, in the order of their numbers."""

    counts: Counts
    labels: Tensor  # (N,) int64, the true ones
    predicted: Tensor  # (N,) int64
    confidence: Tensor  # (N,) float32: the probability of the predicted class


def judge(
    model: nn.Module, batcher: Batcher, rows: Tensor, n_classes: int, device: torch.device, dtype: str = "f32"
) -> Judged:
    """Run the model on the given rows, every one of them once; it is left in eval mode."""
    model.eval()
    release_free_memory()
    counts = Counts(n_classes)
    numbers, labels, predicted, confidence = [rows[:0]], [rows[:0]], [rows[:0]], [torch.empty(0)]
    with torch.inference_mode(), autocast(device, dtype):
        for indices, batch in ordered_batches(batcher, rows, EVAL_BATCH_TOKENS):
            logits, loss = logits_and_loss(model, batch.to(device))
            assert batch.labels is not None  # evaluated rows have labels
            counts.add(logits, batch.labels, loss.item() * len(logits))
            numbers.append(indices)
            labels.append(batch.labels)
            predicted.append(logits.argmax(-1).cpu())
            confidence.append(logits.float().softmax(-1).amax(-1).cpu())
    order = torch.cat(numbers).argsort()
    found = [torch.cat(parts)[order] for parts in (labels, predicted, confidence)]
    return Judged(counts=counts, labels=found[0], predicted=found[1], confidence=found[2])


def evaluate(
    model: nn.Module, batcher: Batcher, rows: Tensor, n_classes: int, device: torch.device, dtype: str = "f32"
) -> Counts:
    """Count the model's hits on the given rows, every one of them once; the model is left in eval mode."""
    return judge(model, batcher, rows, n_classes, device, dtype).counts


def logits_and_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits (B, C) of a labelled batch, and their mean cross-entropy, a scalar in nats."""
    logits: Tensor = model(batch.tokens, batch.keep)
    assert batch.labels is not None
    return logits, F.cross_entropy(logits.float(), batch.labels)


def judge_split(artifact: Artifact, stored: StoredData, split: str, device: torch.device, dtype: str) -> Judged:
    """Run a trained classifier on a whole split, whose labels are matched to the model's by class name.

    Raises:
        DataError: the data set has a class that the model lacks, or it has no such split.
    """
    if split not in stored.splits:
        raise DataError(f"--split {split}: {stored.origin} has no such split; use one of {', '.join(stored.splits)}.")
    own_label = _own_labels(artifact, stored)
    rows = encode_split(stored, split, artifact.tokenizer, artifact.config.batch.max_length)
    rows = rows.with_labels(own_label[rows.labels])
    batcher = Batcher.of(rows, artifact.tokenizer.pad_token, artifact.config.batch)
    every_row = torch.arange(len(rows))
    return judge(artifact.model.to(device), batcher, every_row, len(artifact.class_names), device, dtype)


def evaluate_split(artifact: Artifact, stored: StoredData, split: str, device: torch.device, dtype: str) -> Counts:
    """The counts of `judge_split`, which raises what that raises."""
    return judge_split(artifact, stored, split, device, dtype).counts


def _own_labels(artifact: Artifact, stored: StoredData) -> Tensor:
    """The model's label for each of the data's, (classes of the data,) int64; a class of the model may be missing."""
    own = {name: label for label, name in enumerate(artifact.class_names)}
    for name in stored.class_names:
        if name not in own:
            known = ", ".join(artifact.class_names[:_NAMED_CLASSES])
            more = len(artifact.class_names) - _NAMED_CLASSES
            raise DataError(
                f"{stored.origin}: its class {name!r} is not one of the model's "
                f"({known}{f' and {more} more' if more > 0 else ''}); finetune the model on it first: textcls finetune."
            )
    return torch.tensor([own[name] for name in stored.class_names])
