import math

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight

from textcls.data import sources
from textcls.errors import ConfigError
from textcls.objective import Objective, class_weights

NAMES = ("ham", "spam", "x=y", "a, b")


def test_plain_is_cross_entropy_to_the_bit() -> None:
    logits, labels = torch.randn(32, 5), torch.randint(5, (32,))
    plain = Objective(smoothing=0.0, weights=None)(logits, labels)
    assert torch.equal(plain, torch.nn.functional.cross_entropy(logits, labels))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_formula_by_hand(smoothing: float) -> None:
    logits, labels = torch.randn(8, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2, 0, 0])
    weights = torch.tensor([0.5, 2.0, 3.0])
    total = 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        norm = math.log(sum(map(math.exp, row)))
        target = [smoothing / 3 + (1 - smoothing) * (c == label) for c in range(3)]
        total += float(weights[label]) * sum(t * (norm - z) for t, z in zip(target, row, strict=True))
    found = Objective(smoothing=smoothing, weights=weights)(logits, labels)
    assert float(found) == pytest.approx(total / 8, rel=1e-5)


def test_balanced_is_scikit_learn_s() -> None:
    labels = torch.tensor(sources.load("sample").splits["train"].labels())[100:900]
    labels = labels[(labels != 2) | (torch.arange(800) % 7 == 0)]
    expected = compute_class_weight("balanced", classes=np.arange(4), y=labels.numpy())
    found = class_weights("balanced", ("a", "b", "c", "d"), labels)
    assert found is not None
    assert found.tolist() == pytest.approx(expected.tolist())
    assert float(found[labels].mean()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("spam=3", [1, 3, 1, 1]),
        ("spam=3,ham=0.5", [0.5, 3, 1, 1]),
        (" x=y = 2 ,  a, b=4e0", [1, 1, 2, 4]),
    ],
)
def test_weights_by_name(setting: str, expected: list[float]) -> None:
    found = class_weights(setting, NAMES, torch.zeros(1, dtype=torch.int64))
    assert found is not None
    assert found.tolist() == expected


def test_none_is_none() -> None:
    assert class_weights("none", NAMES, torch.zeros(1, dtype=torch.int64)) is None


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("spma=3", "--class-weights (training.class_weights): there is no class 'spma'; did you mean 'spam'?"),
        ("spam=0", "training.class_weights: 'spam=0' can't work; give balanced, or"),
        ("spam=-1", "can't work"),
        ("spam=1e99", "can't work"),
        ("spam=+-1", "can't work"),
        ("spam", "can't work"),
        ("balance", "can't work"),
        ("spam=1,,", "can't work"),
    ],
)
def test_weights_that_cannot_be_used_are_a_sentence(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        class_weights(setting, NAMES, torch.zeros(1, dtype=torch.int64))
    assert message in str(caught.value)
