from typing import Any

import pytest
import torch

from textcls.config import OptimizerConfig, ScheduleConfig, TransformerConfig
from textcls.model import TransformerClassifier
from textcls.optimizer import learning_rate, make_optimizer

NOAM = ScheduleConfig(name="noam", lr=1e-2, warmup_steps=1000)
LINEAR = ScheduleConfig(name="linear", lr=1e-3, warmup_steps=300)


@pytest.mark.parametrize(
    ("step", "expected"), [(1, 2.79508497e-8), (500, 1.39754249e-5), (1000, 2.79508497e-5), (4000, 1.39754249e-5)]
)
def test_noam_is_the_original_s(step: int, expected: float) -> None:
    assert learning_rate(NOAM, step, 4_000, d_model=128) == pytest.approx(expected, rel=1e-8)


def test_linear_goes_up_over_the_warm_up_and_down_to_zero() -> None:
    rates = [learning_rate(LINEAR, step, 3_910, 128) for step in range(1, 3_911)]
    assert rates[0] == pytest.approx(1e-3 / 300)
    assert rates[149] == pytest.approx(0.5e-3)
    assert max(rates) == rates[299] == 1e-3
    assert rates[-1] == 0
    down = torch.tensor(rates[299:], dtype=torch.float64).diff()
    assert torch.allclose(down, down[:1].expand_as(down))


@pytest.mark.parametrize("n_steps", [1, 2, 3, 10, 300])
def test_a_run_shorter_than_its_warm_up_still_has_rates(n_steps: int) -> None:
    rates = [learning_rate(LINEAR, step, n_steps, 128) for step in range(1, n_steps + 1)]
    assert all(0 <= rate <= 1e-3 for rate in rates)
    assert n_steps < 3 or max(rates) == 1e-3


def test_constant_is_constant() -> None:
    schedule = ScheduleConfig(name="constant", lr=0.5)
    assert {learning_rate(schedule, step, 10, 128) for step in range(1, 11)} == {0.5}


def tiny_model() -> TransformerClassifier:
    return TransformerClassifier(
        TransformerConfig(d_model=32, d_ff=64, n_layers=2), vocab_size=50, max_length=16, n_classes=3
    )


def test_adamw_decays_matrices_only() -> None:
    model = tiny_model()
    optimizer = make_optimizer(model, OptimizerConfig())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        decays = "weight" in name and "norm" not in name and "embeddings" not in name
        expected = before[name] * (1 - 0.1 * 0.01) if decays else before[name]
        torch.testing.assert_close(parameter.detach(), expected, msg=name)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_an_update_is_the_published_one(name: Any) -> None:
    """Two steps of Adam (Kingma & Ba, algorithm 1) by hand, with the decay where each variant has it."""
    config = OptimizerConfig(name=name, beta1=0.9, beta2=0.98, eps=1e-5, weight_decay=0.1)
    model = torch.nn.Linear(7, 5, bias=False).double()
    weight = model.weight.detach().clone()
    optimizer = make_optimizer(model, config)
    rate, first, second = 0.01, torch.zeros_like(weight), torch.zeros_like(weight)
    for step in (1, 2):
        gradient = torch.randn_like(weight)
        model.weight.grad = gradient.clone()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        if name == "adam":
            gradient = gradient + 0.1 * weight
        else:
            weight = weight * (1 - rate * 0.1)
        first = 0.9 * first + 0.1 * gradient
        second = 0.98 * second + 0.02 * gradient**2
        weight = weight - rate * (first / (1 - 0.9**step)) / ((second / (1 - 0.98**step)).sqrt() + 1e-5)
    torch.testing.assert_close(model.weight.detach(), weight, rtol=0, atol=1e-12)
