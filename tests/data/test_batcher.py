import math
from collections import Counter

import pytest
import torch

from textcls.config import BatchConfig, TransformerConfig
from textcls.data import sources
from textcls.data.batcher import Batcher, batches_by_length, carve, epoch_batches, epoch_rows, ordered_batches
from textcls.data.encoded import EncodedRows, from_ids
from textcls.data.tokenizer import fetch_tokenizer
from textcls.model import TransformerClassifier

PAD = 0


def test_a_batch_holds_its_rows_and_pads_to_the_longest() -> None:
    rows = from_ids([[5, 6, 7], [8], [9, 10]], torch.tensor([2, 0, 1]))
    batch = Batcher(rows, PAD).batch(torch.tensor([1, 2]))
    assert batch.tokens.tolist() == [[8, PAD], [9, 10]]
    assert batch.keep.tolist() == [[True, False], [True, True]]
    assert batch.labels is not None
    assert batch.labels.tolist() == [0, 1]


def test_a_fixed_length_pads_every_batch_to_it() -> None:
    rows = from_ids([[5, 6, 7], [8]])
    batcher = Batcher.of(rows, PAD, BatchConfig(max_length=6, padding="fixed"))
    batch = batcher.batch(torch.tensor([0, 1]))
    assert batch.tokens.tolist() == [[5, 6, 7, PAD, PAD, PAD], [8, PAD, PAD, PAD, PAD, PAD]]
    assert batch.keep.sum(1).tolist() == [3, 1]
    assert batch.labels is None
    assert Batcher.of(rows, PAD, BatchConfig(max_length=6)).batch(torch.tensor([1])).tokens.tolist() == [[8]]


def test_the_last_row_of_all_can_be_padded() -> None:
    rows = from_ids([[1, 2, 3, 4], [5]])
    assert Batcher(rows, PAD).batch(torch.tensor([1, 0])).tokens.tolist() == [[5, 0, 0, 0], [1, 2, 3, 4]]


def test_batches_are_a_shuffled_partition_with_little_padding(rows: EncodedRows) -> None:
    indices = torch.randperm(len(rows))[:1_000]
    batches = batches_by_length(indices, rows.lengths, 32, seed=1)
    assert Counter(torch.cat(batches).tolist()) == Counter(indices.tolist())
    assert [len(batch) for batch in batches].count(32) == 31
    by_length = [int(rows.lengths[batch].max()) for batch in batches]
    assert by_length != sorted(by_length)  # long and short batches take turns
    real, padded = (sum(f(rows.lengths[b]) for b in batches) for f in (_real, _padded))
    assert real / padded > 0.97
    random_order = sum(_padded(rows.lengths[batch]) for batch in indices.split(32))
    assert real / random_order < 0.85


def _real(lengths: torch.Tensor) -> int:
    return int(lengths.sum())


def _padded(lengths: torch.Tensor) -> int:
    return int(lengths.max()) * len(lengths)


