"""The update rule, and its learning rate at each step."""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from textcls.config import OptimizerConfig, ScheduleConfig


def learning_rate(schedule: ScheduleConfig, step: int, n_steps: int, d_model: int) -> float:
    """The learning rate of step 1 ... n_steps.

    linear: lr * min(step / warmup, (n_steps - step) / (n_steps - warmup)), which ends at 0.
    noam: lr * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)  (Vaswani et al. 2017, arXiv:1706.03762, eq. 3)
    constant: lr
    """
    warmup = schedule.warmup_steps
    if schedule.name == "noam":
        return float(schedule.lr * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))
    if schedule.name == "constant":
        return schedule.lr
    warmup = min(warmup, max(1, n_steps // 2))  # a run shorter than its warm-up still comes down again
    if step < warmup:
        return schedule.lr * step / warmup
    return schedule.lr * (n_steps - step) / max(1, n_steps - warmup)


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The optimizer over the parameters that are trained.

    "adamw" decays matrices, and neither embeddings, biases nor norms (Loshchilov & Hutter 2017, arXiv:1711.05101);
    "adam" adds weight_decay * parameter to every gradient, as the original does.
    """
    settings: dict[str, Any] = {"betas": (config.beta1, config.beta2), "eps": config.eps, "fused": True}
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if config.name == "adam":
        return torch.optim.Adam(trained.values(), weight_decay=config.weight_decay, **settings)
    decayed = {name for name, parameter in trained.items() if parameter.ndim == 2 and "embeddings." not in name}
    groups = [
        {"params": [trained[name] for name in trained if name in decayed], "weight_decay": config.weight_decay},
        {"params": [trained[name] for name in trained if name not in decayed], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, **settings)
