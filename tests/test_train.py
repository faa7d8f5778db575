import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL
from safetensors.torch import load_file

from textcls import artifact, checkpoint
from textcls.config import Config, OptimizerConfig, ScheduleConfig, recipe
from textcls.data import sources
from textcls.data.tokenizer import make_tokenizer
from textcls.errors import ConfigError, TrainingError
from textcls.journal import Journal
from textcls.model import TransformerClassifier
from textcls.optimizer import learning_rate, make_optimizer
from textcls.train import Trainer, _training_texts, prepare, train

CPU = torch.device("cpu")
NOAM = ScheduleConfig(name="noam", lr=1e-2, warmup_steps=1000)
LINEAR = ScheduleConfig(name="linear", lr=1e-3, warmup_steps=300)


def small(**sections: dict[str, Any]) -> Config:
    return recipe("sample").override(SMALL).override(sections)


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
    config = small().transformer
    return TransformerClassifier(config, vocab_size=50, max_length=16, n_classes=3)


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


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def timeless(folder: Path) -> list[dict[str, Any]]:
    """The metrics without those of the clock and the machine."""
    measured = {"rows_per_second", "tokens_per_second", "peak_memory_mib"}
    return [{key: value for key, value in line.items() if key not in measured} for line in metrics(folder)]


def test_the_same_seed_gives_the_same_bytes(small_run: Path, tmp_path: Path) -> None:
    train(small(), device=CPU, folder=tmp_path / "again")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (small_run / "model.safetensors").read_bytes()
    assert timeless(tmp_path / "again") == timeless(small_run)


def test_another_seed_gives_another_model(small_run: Path, tmp_path: Path) -> None:
    train(small(training={"seed": 1}), device=CPU, folder=tmp_path)
    assert not torch.equal(weights(tmp_path)["head.weight"], weights(small_run)["head.weight"])


def test_every_epoch_is_on_record(small_run: Path) -> None:
    lines = metrics(small_run)
    epochs = [line for line in lines if "so_far" not in line]
    assert [(line["epoch"], line["split"]) for line in epochs] == [
        (1, "train"),
        (1, "valid"),
        (2, "train"),
        (2, "valid"),
    ]
    for line in epochs[::2]:
        assert line["rows"] == 1_120
        assert min(line[key] for key in ("rows_per_second", "tokens_per_second", "peak_memory_mib")) > 0
        assert 15 < line["tokens_per_second"] / line["rows_per_second"] < 100
    assert [line["rows"] for line in epochs[1::2]] == [160, 160]
    assert [line["step"] for line in lines if "so_far" in line] == [10, 20, 30, 40, 50, 60, 70]
    log = (small_run / "experiment.log").read_text()
    for part in ("parameters: ", "seed 0", "epoch 2/2: train loss", "test: 320 rows", "TransformerClassifier("):
        assert part in log


def test_the_best_epoch_by_validation_is_what_is_saved(tmp_path: Path) -> None:
    train(small(training={"epochs": 4}, schedule={"name": "constant", "lr": 1e-2}), device=CPU, folder=tmp_path)
    valid = [line for line in metrics(tmp_path) if line["split"] == "valid"]
    best = max(valid, key=lambda line: (line["accuracy"], -line["loss"]))
    state = checkpoint.load(tmp_path / "checkpoints")
    assert state["progress"]["best_epoch"] == best["epoch"]
    saved = weights(tmp_path)
    assert all(torch.equal(saved[name], tensor) for name, tensor in state["best"].items())
    same = all(torch.equal(saved[name], tensor) for name, tensor in state["model"].items())
    assert same == (best["epoch"] == 4)


