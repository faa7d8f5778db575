"""A temperature that makes a classifier as sure as it is right.

Shapes: N rows, C classes.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from textcls.artifact import Artifact
from textcls.data.batcher import Batcher, ordered_batches
from textcls.evaluate import EVAL_BATCH_TOKENS

MAX_TEMPERATURE = 20.0
_HALVINGS = 60


def calibrate(artifact: Artifact, batcher: Batcher, rows: Tensor, device: torch.device) -> Artifact:
    """`artifact` with its logits divided by the temperature that fits the given rows best; its classes stay.

    The head's weights and bias are divided, in place, so that whatever reads the model has the fitted probabilities.
    (Guo et al. 2017, arXiv:1706.04599)
    """
    model = artifact.model.to(device).eval()
    logits, labels = [], []
    with torch.inference_mode():
        for _, batch in ordered_batches(batcher, rows, EVAL_BATCH_TOKENS):
            assert batch.labels is not None  # validation rows have labels
            moved = batch.to(device)
            logits.append(model(moved.tokens, moved.keep).float().cpu())
            labels.append(batch.labels)
    temperature = fit_temperature(torch.cat(logits), torch.cat(labels))
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.div_(temperature)
    return replace(artifact, temperature=artifact.temperature * temperature)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T for which softmax(logits / T) has the least cross-entropy: logits (N, C), labels (N,).

    The cross-entropy is convex in b = 1 / T and its derivative is mean_n(sum_c p_nc z_nc - z_ny), whose zero is found
    by bisection of log b. Where it has none, as when every row is right, no temperature is the best, and 1 is kept.
    """
    z = logits.double()
    true = z.gather(1, labels[:, None]).squeeze(1)

    def derivative(log_b: float) -> float:
        p = (z * math.exp(log_b)).softmax(-1)
        return float(((p * z).sum(-1) - true).mean())

    low, high = -math.log(MAX_TEMPERATURE), math.log(MAX_TEMPERATURE)
    if not derivative(low) < 0 < derivative(high):
        return 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if derivative(middle) < 0 else (low, middle)
    return math.exp(-(low + high) / 2)
