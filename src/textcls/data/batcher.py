"""Rows to batches: which rows share one, in what order, and how they are padded.

Shapes: B rows of a batch, T tokens of its longest row.  keep: True where a token is real, False where padding.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from textcls.config import BatchConfig
from textcls.data.encoded import EncodedRows


@dataclass(frozen=True)
class Batch:
    """What the model reads at once."""

    tokens: Tensor  # (B, T) int64
    keep: Tensor  # (B, T) bool
    labels: Tensor | None  # (B,) int64; None in inference

    def to(self, device: torch.device) -> "Batch":
        """This batch on a device."""
        if device.type == "cpu":
            return self
        moved = [t if t is None else t.to(device, non_blocking=True) for t in (self.tokens, self.keep, self.labels)]
        tokens, keep, labels = moved
        assert tokens is not None and keep is not None
        return Batch(tokens, keep, labels)


@dataclass(frozen=True)
class Batcher:
    """Makes batches of given rows."""

    rows: EncodedRows
    pad_token: int
    fixed_length: int | None = None
    """Pad every batch to this many tokens; None pads to its longest row."""

    @classmethod
    def of(cls, rows: EncodedRows, pad_token: int, config: BatchConfig) -> "Batcher":
        """The batcher that a configuration asks for."""
        return cls(rows, pad_token, config.max_length if config.padding == "fixed" else None)

    def batch(self, indices: Tensor) -> Batch:
        """The rows at `indices` (B,) as one batch."""
        lengths = self._lengths(indices)
        position = torch.arange(self.fixed_length or int(lengths.max()))
        keep = position < lengths[:, None]
        source = (self.rows.offsets[indices, None] + position).clamp_(max=len(self.rows.ids) - 1)
        tokens = self.rows.ids[source].long().masked_fill_(~keep, self.pad_token)
        labels = None if self.rows.labels is None else self.rows.labels[indices]
        return Batch(tokens, keep, labels)

    def parts(self, indices: Tensor, max_tokens: int) -> Sequence[Tensor]:
        """The rows at `indices` (B,) in few parts of at most so many tokens, padding included, or of one row."""
        rows_at_once = self.rows_within(max_tokens, int(self._lengths(indices).max()))
        return indices.chunk(math.ceil(len(indices) / rows_at_once))

    def rows_within(self, max_tokens: int, longest: int) -> int:
        """How many rows, the longest of so many tokens, have at most `max_tokens` once padded; always one."""
        return max(1, max_tokens // (self.fixed_length or longest))

    def _lengths(self, indices: Tensor) -> Tensor:
        return self.rows.offsets[indices + 1] - self.rows.offsets[indices]


def carve(n_rows: int, n_valid: int, seed: int) -> tuple[Tensor, Tensor]:
    """Part `n_rows` rows at random into (training, validation) row numbers, each in ascending order."""
    shuffled = torch.randperm(n_rows, generator=_generator(seed, -1))
    return shuffled[n_valid:].sort().values, shuffled[:n_valid].sort().values


def epoch_rows(n_rows: int, rows_per_epoch: int, epoch: int, seed: int, *, with_replacement: bool = False) -> Tensor:
    """Which of `n_rows` rows epoch 0, 1, ... draws: (rows_per_epoch,) int64, a function of its arguments alone.

    Without replacement the epochs walk through one endless sequence of reshuffled passes over all rows, so that none is
    drawn again before each was drawn once. rows_per_epoch = 0 draws every row, reshuffled.
    """
    if with_replacement:
        return torch.randint(n_rows, (rows_per_epoch or n_rows,), generator=_generator(seed, epoch))
    size = rows_per_epoch or n_rows
    first, stop = epoch * size, (epoch + 1) * size
    passes = range(first // n_rows, (stop - 1) // n_rows + 1)
    sequence = torch.cat([torch.randperm(n_rows, generator=_generator(seed, number)) for number in passes])
    begin = first - passes.start * n_rows
    return sequence[begin : begin + size]


def batches_by_length(indices: Tensor, lengths: Tensor, batch_size: int, seed: int) -> list[Tensor]:
    """Cut an epoch's rows, (N,) each, into batches of similar length, in an order shuffled by `seed`.

    Sorting the whole epoch leaves nearly every batch with rows of one single length, thus without padding: at AG News
    the padded share falls from 35 % (random batches) to under 1 %. Rows of one length stay in their shuffled order.
    """
    order = lengths[indices].argsort(stable=True)
    batches = indices[order].split(batch_size)
    return [batches[i] for i in torch.randperm(len(batches), generator=_generator(seed, 0)).tolist()]


def epoch_batches(batcher: Batcher, indices: Tensor, batch_size: int, seed: int) -> list[Tensor]:
    """An epoch's batches of row numbers: by length where padding is to the longest, else as they come."""
    if batcher.fixed_length is not None:
        return list(indices.split(batch_size))
    return batches_by_length(indices, batcher.rows.lengths, batch_size, seed)


def ordered_batches(batcher: Batcher, indices: Tensor, max_tokens: int) -> Iterator[tuple[Tensor, Batch]]:
    """Every given row once, the longest first, in batches of at most so many padded tokens: (row numbers, batch).

    What the first batch took in memory, all others fit into; the other way round the heap grew with every one.
    """
    lengths = batcher.rows.lengths[indices]
    order = lengths.argsort(stable=True, descending=True)
    first = 0
    while first < len(order):
        chosen = indices[order[first : first + batcher.rows_within(max_tokens, int(lengths[order[first]]))]]
        yield chosen, batcher.batch(chosen)
        first += len(chosen)


def _generator(seed: int, number: int) -> torch.Generator:
    """A generator for the `number`-th use of a seed, unrelated to that of any other pair."""
    return torch.Generator().manual_seed((seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9) % 2**64)
