"""A split as token ids: tokenised once, kept on disk, read by memory map.

Shapes: N rows, M tokens of all rows together.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from textcls.data.store import SqliteDataset, StoredData, cache_folder
from textcls.data.tokenizer import Tokenizer
from textcls.files import replaced

FORMAT = "2"
_CHUNK_ROWS, _CHUNK_CHARACTERS = 5_000, 4_000_000
_HEADER_BYTES = 512


@dataclass(frozen=True)
class EncodedRows:
    """The rows of a split, end to end."""

    ids: Tensor  # (M,) int32, or int16 where the vocabulary allows it
    offsets: Tensor  # (N + 1,) int64: row i is ids[offsets[i] : offsets[i + 1]]
    labels: Tensor | None  # (N,) int64; None where the rows have none
    n_cut: int = 0
    """How many rows were longer than the maximum, and lost their ends."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Tokens of each row: (N,)."""
        return self.offsets.diff()

    def with_labels(self, labels: Tensor) -> "EncodedRows":
        """The same rows with other labels: (N,) int64."""
        return EncodedRows(self.ids, self.offsets, labels, self.n_cut)

    def joined(self, other: "EncodedRows") -> "EncodedRows":
        """These rows, then those of another split of the same data set and tokenizer."""
        assert self.labels is not None and other.labels is not None
        return EncodedRows(
            torch.cat([self.ids, other.ids]),
            torch.cat([self.offsets, other.offsets[1:] + self.offsets[-1]]),
            torch.cat([self.labels, other.labels]),
            self.n_cut + other.n_cut,
        )


def from_ids(rows: list[list[int]], labels: Tensor | None = None) -> EncodedRows:
    """Put rows of ids end to end."""
    lengths = torch.tensor([0, *map(len, rows)], dtype=torch.int64)
    ids = torch.tensor([token for row in rows for token in row], dtype=torch.int32)
    return EncodedRows(ids, lengths.cumsum(0), labels)


def encode_split(stored: StoredData, split: str, tokenizer: Tokenizer, max_length: int) -> EncodedRows:
    """A split's token ids, from the cache or else tokenised now; keyed by content, tokenizer and length."""
    key = hashlib.sha256(f"{FORMAT} {stored.digest} {split} {tokenizer.fingerprint} {max_length}".encode()).hexdigest()
    path = cache_folder() / "tokens" / f"{key[:32]}.safetensors"
    rows = _read(path)
    if rows is None:
        with replaced(path) as temporary, temporary.open("wb") as file:
            _write(file, stored.splits[split], tokenizer, max_length)
        rows = _read(path)
    if rows is None:
        raise RuntimeError(f"{path} was just written, but does not read back")
    return rows


def _write(file: BinaryIO, dataset: SqliteDataset, tokenizer: Tokenizer, max_length: int) -> None:
    """Write a safetensors file of a split's labels, offsets and ids.

    The ids come last, as they are made, so that a split need not fit into memory; the header, which needs their number,
    is put before them at the end, padded with spaces as the format allows.
    """
    n_rows, n_cut = len(dataset), 0
    lengths = np.zeros(n_rows + 1, dtype=np.int64)
    dtype, name = (np.int16, "I16") if tokenizer.vocab_size <= 2**15 else (np.int32, "I32")
    small = 8 * n_rows + 8 * (n_rows + 1)
    file.seek(8 + _HEADER_BYTES + small)
    row = 1
    for texts in _text_chunks(dataset):
        # One token more than is kept tells the rows that are cut from those that just fit.
        whole = tokenizer.encode_batch(texts, max_length + 1)
        ids = [own if len(own) <= max_length else [*own[: max_length - 1], own[-1]] for own in whole]
        n_cut += sum(len(own) > max_length for own in whole)
        lengths[row : row + len(ids)] = list(map(len, ids))
        row += len(ids)
        file.write(np.fromiter((token for own in ids for token in own), dtype=dtype).tobytes())
    offsets = lengths.cumsum()
    ends = [8 * n_rows, small, small + int(offsets[-1]) * np.dtype(dtype).itemsize]
    header = {
        "__metadata__": {"n_cut": str(n_cut)},
        "labels": {"dtype": "I64", "shape": [n_rows], "data_offsets": [0, ends[0]]},
        "offsets": {"dtype": "I64", "shape": [n_rows + 1], "data_offsets": ends[:2]},
        "ids": {"dtype": name, "shape": [int(offsets[-1])], "data_offsets": ends[1:]},
    }
    file.seek(0)
    file.write(_HEADER_BYTES.to_bytes(8, "little") + json.dumps(header).encode().ljust(_HEADER_BYTES))
    labels: NDArray[np.int64] = np.fromiter(dataset.labels(), dtype=np.int64)
    file.write(labels.tobytes() + offsets.tobytes())


def _text_chunks(dataset: SqliteDataset) -> Iterator[list[str]]:
    """The texts in order, as many at a time as keep the work on all cores and the memory small."""
    texts: list[str] = []
    size = 0
    for item in dataset:
        texts.append(item.text)
        size += len(item.text)
        if len(texts) == _CHUNK_ROWS or size >= _CHUNK_CHARACTERS:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts


def _read(path: Path) -> EncodedRows | None:
    """The rows in a cache file, or None where it is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            ids, offsets, labels = (file.get_tensor(name) for name in ("ids", "offsets", "labels"))
            return EncodedRows(ids, offsets, labels, int((file.metadata() or {})["n_cut"]))
    except (FileNotFoundError, SafetensorError, KeyError, ValueError):
        return None
