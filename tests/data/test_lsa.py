import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from textcls.data import lsa
from textcls.data.encoded import EncodedRows, from_ids
from textcls.data.lsa import token_vectors

VOCAB_SIZE = 1_000  # of `rows`


def texts_of(rows: EncodedRows, chosen: Tensor) -> list[list[int]]:
    return [rows.ids[rows.offsets[i] : rows.offsets[i + 1]].tolist() for i in chosen.tolist()]


def by_numpy(texts: list[list[int]], d_model: int) -> np.ndarray:
    """The Gram matrix of the vectors, from the definition, element by element, and numpy's whole decomposition."""
    in_rows = Counter(token for text in texts for token in set(text))
    matrix = np.zeros((VOCAB_SIZE, len(texts)))
    for j, text in enumerate(texts):
        for token, count in Counter(text).items():
            matrix[token, j] = math.log(1 + count) * math.log(len(texts) / in_rows[token])
    left, singular, _ = np.linalg.svd(matrix, full_matrices=False)
    vectors = left[:, :d_model] * singular[:d_model]
    return np.asarray(vectors @ vectors.T)


def test_vectors_are_those_of_the_definition(rows: EncodedRows) -> None:
    chosen = torch.randperm(len(rows))[:48]
    vectors = token_vectors(rows, chosen, VOCAB_SIZE, d_model=32).double().numpy()
    expected = by_numpy(texts_of(rows, chosen), d_model=32)
    assert vectors.shape == (VOCAB_SIZE, 32)
    # A vector's sign, and where singular values are alike its direction, are free; products between vectors are not.
    assert np.abs(vectors @ vectors.T - expected).max() < 1e-3 * np.abs(expected).max()


def test_the_order_of_tokens_does_not_matter(rows: EncodedRows) -> None:
    texts = texts_of(rows, torch.arange(60))
    every = torch.arange(60)
    one = token_vectors(from_ids(texts), every, VOCAB_SIZE, 64)
    other = token_vectors(from_ids([sorted(text) for text in texts]), every.flip(0), VOCAB_SIZE, 64)
    assert torch.allclose(one @ one.T, other @ other.T, atol=1e-3 * float((one @ one.T).abs().max()))


def test_tokens_and_dimensions_that_nothing_is_known_of_are_zero() -> None:
    vectors = token_vectors(from_ids([[1, 2, 5], [1, 3, 3], [1, 4]]), torch.arange(3), vocab_size=8, d_model=16)
    assert not vectors[[0, 6, 7]].any()
    assert vectors[[2, 3, 4, 5]].any(dim=1).all()
    assert vectors[1].abs().max() < 1e-6  # in every row: says nothing
    assert not vectors[:, 3:].any()


def test_tokens_that_share_rows_are_alike() -> None:
    texts = [[10, 11, 12], [11, 12, 13], [10, 13, 11]] * 5 + [[20, 21, 22], [21, 22, 23], [20, 23, 21]] * 5
    directions = torch.nn.functional.normalize(token_vectors(from_ids(texts), torch.arange(30), 30, 2))
    alike = directions @ directions.T
    assert alike[10:14, 10:14].min() > 0.99
    assert alike[10:14, 20:24].abs().max() < 0.01


def test_many_rows_are_looked_at_by_an_even_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lsa, "_MAX_ROWS", 3)
    texts = [[number] for number in range(1, 10)]
    vectors = token_vectors(from_ids(texts), torch.arange(9), vocab_size=10, d_model=4)
    assert vectors.any(dim=1).nonzero().flatten().tolist() == [1, 5, 9]


def test_same_seed_same_vectors(rows: EncodedRows) -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(token_vectors(rows, torch.arange(len(rows)), VOCAB_SIZE, 32))
    assert torch.equal(*drawn)
