import os
from pathlib import Path

import pytest
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
