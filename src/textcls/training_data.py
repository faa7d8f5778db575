"""The rows of a training: as token ids, and which of them are for training and which for validation."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from textcls.config import Config
from textcls.data.batcher import Batcher, carve
from textcls.data.encoded import EncodedRows, encode_split
from textcls.data.store import StoredData
from textcls.data.tokenizer import Tokenizer
from textcls.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The train split as token ids, and which of its rows are for training and which for validation."""

    batcher: Batcher
    text_rows: Tensor  # row numbers, int64: all that a pretraining may read
    train_rows: Tensor  # those of them whose labels a training may read
    valid_rows: Tensor
    class_names: tuple[str, ...]
    digest: str = ""
    """Of the rows and of the tokenizer."""

    @property
    def n_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def summary(self) -> dict[str, Any]:
        """What a resumed training must find unchanged."""
        return {
            "classes": list(self.class_names),
            "training rows": len(self.train_rows),
            "rows for pretraining": len(self.text_rows),
            "validation rows": len(self.valid_rows),
            "digest": self.digest,
        }


def prepare(config: Config, stored: StoredData, tokenizer: Tokenizer) -> TrainingData:
    """Tokenise the train split, and carve the validation rows from it; a split of them is put at its end.

    Raises:
        ConfigError: no row would be left to train on.
    """
    rows = encode_split(stored, "train", tokenizer, config.batch.max_length)
    if "valid" in stored.splits:
        rows = rows.joined(encode_split(stored, "valid", tokenizer, config.batch.max_length))
    text_rows, valid_rows = _carve(config, stored)
    return TrainingData(
        batcher=Batcher.of(rows, tokenizer.pad_token, config.batch),
        text_rows=text_rows,
        train_rows=_labelled(rows, text_rows, config.data.labels_per_class, config.training.seed),
        valid_rows=valid_rows,
        class_names=stored.class_names,
        digest=hashlib.sha256(f"{stored.digest} {tokenizer.fingerprint}".encode()).hexdigest(),
    )


def training_texts(config: Config, stored: StoredData) -> Iterator[str]:
    """The texts that a tokenizer may be trained on: those of the training rows, and none of validation."""
    chosen = torch.zeros(len(stored.splits["train"]), dtype=torch.bool)
    chosen[_carve(config, stored)[0]] = True
    return (item.text for item, wanted in zip(stored.splits["train"], chosen.tolist(), strict=True) if wanted)


def _carve(config: Config, stored: StoredData) -> tuple[Tensor, Tensor]:
    """The row numbers of the train split, with that of validation at its end, that are for (training, validation)."""
    n_rows, n_valid = len(stored.splits["train"]), config.data.valid_rows
    if "valid" in stored.splits:
        return torch.arange(n_rows), torch.arange(n_rows, n_rows + len(stored.splits["valid"]))
    if n_valid >= n_rows:
        raise ConfigError(f"data.valid_rows: {n_valid} leaves none of {n_rows} rows to train on; give a smaller one.")
    return carve(n_rows, n_valid, config.training.seed)


def _labelled(rows: EncodedRows, chosen: Tensor, per_class: int, seed: int) -> Tensor:
    """Of the chosen rows, so many of each class at random, in ascending order; all of them if that is 0."""
    if not per_class:
        return chosen
    assert rows.labels is not None
    shuffled = chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(seed))]
    labels = rows.labels[shuffled]
    return torch.cat([shuffled[labels == label][:per_class] for label in labels.unique()]).sort().values
