from pathlib import Path

import pytest

from textcls.config import TokenizerConfig
from textcls.data import sources
from textcls.data.tokenizer import (
    WordPieceTokenizer,
    _thinned,
    fetch_tokenizer,
    make_tokenizer,
    read_tokenizer,
    train_tokenizer,
)
from textcls.errors import DataError
from textcls.files import write_text


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [item.text for item in sources.load("sample").splits["train"]]


@pytest.fixture(scope="module")
def trained(texts: list[str]) -> WordPieceTokenizer:
    return train_tokenizer(texts, 2_000)


def test_a_trained_tokenizer_is_cased_wordpiece_with_bert_s_tokens(trained: WordPieceTokenizer) -> None:
    assert trained.vocab_size == 2_000
    assert trained.pad_token == 0
    ids = trained.encode("Shares fell in the first half.")
    assert trained.decode([ids[0], ids[-1]]) == ""  # special tokens
    assert trained.decode(ids) == "Shares fell in the first half."
    assert trained.encode("the")[1:-1] != trained.encode("The")[1:-1]


def test_the_same_texts_train_the_same_tokenizer(texts: list[str], trained: WordPieceTokenizer) -> None:
    assert train_tokenizer(texts, 2_000).fingerprint == trained.fingerprint
    assert train_tokenizer(texts[1:], 2_000).fingerprint != trained.fingerprint


def test_a_batch_is_its_rows(texts: list[str], trained: WordPieceTokenizer) -> None:
    chosen = [*texts[:100], "", "  ", "🙂 日本語 مرحبا", "a" * 5_000]
    assert trained.encode_batch(chosen) == [trained.encode(text) for text in chosen]
    assert trained.encode_batch([]) == []


@pytest.mark.parametrize("max_length", [3, 5, 17, 64])
def test_truncation_keeps_the_first_and_the_last_token(
    texts: list[str], trained: WordPieceTokenizer, max_length: int
) -> None:
    for text in texts[:50]:
        whole, cut = trained.encode(text), trained.encode(text, max_length)
        assert len(cut) == min(len(whole), max_length)
        assert (cut[0], cut[-1]) == (whole[0], whole[-1])
        assert cut[:-1] == whole[: len(cut) - 1]


def test_an_empty_text_is_its_two_special_tokens(trained: WordPieceTokenizer) -> None:
    assert len(trained.encode("")) == len(trained.encode(" \n\t ")) == 2


def test_a_file_round_trip(tmp_path: Path, texts: list[str], trained: WordPieceTokenizer) -> None:
    write_text(tmp_path / "tokenizer.json", trained.to_json())
    read = make_tokenizer(TokenizerConfig(source=str(tmp_path / "tokenizer.json")), [])
    assert read.fingerprint == trained.fingerprint
    assert read.encode_batch(texts[:50]) == trained.encode_batch(texts[:50])


@pytest.mark.parametrize("content", ["", "{}", "[1, 2]", '{"model": {"type": "WordPiece"}}', "\0\0\0"])
def test_a_file_that_is_no_tokenizer_is_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=r"tokenizer\.json: not a usable tokenizer"):
        read_tokenizer(tmp_path / "tokenizer.json")


def test_a_tokenizer_without_bert_s_tokens_is_refused(tmp_path: Path) -> None:
    import tokenizers

    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    bare.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match=r"lacks one of \[PAD\], \[CLS\] and \[SEP\]"):
        read_tokenizer(tmp_path / "tokenizer.json")


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such tokenizer file"):
        read_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.hub
def test_bert_base_cased_is_the_published_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = fetch_tokenizer("bert-base-cased")
    assert tokenizer.vocab_size == 28_996
    # [CLS] Hello, World! [SEP] in the published vocabulary
    assert tokenizer.encode("Hello, World!") == [101, 8667, 117, 1291, 106, 102]
    assert tokenizer.pad_token == 0
    monkeypatch.setattr("textcls.data.tokenizer._download", None)  # from now on the cache is enough
    assert fetch_tokenizer("bert-base-cased").fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("limit", [10, 50_000, 10**9])
def test_of_many_texts_an_even_share_is_taken(monkeypatch: pytest.MonkeyPatch, texts: list[str], limit: int) -> None:
    monkeypatch.setattr("textcls.data.tokenizer.MAX_CHARACTERS", limit)
    kept = _thinned(iter(texts))
    step = next(i for i, text in enumerate([*texts[1:], texts[-1]], 1) if len(kept) == 1 or text == kept[1])
    assert kept == [text[:limit] for text in texts[:: step if len(kept) > 1 else len(texts)]]
    size = sum(map(len, kept))
    assert size <= limit
    assert len(kept) == len(texts) or limit / 3 < size
