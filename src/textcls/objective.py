"""What training minimises: cross-entropy, of smoothed labels and with weighted classes where that is asked for.

Shapes: B rows of a batch, N rows, C classes.
"""

import difflib
import re
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from textcls.errors import ConfigError

_NAMED = re.compile(r"\s*(.+?)\s*=\s*([0-9.eE+-]+)\s*(?:,|$)")  # a name may itself have a comma, or an equals sign


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Mean over a batch's rows of w[y] * cross-entropy(softmax(logits), (1 - s) * onehot(y) + s / C).

    (Label smoothing s: Szegedy et al. 2016, arXiv:1512.00567, section 7.)
    """

    smoothing: float
    weights: Tensor | None  # (C,) float32; None counts every class alike

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:  # (B, C), (B,) -> scalar
        if self.weights is None:
            return F.cross_entropy(logits.float(), labels, label_smoothing=self.smoothing)
        losses = F.cross_entropy(logits.float(), labels, label_smoothing=self.smoothing, reduction="none")
        # Divided by the rows, not by their weights: a rare class counts as much in whichever batch its rows are.
        return (self.weights[labels] * losses).mean()


def class_weights(setting: str, class_names: tuple[str, ...], labels: Tensor) -> Tensor | None:
    """The weights (C,) that a `training.class_weights` asks for, given the labels (N,) of the training rows.

    "balanced" is N / (C * rows of the class), so that the classes count alike and the mean weight of a row is 1.

    Raises:
        ConfigError: it is not one of the three forms, or names a class that there isn't.
    """
    if setting == "none":
        return None
    if setting == "balanced":
        counts = torch.bincount(labels, minlength=len(class_names)).clamp(min=1)
        return len(labels) / (len(class_names) * counts.float())
    weights = torch.ones(len(class_names))
    for name, value in _named(setting):
        if name not in class_names:
            close = difflib.get_close_matches(name, class_names, n=1) or class_names
            raise ConfigError(
                f"--class-weights (training.class_weights): there is no class {name!r}; did you mean {close[0]!r}?"
            )
        weights[class_names.index(name)] = value
    return weights


def _named(setting: str) -> list[tuple[str, float]]:
    """`spam=3, ham=0.5` as [("spam", 3.0), ("ham", 0.5)]."""
    found: list[tuple[str, float]] = []
    position = 0
    while position < len(setting):
        match = _NAMED.match(setting, position)
        try:
            weight = float(match[2]) if match else 0.0
        except ValueError:
            weight = 0.0
        if match is None or not 0 < weight <= 1e6:
            raise ConfigError(
                f"training.class_weights: {setting!r} can't work; give balanced, or a weight above 0 by class, as in "
                "spam=3,ham=0.5."
            )
        found.append((match[1], weight))
        position = match.end()
    return found
