"""Texts to tokens and back: WordPiece with BERT's normaliser and pre-tokeniser.

Every sequence begins with [CLS] and ends with [SEP]; one too long is cut before its [SEP].
(Wu et al. 2016, arXiv:1609.08144; Devlin et al. 2018, arXiv:1810.04805)
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import tokenizers
from filelock import FileLock

from textcls.config import TokenizerConfig
from textcls.data.store import cache_folder
from textcls.errors import DataError
from textcls.files import write_text

PAD, UNKNOWN, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_ALPHABET = 1_000
MAX_CHARACTERS = 40_000_000
"""Of the texts that a tokenizer is trained on; of more, an even share is taken."""


class Tokenizer(Protocol):
    """What the rest of the package needs of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """How many tokens there are; ids are below it."""
        ...

    @property
    def pad_token(self) -> int:
        """The id that fills a batch's shorter rows."""
        ...

    @property
    def fingerprint(self) -> str:
        """A digest of the tokenizer's whole definition."""
        ...

    def encode(self, text: str, max_length: int | None = None) -> list[int]:
        """The ids of a text, special tokens included, cut to `max_length` tokens."""
        ...

    def encode_batch(self, texts: Sequence[str], max_length: int | None = None) -> list[list[int]]:
        """`encode` of many texts, on all cores."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""
        ...

    def to_json(self) -> str:
        """The tokenizer's whole definition, as the text of a tokenizer.json."""
        ...


class WordPieceTokenizer:
    """A `tokenizers.Tokenizer` with BERT's special tokens."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        """Wrap a tokenizer.

        Raises:
            ValueError: the tokenizer lacks [PAD], [CLS] or [SEP].
        """
        inner.no_padding()
        inner.no_truncation()
        pad, cls, sep = (inner.token_to_id(token) for token in (PAD, CLS, SEP))
        if pad is None or cls is None or sep is None:
            raise ValueError(f"the tokenizer lacks one of {PAD}, {CLS} and {SEP}")
        self._inner = inner
        self._pad = pad
        self._sep = sep

    @property
    def vocab_size(self) -> int:
        return int(self._inner.get_vocab_size())

    @property
    def pad_token(self) -> int:
        return self._pad

    @property
    def fingerprint(self) -> str:
        canonical = json.dumps(json.loads(self.to_json()), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def encode(self, text: str, max_length: int | None = None) -> list[int]:
        return self.encode_batch([text], max_length)[0]

    def encode_batch(self, texts: Sequence[str], max_length: int | None = None) -> list[list[int]]:
        # The fast variant leaves out the offsets into the text, which nothing here reads.
        rows = [encoding.ids for encoding in self._inner.encode_batch_fast(texts)]
        if max_length is None:
            return rows
        return [ids if len(ids) <= max_length else [*ids[: max_length - 1], self._sep] for ids in rows]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._inner.decode(list(ids)))

    def to_json(self) -> str:
        return str(self._inner.to_str())


def read_tokenizer(path: Path) -> WordPieceTokenizer:
    """The tokenizer in a tokenizer.json.

    Raises:
        DataError: there is no such file, or it isn't a tokenizer with BERT's special tokens.
    """
    try:
        return WordPieceTokenizer(tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such tokenizer file.") from None
    except Exception as error:  # `tokenizers` raises a bare Exception for whatever it can't parse
        raise DataError(f"{path}: not a usable tokenizer.json ({error}).") from error


def fetch_tokenizer(name: str) -> WordPieceTokenizer:
    """A tokenizer of the Hugging Face Hub by its repository's name, kept in the cache.

    Raises:
        DataError: it is neither in the cache nor to be had from the Hub.
    """
    path = cache_folder() / "tokenizers" / f"{name.replace('/', '--')}.json"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not path.is_file():
                write_text(path, _download(name).to_json())
    return read_tokenizer(path)


def _download(name: str) -> WordPieceTokenizer:
    try:
        return WordPieceTokenizer(tokenizers.Tokenizer.from_pretrained(name))
    except Exception as error:  # `tokenizers` raises a bare Exception where the Hub can't be reached
        raise DataError(
            f"tokenizer.source = {name}: could not be fetched from the Hugging Face Hub; check the connection or set "
            "HF_ENDPOINT, or use --set tokenizer.source=corpus, which trains a tokenizer on the data."
        ) from error


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> WordPieceTokenizer:
    """A cased WordPiece tokenizer of at most `vocab_size` tokens, trained on texts; a function of them."""
    inner = _bare(tokenizers.models.WordPiece(unk_token=UNKNOWN))
    texts = _thinned(texts)
    alphabet = _alphabet(inner, texts)
    trainer: Any = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        # The trainer numbers the pieces inside a word as it meets them, in no fixed order, and breaks ties by number:
        # given as special tokens they are numbered first, in this order. The model below takes the vocabulary alone.
        special_tokens=[*SPECIAL_TOKENS, *(f"##{character}" for character in alphabet)],
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    vocabulary = inner.get_vocab(with_added_tokens=False)
    trained = _bare(tokenizers.models.WordPiece(vocabulary, unk_token=UNKNOWN))
    trained.add_special_tokens(list(SPECIAL_TOKENS))
    trained.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(token, vocabulary[token]) for token in (CLS, SEP)],
    )
    return WordPieceTokenizer(trained)


def _thinned(texts: Iterable[str]) -> list[str]:
    """Every text, or every second, fourth, ... where that is what it takes to have MAX_CHARACTERS at most."""
    kept: list[str] = []
    size, step = 0, 1
    for row, text in enumerate(texts):
        if row % step == 0:
            kept.append(text[:MAX_CHARACTERS])
            size += len(kept[-1])
        while size > MAX_CHARACTERS:
            kept, step = kept[::2], 2 * step
            size = sum(map(len, kept))
    return kept


def _bare(model: Any) -> tokenizers.Tokenizer:
    """A tokenizer that takes texts apart as BERT's cased one does."""
    inner = tokenizers.Tokenizer(model)
    inner.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    inner.decoder = tokenizers.decoders.WordPiece()
    return inner


def _alphabet(inner: tokenizers.Tokenizer, texts: Iterable[str]) -> list[str]:
    """The most frequent characters of texts, most frequent first; the rest become [UNK]."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(inner.normalizer.normalize_str(text))
    ranked = sorted((-count, character) for character, count in counts.items() if not character.isspace())
    return [character for _, character in ranked[:MAX_ALPHABET]]


def make_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> WordPieceTokenizer:
    """The tokenizer that a configuration asks for; `texts` are the training rows, read only to train one on them."""
    if config.source == "corpus":
        return train_tokenizer(texts, config.vocab_size)
    if config.source.endswith(".json"):
        return read_tokenizer(Path(config.source))
    return fetch_tokenizer(config.source)
