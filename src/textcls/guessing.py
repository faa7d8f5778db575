"""What an encoder learns from texts without their labels, by guessing tokens that were hidden from it.

Shapes: B batch, T tokens, D d_model, V vocabulary, N hidden tokens of a batch, K candidates for them.

Each hidden token is guessed where it stood, which is masked language modelling (Devlin et al. 2018, arXiv:1810.04805;
that the texts of the task itself suffice: Krishna et al. 2022, arXiv:2209.14389).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from textcls.data.encoded import EncodedRows
from textcls.model import TransformerClassifier

N_DRAWN = 2_048
"""Tokens that a batch's softmax runs over besides those that are hidden in it. A step takes a fifth less time than over
a whole vocabulary of 8,192, and two fifths less than over one of 28,996."""


class TokenGuesser(nn.Module):
    """An encoder, and what guesses the tokens that are hidden from it.

    The score of token v, given a vector x of the encoder's, is E_v . LN(GELU(W x + a)) + b_v, where E are the token
    embeddings themselves (Press & Wolf 2017, arXiv:1608.05859), and b starts as the tokens' log frequencies.
    """

    occurring: Tensor  # the tokens that occur: the others need no guess

    def __init__(self, encoder: TransformerClassifier, counts: Tensor) -> None:
        """Make what guesses; `counts` (V,) says how often each token occurs in the texts."""
        super().__init__()
        self.encoder = encoder
        d_model = encoder.head.in_features
        self.transform = nn.Linear(d_model, d_model)
        self.norm = nn.LayerNorm(d_model)
        std = float(encoder.embeddings.token.weight.detach().std())
        nn.init.constant_(self.norm.weight, 1 / (std * math.sqrt(d_model)))  # so that scores start of variance 1
        self.bias = nn.Parameter((counts.clamp(min=0.5) / counts.sum()).log())
        self.register_buffer("occurring", counts.nonzero()[:, 0], persistent=False)

    def forward(self, tokens: Tensor, keep: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """Hide a share of the tokens of a batch (B, T), and guess each.

        The candidates are the different ones of the hidden tokens, and others that are drawn. These stand for all that
        weren't: exp(score) counts as often as there are such. (Jean et al. 2015, arXiv:1412.2007, section 3)

        Returns:
            The scores of the candidates (N, K), and which of them are right (N,).
        """
        hidden = hide(keep, share)
        x = self.norm(F.gelu(self.transform(self.encoder.encode(tokens, keep, hidden))))
        different, targets = tokens[hidden].unique(return_inverse=True)
        others = self.occurring[~torch.isin(self.occurring, different)]
        drawn = others[torch.randperm(len(others), device=others.device)[:N_DRAWN]] if len(others) > N_DRAWN else others
        candidates = torch.cat([different, drawn])
        bias = self.bias[candidates]
        if len(drawn):
            stands_for = bias.new_full((len(drawn),), math.log(len(others) / len(drawn)))
            bias = bias + F.pad(stands_for, (len(different), 0))
        return F.linear(x, self.encoder.embeddings.token(candidates), bias), targets


def hide(keep: Tensor, share: float) -> Tensor:
    """Choose a share of a batch's tokens at random: keep (B, T) -> (B, T), True at one place or more.

    A row's first token and its last, which are always the same, are left; but where the rows have no others, or chance
    chooses none, the very first is chosen.
    """
    guessable = torch.zeros_like(keep)
    guessable[:, 1:-1] = keep[:, 2:]
    hidden = guessable & (torch.rand(keep.shape, device=keep.device) < share)
    hidden[0, 0] |= ~hidden.any()
    return hidden


def token_counts(rows: EncodedRows, chosen: Tensor, vocab_size: int) -> Tensor:
    """How often each token occurs in the rows with the given numbers: (V,) int64."""
    wanted = torch.zeros(len(rows), dtype=torch.bool)
    wanted[chosen] = True
    return torch.bincount(rows.ids[wanted.repeat_interleave(rows.lengths)], minlength=vocab_size)
