"""The original's mathematics, taken literally: every position computed, explicit softmax, fixed padding.

A second implementation to hold textcls.model against. It shares the names of the parameters, and nothing else.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Drop = Callable[[Tensor], Tensor]
"""Dropout of one tensor; without one the mathematics is that of eval mode."""


def keep_all(x: Tensor) -> Tensor:
    return x


def linear(weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred**2).mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def attention(
    weights: Mapping[str, Tensor], name: str, x: Tensor, keep: Tensor, n_heads: int, quiet: bool, drop_scores: Drop
) -> Tensor:
    rows, length, d_model = x.shape
    size = d_model // n_heads
    query, key, value = (
        linear(weights, f"{name}.{part}", x).reshape(rows, length, n_heads, size).swapaxes(1, 2)
        for part in ("query", "key", "value")
    )
    scores = drop_scores(query @ key.swapaxes(2, 3) / math.sqrt(size))
    scores = torch.where(keep[:, None, None, :], scores, torch.full_like(scores, -1e4))
    exponentials = torch.exp(scores)
    attended = exponentials / (exponentials.sum(-1, keepdim=True) + (1 if quiet else 0)) @ value
    return linear(weights, f"{name}.output", attended.swapaxes(1, 2).reshape(rows, length, d_model))


def logits(
    weights: Mapping[str, Tensor],
    tokens: Tensor,
    keep: Tensor,
    *,
    n_layers: int,
    n_heads: int,
    quiet: bool,
    drop: Drop = keep_all,
    drop_scores: Drop = keep_all,
) -> Tensor:
    """Logits (B, C) of token ids (B, T)."""
    x = weights["embeddings.token.weight"][tokens]
    x = (x + weights["embeddings.position.weight"][None, : tokens.shape[1]]) / 2
    for i in range(n_layers):
        layer = f"layers.{i}"
        normed = layer_norm(weights, f"{layer}.attention_norm", x)
        x = x + drop(attention(weights, f"{layer}.attention", normed, keep, n_heads, quiet, drop_scores))
        normed = layer_norm(weights, f"{layer}.feed_forward_norm", x)
        hidden = drop(gelu(linear(weights, f"{layer}.feed_forward.inner", normed)))
        x = x + drop(linear(weights, f"{layer}.feed_forward.outer", hidden))
    return linear(weights, "head", x)[:, 0]


def pad(rows: list[list[int]], length: int, pad_token: int) -> tuple[Tensor, Tensor]:
    """Every row padded to one length: tokens (B, T), keep (B, T)."""
    tokens = torch.tensor([row + [pad_token] * (length - len(row)) for row in rows])
    keep = torch.tensor([[True] * len(row) + [False] * (length - len(row)) for row in rows])
    return tokens, keep


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy, spelt out."""
    return -(logits - logits.logsumexp(-1, keepdim=True))[torch.arange(len(labels)), labels].mean()
