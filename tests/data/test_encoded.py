import os
from pathlib import Path

import pytest
import tokenizers
import torch

from textcls.data import sources
from textcls.data.encoded import encode_split, from_ids
from textcls.data.tokenizer import WordPieceTokenizer, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> WordPieceTokenizer:
    return train_tokenizer((item.text for item in sources.load("sample").splits["train"]), 1_000)


def test_rows_are_the_tokenizer_s(tokenizer: WordPieceTokenizer, own_cache: Path) -> None:
    stored = sources.load("sample")
    items = stored.splits["test"][:]
    rows = encode_split(stored, "test", tokenizer, 40)
    expected = [tokenizer.encode(item.text, 40) for item in items]
    assert len(rows) == len(expected)
    assert rows.lengths.tolist() == list(map(len, expected))
    assert [rows.ids[a:b].tolist() for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)] == expected
    assert rows.labels is not None
    assert rows.labels.tolist() == [item.label for item in items]


def test_tokenised_once(tokenizer: WordPieceTokenizer, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = sources.load("sample")
    first = encode_split(stored, "train", tokenizer, 40)
    monkeypatch.setattr("textcls.data.encoded._write", None)
    again = encode_split(stored, "train", tokenizer, 40)
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(first.offsets, again.offsets)


def test_another_length_or_tokenizer_or_split_is_another_entry(tokenizer: WordPieceTokenizer, own_cache: Path) -> None:
    stored = sources.load("sample")
    other = train_tokenizer((item.text for item in stored.splits["train"]), 500)
    for split, tok, length in (
        ("train", tokenizer, 40),
        ("test", tokenizer, 40),
        ("test", other, 40),
        ("test", other, 9),
    ):
        encode_split(stored, split, tok, length)
    assert len(list((own_cache / "tokens").iterdir())) == 4


@pytest.mark.parametrize("size", [0, 7, 1_000])
def test_a_damaged_entry_is_made_again(tokenizer: WordPieceTokenizer, own_cache: Path, size: int) -> None:
    stored = sources.load("sample")
    whole = encode_split(stored, "test", tokenizer, 40)
    ids = whole.ids.clone()
    (entry,) = (own_cache / "tokens").iterdir()
    os.truncate(entry, size)
    assert torch.equal(encode_split(stored, "test", tokenizer, 40).ids, ids)


def test_no_rows() -> None:
    rows = from_ids([])
    assert (len(rows), rows.lengths.tolist()) == (0, [])


def test_rows_that_lose_their_ends_are_counted(tokenizer: WordPieceTokenizer, own_cache: Path) -> None:
    stored = sources.load("sample")
    lengths = [len(tokenizer.encode(item.text)) for item in stored.splits["test"]]
    for length in (20, max(lengths) - 1, max(lengths)):
        rows = encode_split(stored, "test", tokenizer, length)
        assert rows.n_cut == sum(own > length for own in lengths)
        assert rows.with_labels(torch.zeros(len(rows))).n_cut == rows.n_cut


def test_two_splits_end_to_end(tokenizer: WordPieceTokenizer, own_cache: Path) -> None:
    stored = sources.load("sample")
    test, train = (encode_split(stored, split, tokenizer, 40) for split in ("test", "train"))
    joined = test.joined(train)
    assert joined.labels is not None and test.labels is not None and train.labels is not None
    assert joined.labels.tolist() == test.labels.tolist() + train.labels.tolist()
    assert joined.n_cut == test.n_cut + train.n_cut
    rows = [joined.ids[a:b].tolist() for a, b in zip(joined.offsets, joined.offsets[1:], strict=False)]
    assert rows == [tokenizer.encode(item.text, 40) for split in ("test", "train") for item in stored.splits[split]]


def test_chunks_of_any_size_give_the_same_rows(
    tokenizer: WordPieceTokenizer, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = sources.load("sample")
    expected = encode_split(stored, "test", tokenizer, 40)
    ids, offsets = expected.ids.clone(), expected.offsets.clone()
    (entry,) = (own_cache / "tokens").iterdir()
    entry.unlink()
    monkeypatch.setattr("textcls.data.encoded._CHUNK_CHARACTERS", 1_000)
    again = encode_split(stored, "test", tokenizer, 40)
    assert torch.equal(again.ids, ids)
    assert torch.equal(again.offsets, offsets)


def test_a_large_vocabulary_takes_wider_numbers(own_cache: Path) -> None:
    vocabulary = {token: i for i, token in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]"))}
    vocabulary |= {f"x{i}": i for i in range(4, 40_000)} | {"the": 40_000}
    inner = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    rows = encode_split(sources.load("sample"), "test", WordPieceTokenizer(inner), 40)
    assert int(rows.ids.max()) == 40_000
