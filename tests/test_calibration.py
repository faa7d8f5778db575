from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from textcls import artifact
from textcls.calibration import calibrate, fit_temperature
from textcls.data import sources
from textcls.data.batcher import Batcher
from textcls.data.encoded import encode_split
from textcls.evaluate import evaluate

CPU = torch.device("cpu")


@pytest.mark.parametrize("true", [0.3, 1.0, 4.0])
def test_the_temperature_that_made_the_labels_is_found(true: float) -> None:
    logits = torch.randn(100_000, 5, dtype=torch.float64) * 3
    labels = torch.distributions.Categorical(logits=logits / true).sample()
    assert fit_temperature(logits, labels) == pytest.approx(true, rel=0.02)


def test_no_other_temperature_is_better() -> None:
    logits, labels = torch.randn(500, 7) * 4, torch.randint(7, (500,))
    labels[:300] = logits[:300].argmax(-1)
    found = fit_temperature(logits, labels)
    best = F.cross_entropy(logits.double() / found, labels)
    for factor in (0.5, 0.9, 0.999, 1.001, 1.1, 2.0):
        assert F.cross_entropy(logits.double() / (found * factor), labels) > best


def test_where_none_is_best_one_is_kept() -> None:
    logits = torch.eye(4)
    assert fit_temperature(logits, torch.arange(4)) == 1.0  # every row is right: the colder the better
    assert fit_temperature(logits, torch.tensor([1, 2, 3, 0])) == 1.0  # every row is wrong: the hotter the better


def test_a_calibrated_model_is_as_right_and_loses_less(small_run: Path, tmp_path: Path) -> None:
    trained = artifact.load(small_run / "model.safetensors")
    rows = encode_split(sources.load("sample"), "test", trained.tokenizer, trained.config.batch.max_length)
    batcher = Batcher.of(rows, trained.tokenizer.pad_token, trained.config.batch)
    every = torch.arange(len(rows))
    before = evaluate(trained.model, batcher, every, 4, CPU)
    fitted = calibrate(trained, batcher, every, CPU)
    after = evaluate(fitted.model, batcher, every, 4, CPU)
    assert torch.equal(before.confusion, after.confusion)
    assert after.loss < before.loss
    artifact.save(fitted, tmp_path)
    assert artifact.load(tmp_path / "model.safetensors").temperature == fitted.temperature != 1
    assert calibrate(fitted, batcher, every, CPU).temperature == pytest.approx(fitted.temperature, rel=1e-4)