def test_the_order_is_a_function_of_the_seed(rows: EncodedRows) -> None:
    batcher, indices = Batcher(rows, PAD), torch.arange(500)
    first, again, other = (torch.cat(epoch_batches(batcher, indices, 32, seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_fixed_padding_keeps_the_drawn_order(rows: EncodedRows) -> None:
    indices = torch.randperm(len(rows))
    batches = epoch_batches(Batcher(rows, PAD, fixed_length=48), indices, 32, seed=1)
    assert torch.equal(torch.cat(batches), indices)


@pytest.mark.parametrize("fixed_length", [None, 128])
@pytest.mark.parametrize("max_tokens", [1, 130, 400, 4_096, 1_000_000])
def test_parts_of_a_batch_are_few_and_within_the_limit(
    rows: EncodedRows, max_tokens: int, fixed_length: int | None
) -> None:
    batcher = Batcher(rows, PAD, fixed_length)
    indices = torch.randperm(len(rows))[:50]
    parts = batcher.parts(indices, max_tokens)
    assert torch.equal(torch.cat(list(parts)), indices)
    longest = fixed_length or int(rows.lengths[indices].max())
    at_once = max(1, max_tokens // longest)
    assert max(len(part) for part in parts) <= at_once
    assert len(parts) <= math.ceil(50 / at_once)


def test_evaluation_sees_every_row_once_the_longest_first(rows: EncodedRows) -> None:
    batches = list(ordered_batches(Batcher(rows, PAD), torch.arange(len(rows)), 600))
    assert all(batch.tokens.numel() <= 600 for _, batch in batches)
    assert sum(batch.tokens.numel() > 450 for _, batch in batches) > 0.9 * len(batches)
    assert sorted(int(number) for chosen, _ in batches for number in chosen) == list(range(len(rows)))
    widths = [batch.tokens.shape[1] for _, batch in batches]
    assert widths == sorted(widths, reverse=True)
    assert [len(batch.tokens) for _, batch in ordered_batches(Batcher(rows, PAD), torch.arange(5), 1)] == [1] * 5
    assert not list(ordered_batches(Batcher(rows, PAD), torch.arange(0), 600))


class TestEpochRows:
    def test_epochs_walk_through_every_row_before_any_comes_again(self) -> None:
        drawn = torch.cat([epoch_rows(100, 30, epoch, seed=3) for epoch in range(10)])
        for number in range(3):
            assert sorted(drawn[100 * number : 100 * (number + 1)].tolist()) == list(range(100))
        assert not torch.equal(drawn[:100], drawn[100:200])

    def test_more_rows_than_there_are(self) -> None:
        drawn = epoch_rows(10, 35, 0, seed=0)
        assert set(Counter(drawn.tolist()).values()) == {3, 4}

    def test_zero_takes_every_row(self) -> None:
        for epoch in range(3):
            assert sorted(epoch_rows(50, 0, epoch, seed=0).tolist()) == list(range(50))

    def test_with_replacement_some_rows_come_twice(self) -> None:
        drawn = epoch_rows(1_000, 1_000, 0, seed=0, with_replacement=True)
        assert len(drawn) == 1_000
        assert 600 < len(set(drawn.tolist())) < 660  # 1 - 1/e of the rows

    def test_the_seed_decides(self) -> None:
        assert torch.equal(epoch_rows(100, 30, 2, seed=1), epoch_rows(100, 30, 2, seed=1))
        assert not torch.equal(epoch_rows(100, 30, 2, seed=1), epoch_rows(100, 30, 2, seed=2))


def test_carving_parts_the_rows() -> None:
    train, valid = carve(1_000, 100, seed=4)
    assert len(valid) == 100
    assert sorted(train.tolist() + valid.tolist()) == list(range(1_000))
    assert not torch.equal(valid, carve(1_000, 100, seed=5)[1])


@pytest.mark.hub
def test_logits_depend_neither_on_padding_nor_on_neighbours() -> None:
    tokenizer = fetch_tokenizer("bert-base-cased")
    texts = [item.text for item in sources.load("ag-news").splits["test"][:200]]
    rows = from_ids(tokenizer.encode_batch(texts, 256))
    config = TransformerConfig(embedding_std=0.5)
    model = TransformerClassifier(config, vocab_size=28_996, max_length=256, n_classes=4).eval()
    every = torch.arange(len(rows))
    results = []
    with torch.inference_mode():
        for batcher, size in ((Batcher(rows, PAD), 1), (Batcher(rows, PAD), 50), (Batcher(rows, PAD, 256), 20)):
            logits = torch.empty(len(rows), 4)
            for chosen in every.split(size):
                batch = batcher.batch(chosen)
                logits[chosen] = model(batch.tokens, batch.keep)
            results.append(logits)
    alone, padded_to_longest, padded_to_256 = results
    torch.testing.assert_close(padded_to_longest, alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(padded_to_256, alone, rtol=0, atol=1e-5)
    assert float(alone.std(0).mean()) > 0.01  # the rows do differ
