"""A model and rows to metrics.

Shapes: B batch, T tokens, C classes.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from textcls.artifact import Artifact
from textcls.data.batcher import Batch, Batcher, ordered_batches
from textcls.data.encoded import encode_split
from textcls.data.store import StoredData
from textcls.errors import DataError
from textcls.metrics import Counts
from textcls.runtime import autocast

EVAL_BATCH_SIZE = 128


def evaluate(
    model: nn.Module, batcher: Batcher, rows: Tensor, n_classes: int, device: torch.device, dtype: str = "f32"
) -> Counts:
    """Count the model's hits on the given rows, every one of them once; the model is left in eval mode."""
    model.eval()
    counts = Counts(n_classes)
    with torch.inference_mode(), autocast(device, dtype):
        for _, batch in ordered_batches(batcher, rows, EVAL_BATCH_SIZE):
            logits, loss = logits_and_loss(model, batch.to(device))
            assert batch.labels is not None  # evaluated rows have labels
            counts.add(logits, batch.labels, loss.item() * len(logits))
    return counts


def logits_and_loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits (B, C) of a labelled batch, and their mean cross-entropy, a scalar in nats."""
    logits: Tensor = model(batch.tokens, batch.keep)
    assert batch.labels is not None
    return logits, F.cross_entropy(logits.float(), batch.labels)


def evaluate_split(artifact: Artifact, stored: StoredData, split: str, device: torch.device, dtype: str) -> Counts:
    """Evaluate a trained classifier on a whole split, whose labels are matched to the model's by class name.

    Raises:
        DataError: the data set's classes aren't the model's, or it has no such split.
    """
    if split not in stored.splits:
        raise DataError(f"--split {split}: {stored.origin} has no such split; use one of {', '.join(stored.splits)}.")
    if set(stored.class_names) != set(artifact.class_names):
        raise DataError(
            f"{stored.origin}: its classes ({', '.join(stored.class_names)}) are not the model's "
            f"({', '.join(artifact.class_names)}); finetune the model on it first: textcls finetune."
        )
    rows = encode_split(stored, split, artifact.tokenizer, artifact.config.batch.max_length)
    own_label = torch.tensor([artifact.class_names.index(name) for name in stored.class_names])
    rows = rows.with_labels(own_label[rows.labels])
    batcher = Batcher.of(rows, artifact.tokenizer.pad_token, artifact.config.batch)
    every_row = torch.arange(len(rows))
    return evaluate(artifact.model.to(device), batcher, every_row, len(artifact.class_names), device, dtype)
