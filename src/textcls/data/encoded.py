"""A split as token ids: tokenised once, kept on disk, read by memory map.

Shapes: N rows, M tokens of all rows together.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from textcls.data.store import SqliteDataset, StoredData, cache_folder
from textcls.data.tokenizer import Tokenizer
from textcls.files import replaced

_CHUNK_ROWS = 5_000


@dataclass(frozen=True)
class EncodedRows:
    """The rows of a split, end to end."""

    ids: Tensor  # (M,) int32
    offsets: Tensor  # (N + 1,) int64: row i is ids[offsets[i] : offsets[i + 1]]
    labels: Tensor | None  # (N,) int64; None where the rows have none

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Tokens of each row: (N,)."""
        return self.offsets.diff()

    def with_labels(self, labels: Tensor) -> "EncodedRows":
        """The same rows with other labels: (N,) int64."""
        return EncodedRows(self.ids, self.offsets, labels)


def from_ids(rows: list[list[int]], labels: Tensor | None = None) -> EncodedRows:
    """Put rows of ids end to end."""
    lengths = torch.tensor([0, *map(len, rows)], dtype=torch.int64)
    ids = torch.tensor([token for row in rows for token in row], dtype=torch.int32)
    return EncodedRows(ids, lengths.cumsum(0), labels)


def encode_split(stored: StoredData, split: str, tokenizer: Tokenizer, max_length: int) -> EncodedRows:
    """A split's token ids, from the cache or else tokenised now; keyed by content, tokenizer and length."""
    key = hashlib.sha256(f"{stored.digest} {split} {tokenizer.fingerprint} {max_length}".encode()).hexdigest()
    path = cache_folder() / "tokens" / f"{key[:32]}.safetensors"
    tensors = _read(path)
    if tensors is None:
        tensors = _encode(stored.splits[split], tokenizer, max_length)
        with replaced(path) as temporary:
            save_file(tensors, temporary)
    return EncodedRows(tensors["ids"], tensors["offsets"], tensors["labels"])


def _encode(dataset: SqliteDataset, tokenizer: Tokenizer, max_length: int) -> dict[str, Tensor]:
    chunks = [from_ids(tokenizer.encode_batch(texts, max_length)) for texts in _text_chunks(dataset)]
    lengths = torch.cat([torch.zeros(1, dtype=torch.int64), *(chunk.lengths for chunk in chunks)])
    return {
        "ids": torch.cat([chunk.ids for chunk in chunks]),
        "offsets": lengths.cumsum(0),
        "labels": torch.tensor(dataset.labels(), dtype=torch.int64),
    }


def _text_chunks(dataset: SqliteDataset) -> Iterator[list[str]]:
    for start in range(0, len(dataset), _CHUNK_ROWS):
        yield [item.text for item in dataset.rows(start, start + _CHUNK_ROWS)]


def _read(path: Path) -> dict[str, Tensor] | None:
    """The tensors of a cache file, or None where it is missing or damaged."""
    try:
        tensors = load_file(path)
    except (FileNotFoundError, SafetensorError):
        return None
    return tensors if tensors.keys() == {"ids", "offsets", "labels"} else None
