"""Texts to classes and probabilities.

Shapes: N texts, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from textcls import artifact as artifacts
from textcls.artifact import Artifact
from textcls.data.batcher import Batcher, ordered_batches
from textcls.data.encoded import from_ids
from textcls.evaluate import EVAL_BATCH_SIZE
from textcls.runtime import autocast, resolve_device


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the model says of one text."""

    text: str
    class_name: str
    """The most probable class."""
    probabilities: dict[str, float]
    """Of every class, in the model's order; they sum to 1."""


class Classifier:
    """A trained model that takes texts. `textcls.load(run)` makes one."""

    def __init__(self, artifact: Artifact, device: torch.device, dtype: str = "f32") -> None:
        self.artifact = artifact
        self.device = device
        self.dtype = dtype
        artifact.model.to(device).eval()

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in label order."""
        return self.artifact.class_names

    def predict(self, texts: Sequence[str]) -> list[Prediction]:
        """Classify texts; the answers are in the order of the texts.

        An empty text has an answer too: the model then reads [CLS] [SEP] alone, which gives what it holds most likely
        of a text it knows nothing about.
        """
        probabilities = self.probabilities(texts)
        best = probabilities.argmax(-1).tolist() if texts else []
        return [
            Prediction(
                text=text,
                class_name=self.class_names[label],
                probabilities=dict(zip(self.class_names, row, strict=True)),
            )
            for text, label, row in zip(texts, best, probabilities.tolist(), strict=True)
        ]

    def probabilities(self, texts: Sequence[str]) -> Tensor:
        """Softmax over the classes: (N, C) float32 on the CPU."""
        config = self.artifact.config.batch
        rows = from_ids(self.artifact.tokenizer.encode_batch(texts, config.max_length))
        batcher = Batcher.of(rows, self.artifact.tokenizer.pad_token, config)
        result = torch.empty(len(texts), len(self.class_names))
        with torch.inference_mode(), autocast(self.device, self.dtype):
            for indices, batch in ordered_batches(batcher, torch.arange(len(texts)), EVAL_BATCH_SIZE):
                batch = batch.to(self.device)
                logits = self.artifact.model(batch.tokens, batch.keep)
                result[indices] = logits.float().softmax(-1).cpu()
        return result


def load(run: str | Path, *, device: str = "auto", dtype: str = "f32") -> Classifier:
    """The classifier of a run: a data set's name (its default run), a run folder, or a model.safetensors.

    Raises:
        ArtifactError: there is no such run, or its files can't be used.
        DeviceError: the device isn't available.
    """
    return Classifier(artifacts.load(artifacts.locate(str(run))), resolve_device(device), dtype)
