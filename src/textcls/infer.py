"""Texts to classes and probabilities.

Shapes: N texts, C classes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from textcls import artifact as artifacts
from textcls.artifact import Artifact
from textcls.data.batcher import Batcher, ordered_batches
from textcls.data.encoded import from_ids
from textcls.errors import UserError
from textcls.evaluate import EVAL_BATCH_TOKENS
from textcls.runtime import autocast, resolve_device

CHUNK_TEXTS = 1_024
"""Texts that are read before the first of them is answered; among them, those of similar length share batches."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the model says of one text."""

    text: str
    class_name: str
    """The most probable class."""
    probabilities: dict[str, float]
    """Of every class, in the model's order; they sum to 1. With top_k: of the most probable alone, in that order."""

    @property
    def probability(self) -> float:
        """That of the most probable class."""
        return self.probabilities[self.class_name]


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

    def predict(self, texts: Iterable[str], *, top_k: int | None = None) -> list[Prediction]:
        """Classify texts; the answers are in the order of the texts.

        An empty text has an answer too: the model then reads [CLS] [SEP] alone, which gives what it holds most likely
        of a text it knows nothing about.

        Args:
            texts: any number of them.
            top_k: keep the probabilities of this many classes, most probable first; by default of all.
        """
        return list(self.stream(texts, top_k=top_k))

    def stream(self, texts: Iterable[str], *, top_k: int | None = None) -> Iterator[Prediction]:
        """`predict` for texts without end: reads CHUNK_TEXTS of them at a time, and keeps none.

        Raises:
            TypeError: `texts` is one text rather than several, or one of them is no str.
            ValueError: `top_k` is less than 1.
        """
        if isinstance(texts, str):
            raise TypeError("texts is a str, whose characters would each be classified; give a list of texts")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k is {top_k}; give 1 or more, or None for every class")
        for chunk in _chunks(texts):
            probabilities, labels = self.probabilities(chunk), torch.arange(len(self.class_names))
            ranked = probabilities.argsort(dim=-1, descending=True, stable=True)
            kept = labels.expand_as(ranked) if top_k is None else ranked[:, :top_k]
            columns = (ranked[:, 0].tolist(), kept.tolist(), probabilities.gather(1, kept).tolist())
            for text, best, chosen, values in zip(chunk, *columns, strict=True):
                names = [self.class_names[label] for label in chosen]
                yield Prediction(
                    text=text,
                    class_name=self.class_names[best],
                    probabilities=dict(zip(names, values, strict=True)),
                )

    def probabilities(self, texts: Sequence[str]) -> Tensor:
        """Softmax over the classes: (N, C) float32 on the CPU."""
        config = self.artifact.config.batch
        rows = from_ids(self.artifact.tokenizer.encode_batch([_encodable(text) for text in texts], config.max_length))
        batcher = Batcher.of(rows, self.artifact.tokenizer.pad_token, config)
        result = torch.empty(len(texts), len(self.class_names))
        with torch.inference_mode(), autocast(self.device, self.dtype):
            for indices, batch in ordered_batches(batcher, torch.arange(len(texts)), EVAL_BATCH_TOKENS):
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


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts, CHUNK_TEXTS at a time; where a line can't be read, what was read before it is answered first."""
    chunk: list[str] = []
    try:
        for text in texts:
            chunk.append(text)
            if len(chunk) == CHUNK_TEXTS:
                yield chunk
                chunk = []
    except UserError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def _encodable(text: str) -> str:
    """A text whose lone surrogates, which have no UTF-8, are U+FFFD, the mark of what could not be decoded."""
    if not isinstance(text, str):
        raise TypeError(f"texts has {text!r} in it, which is no str")
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
