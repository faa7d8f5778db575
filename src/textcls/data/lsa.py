"""Latent semantic analysis: a vector for each token, such that tokens which occur in the same rows have similar ones.

Shapes: V vocabulary, N rows, D d_model.

A classifier's labels teach its embeddings little about words, which shows when it is finetuned with the embeddings
frozen. These vectors need no labels, no other data, and seconds.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from textcls.data.encoded import EncodedRows

_MAX_ROWS = 50_000  # evenly spaced among all; bounds time and memory, and more hardly change the vectors
_OVERSAMPLING = 16  # dimensions more than are kept, and steps of power iteration: Halko et al. 2011, sections 4.3 f.
_POWER_ITERATIONS = 2


def token_vectors(rows: EncodedRows, chosen: Tensor, vocab_size: int, d_model: int) -> Tensor:
    """U S (V, D) of the truncated singular value decomposition U S V^T of the token-row matrix (V, N).

    Its elements are log(1 + count of the token in the row) * log(N / number of rows with the token). A token of no
    row or of every row has a vector of zeros; dimensions beyond the matrix's rank are zero. The algorithm is random,
    and draws from torch's generator.
    (Deerwester et al. 1990, JASIS 41(6); Halko, Martinsson & Tropp 2011, arXiv:0909.4061)

    Args:
        rows: token ids.
        chosen: the numbers of the rows that may be looked at.
        vocab_size: V.
        d_model: D.
    """
    if len(chosen) > _MAX_ROWS:
        chosen = chosen[torch.linspace(0, len(chosen) - 1, _MAX_ROWS).long()]
    matrix = _weighted(_counts(rows, chosen, vocab_size))
    rank = min(d_model + _OVERSAMPLING, *matrix.shape)
    left, singular, _ = torch.svd_lowrank(matrix, q=rank, niter=_POWER_ITERATIONS)
    said = torch.sparse.sum(matrix, dim=1).to_dense() > 0  # of other tokens the decomposition's rounding is left
    vectors = (left * singular)[:, :d_model] * said[:, None]
    return F.pad(vectors, (0, d_model - vectors.shape[1]))


def _counts(rows: EncodedRows, chosen: Tensor, vocab_size: int) -> Tensor:
    """How often each token occurs in each chosen row: (V, N), sparse."""
    lengths = rows.lengths[chosen]
    row = torch.repeat_interleave(torch.arange(len(chosen)), lengths)
    within = torch.arange(len(row)) - torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
    tokens = rows.ids[rows.offsets[chosen][row] + within].long()
    return _sparse(torch.stack([tokens, row]), torch.ones(len(row)), vocab_size, len(chosen))


def _weighted(counts: Tensor) -> Tensor:
    """The counts (V, N), sparse, with their logarithms weighted by inverse document frequency."""
    vocab_size, n_rows = counts.shape
    token = counts.indices()[0]
    n_with_token = torch.bincount(token, minlength=vocab_size)
    weights = counts.values().log1p() * (n_rows / n_with_token[token]).log()
    return _sparse(counts.indices(), weights, vocab_size, n_rows)


def _sparse(indices: Tensor, values: Tensor, n: int, m: int) -> Tensor:
    """A sparse matrix (n, m); values of one place are summed, here rather than in every product with it."""
    return torch.sparse_coo_tensor(indices, values, (n, m), check_invariants=True).coalesce()
