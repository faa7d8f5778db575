"""Transformer encoder with first-token pooling, for text classification.

Shapes: B batch, T tokens, D d_model, H heads, F d_ff, C classes.
keep: True where a token is real, False where padding.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from textcls.config import TransformerConfig


class Embeddings(nn.Module):
    """(token embedding + position embedding) / 2, both learnt.

    Token dropout (Dai & Le 2015, arXiv:1511.01432): in training each token's embedding is 0 with that probability.
    """

    def __init__(self, vocab_size: int, max_length: int, d_model: int, std: float, token_dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(max_length, d_model)
        nn.init.normal_(self.token.weight, std=std)
        nn.init.normal_(self.position.weight, std=std)
        self.token_dropout = token_dropout

    @torch.no_grad()
    def start_from(self, vectors: Tensor, std: float) -> None:
        """Give tokens the directions of vectors (V, D), and a standard deviation; a vector of 0 changes nothing.

        What the first layer adds to an embedding has one of 2 to 8 once trained. Embeddings of 0.05 drown in it: the
        layers behind the first, finetuned on another data set, then know little of which token it was. Those of 0.5
        stay audible; still longer ones learn more slowly.
        """
        known = vectors.any(dim=1)
        self.token.weight[known] = F.normalize(vectors[known]) * (std * math.sqrt(vectors.shape[1]))

    def forward(self, tokens: Tensor, hidden: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, D); where hidden (B, T) is True the token embedding is 0, instead of by token dropout."""
        token = self.token(tokens)
        if hidden is None and self.training and self.token_dropout:
            hidden = torch.rand(tokens.shape, device=tokens.device) < self.token_dropout
        if hidden is not None:
            token = token * ~hidden[..., None]
        embedded: Tensor = (token + self.position.weight[: tokens.shape[1]]) * 0.5
        return embedded


class Attention(nn.Module):
    """Multi-head attention: softmax(Q K^T / sqrt(D / H)) V in every head.  (Vaswani et al. 2017, arXiv:1706.03762)

    The quiet softmax, exp(x_i) / (1 + sum_j exp(x_j)), is the plain one over one key more, of zeros: its score is 0,
    its exponential the 1 in the denominator, and its value, zeros as well, adds nothing.
    """

    def __init__(self, d_model: int, n_heads: int, score_dropout: float, quiet: bool) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)
        self.n_heads = n_heads
        self.score_dropout = Dropout(score_dropout)
        self.quiet = quiet

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None) -> Tensor:
        """Every position of x (B, S, D) attends to context (B, T, D) where mask (B, 1, 1, T) is True: (B, S, D)."""
        query, key, value = (
            linear(source).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, H, S or T, D / H)
            for linear, source in ((self.query, x), (self.key, context), (self.value, context))
        )
        if self.quiet:
            key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))
            mask = mask if mask is None else F.pad(mask, (0, 1), value=True)
        if self.training and self.score_dropout.p:
            attended = self._with_score_dropout(query, key, value, mask)
        else:
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        output: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return output

    def _with_score_dropout(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """The same with scores dropped before the softmax, as the original has it; SDPA could drop weights only."""
        scores = self.score_dropout(query @ key.mT / math.sqrt(query.shape[-1]))
        if mask is not None:
            # Not -inf: a row that is nothing but padding would have no weights, but 0 / 0.
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        attended: Tensor = scores.softmax(-1) @ value
        return attended


class FeedForward(nn.Module):
    """outer(dropout(GELU(inner(x)))), position by position."""

    def __init__(self, d_model: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_ff)
        self.outer = nn.Linear(d_ff, d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, T, D)
        output: Tensor = self.outer(self.dropout(F.gelu(self.inner(x))))
        return output


class EncoderLayer(nn.Module):
    """Pre-norm encoder layer: x + Attention(LN(x)), then x + FeedForward(LN(x)).

    (Xiong et al. 2020, arXiv:2002.04745)
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.attention = Attention(config.d_model, config.n_heads, config.score_dropout, config.quiet_softmax)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config.d_model, config.d_ff, config.dropout)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x: Tensor, mask: Tensor | None, n_outputs: int | None = None, wanted: Tensor | None = None
    ) -> Tensor:
        """(B, T, D), (B, 1, 1, T) -> the first n_outputs positions (B, n_outputs, D), or all (B, T, D).

        Of all, only those (N, D) where wanted (B, T) is True, if it is given.
        """
        context = self.attention_norm(x)
        x, queries = x[:, :n_outputs], context[:, :n_outputs]
        x = x + self.dropout(self.attention(queries, context, mask))
        x = x if wanted is None else x[wanted]
        output: Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return output


class TransformerClassifier(nn.Module):
    """Embeddings, encoder layers, and a linear head on the first token's vector."""

    def __init__(self, config: TransformerConfig, *, vocab_size: int, max_length: int, n_classes: int) -> None:
        super().__init__()
        self.embeddings = Embeddings(vocab_size, max_length, config.d_model, config.embedding_std, config.token_dropout)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.n_layers))
        self.head = nn.Linear(config.d_model, n_classes)

    def forward(self, tokens: Tensor, keep: Tensor) -> Tensor:
        """Logits (B, C) of token ids (B, T), of which those where keep (B, T) is False are padding."""
        logits: Tensor = self.head(self.encode(tokens, keep)[:, 0])
        return logits

    def encode(self, tokens: Tensor, keep: Tensor, hidden: Tensor | None = None) -> Tensor:
        """The first token's vector (B, 1, D); or those (N, D) of tokens that are hidden, where hidden (B, T) is True.

        The last layer computes no others.
        """
        mask = attention_mask(keep)
        x = self.embeddings(tokens, hidden)
        for layer in self.layers[:-1]:
            x = layer(x, mask)
        output: Tensor = self.layers[-1](x, mask, n_outputs=1 if hidden is None else None, wanted=hidden)
        return output


def attention_mask(keep: Tensor) -> Tensor | None:
    """(B, T) -> (B, 1, 1, T), or None on the CPU where nothing is padding, which saves SDPA adding a mask.

    Elsewhere the mask is always given: to look into it would make the host wait for the device.
    """
    if keep.device.type == "cpu" and bool(keep.all()):
        return None
    return keep[:, None, None, :]


class Dropout(nn.Module):
    """Inverted dropout: in training each element is 0 with probability p, else divided by 1 - p.

    (Srivastava et al. 2014, JMLR 15)
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        return x * dropout_scale(x, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def dropout_scale(x: Tensor, p: float) -> Tensor:
    """A factor for each element of x: 0 with probability p, else 1 / (1 - p), from torch's CPU generator.

    Cuts wide random integers into 16-bit ones and compares them with a threshold, so p is met within 2^-17. torch's own
    bernoulli_ draws a number an element and took 35 % of a training step; this is four times cheaper.
    """
    words = torch.empty(math.ceil(x.numel() / 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    threshold = round(p * 2**16) - 2**15  # the int16 values below it are the share p of all
    # Written straight as floats: a bool in between costs five times the comparison.
    return torch.ge(bits, threshold, out=torch.empty_like(x)).mul_(1 / (1 - p))


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Numbers of parameters: (all, trained)."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(n for n, _ in sizes), sum(n for n, trained in sizes if trained)