def test_training_anew_leaves_nothing_of_the_run_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("model.safetensors", "checkpoints/last.pt", "adapter/adapter_config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old")
    monkeypatch.setattr(Trainer, "_epoch", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(small(), device=CPU, folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("config.json", "experiment.log", "metrics.jsonl", "checkpoints")
    }
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000000.pt"]


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def trainer(folder: Path, config: Config, journal: Journal) -> Trainer:
    stored = sources.load("sample")
    tokenizer = make_tokenizer(config.tokenizer, _training_texts(config, stored))
    data = prepare(config, stored, tokenizer)
    model = artifact.new_model(config, vocab_size=tokenizer.vocab_size, n_classes=data.n_classes)
    return Trainer(model, data, config, CPU, folder, journal)


def test_validation_rows_are_carved_from_train_and_never_trained_on(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        run = trainer(tmp_path, small(), journal)
        seen = {int(row) for epoch in range(3) for batch in run._batches(epoch) for row in batch}
    valid = set(run.data.valid_rows.tolist())
    assert len(valid) == 160
    assert seen == set(range(1_280)) - valid


def test_a_tokenizer_is_trained_without_the_validation_rows() -> None:
    stored, config = sources.load("sample"), small()
    texts = list(_training_texts(config, stored))
    assert len(texts) == 1_120


def test_a_loss_that_is_not_finite_stops_with_step_rate_and_checkpoint(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        run = trainer(tmp_path, small(), journal)
        run._epoch()
        with torch.no_grad():
            next(run.model.parameters()).fill_(math.nan)
        with pytest.raises(TrainingError) as caught:
            run._epoch()
        with pytest.raises(TrainingError, match="the weights are no longer finite numbers"):
            run.save()
    rate = learning_rate(run.config.schedule, 36, 70, 32)
    assert "step 36: the loss is not a finite number" in str(caught.value)
    assert f"learning rate of {rate:.3g}" in str(caught.value)
    assert str(tmp_path / "checkpoints/step-00000035.pt") in str(caught.value)
    kept = checkpoint.load(tmp_path / "checkpoints")["model"]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in kept.values())


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_mixed_precision_learns_and_saves_f32(dtype: Any, tmp_path: Path) -> None:
    train(small(training={"dtype": dtype, "epochs": 4}), device=CPU, folder=tmp_path)
    losses = [line["loss"] for line in metrics(tmp_path) if line["split"] == "train" and "so_far" not in line]
    assert losses[-1] < losses[0] < math.log(4) + 0.1
    assert {tensor.dtype for tensor in weights(tmp_path).values()} == {torch.float32}


def test_too_many_validation_rows_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.valid_rows: 1280 leaves none of 1280 rows"):
        train(small(data={"valid_rows": 1_280}), device=CPU, folder=tmp_path)


def test_the_original_s_recipe_runs_through_the_same_loop(tmp_path: Path) -> None:
    original: dict[str, dict[str, Any]] = {
        "transformer": {"score_dropout": 0.1, "embedding_std": 1.0},
        "batch": {"padding": "fixed", "max_length": 64},
        "optimizer": {"name": "adam", "eps": 1e-5, "weight_decay": 5e-5, "clip_norm": 0, "beta2": 0.999},
        "schedule": {"name": "noam", "lr": 1e-2, "warmup_steps": 1000},
        "data": {"with_replacement": True, "rows_per_epoch": 320},
    }
    counts = train(small(**original), device=CPU, folder=tmp_path)
    assert counts.rows == 320
    assert metrics(tmp_path)[-1]["step"] == 20


def test_the_loop_can_fit_what_it_is_given(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        config = small(training={"epochs": 12}, transformer={"dropout": 0.0})
        run = trainer(tmp_path, config, journal)
        run.data = replace(run.data, train_rows=run.data.train_rows[:64], valid_rows=run.data.train_rows[:64])
        run.fit()
    assert run.progress.best_accuracy == 1.0


def test_a_valid_split_is_what_a_training_is_validated_on(tmp_path: Path, own_cache: Path) -> None:
    for split, n in (("train", 50), ("valid", 9), ("test", 12)):
        lines = "".join(f"{split} text {i},{'ab'[i % 2]}\n" for i in range(n))
        (tmp_path / f"{split}.csv").write_text(f"text,label\n{lines}")
    stored = sources.load(str(tmp_path))
    config = small(data={"valid_rows": 20})
    texts = list(_training_texts(config, stored))
    assert texts == [f"train text {i}" for i in range(50)]
    tokenizer = make_tokenizer(config.tokenizer, texts)
    data = prepare(config, stored, tokenizer)
    assert (len(data.train_rows), len(data.valid_rows)) == (50, 9)
    for rows, split in ((data.train_rows, "train"), (data.valid_rows, "valid")):
        for row, item in zip(rows.tolist(), stored.splits[split], strict=True):
            batch = data.batcher.batch(torch.tensor([row]))
            assert batch.tokens[0].tolist() == tokenizer.encode(item.text)
            assert batch.labels is not None
            assert batch.labels.tolist() == [item.label]
