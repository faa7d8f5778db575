import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL
from safetensors.torch import load_file

from textcls import artifact, checkpoint, load
from textcls.artifact import new_model
from textcls.config import Config, recipe
from textcls.data import sources
from textcls.data.lsa import token_vectors
from textcls.data.tokenizer import make_tokenizer
from textcls.errors import ConfigError, StorageError, TrainingError
from textcls.evaluate import evaluate_split
from textcls.journal import Journal
from textcls.optimizer import learning_rate
from textcls.runtime import seed_everything
from textcls.train import Trainer, train
from textcls.training_data import prepare, training_texts

CPU = torch.device("cpu")


def small(**sections: dict[str, Any]) -> Config:
    return recipe("sample").override(SMALL).override(sections)


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


def test_embeddings_start_from_the_training_rows_where_that_is_asked_for(tmp_path: Path) -> None:
    config = small(transformer={"embedding_init": "lsa"}, training={"steps": 1})
    train(config, device=CPU, folder=tmp_path)
    started = checkpoint.read(tmp_path / "checkpoints/step-0000000000.pt")["model"]["embeddings.token.weight"]
    stored = sources.load("sample")
    tokenizer = make_tokenizer(config.tokenizer, training_texts(config, stored))
    data = prepare(config, stored, tokenizer)
    seed_everything(config.training.seed)
    drawn = new_model(config, vocab_size=tokenizer.vocab_size, n_classes=4).embeddings
    drawn.start_from(token_vectors(data.batcher.rows, data.train_rows, tokenizer.vocab_size, d_model=32), std=0.05)
    assert torch.equal(started, drawn.token.weight)


def test_another_seed_gives_another_model(small_run: Path, tmp_path: Path) -> None:
    train(small(training={"seed": 1}), device=CPU, folder=tmp_path)
    assert not torch.equal(weights(tmp_path)["head.weight"], weights(small_run)["head.weight"])


def test_the_log_names_measures_with_their_units(small_run: Path) -> None:
    lines = (small_run / "experiment.log").read_text().splitlines()
    line = next(line for line in lines if "epoch 1/2: train loss" in line)
    assert re.search(r", \d+ rows per second, \d+ tokens per second, peak memory \d+ MiB$", line)


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
        assert 0 < line["macro_f1"] <= 1
        assert min(line[key] for key in ("rows_per_second", "tokens_per_second", "peak_memory_mib")) > 0
        assert 15 < line["tokens_per_second"] / line["rows_per_second"] < 100
    assert [line["rows"] for line in epochs[1::2]] == [160, 160]
    assert [line["step"] for line in lines if "so_far" in line] == [10, 20, 30, 40, 50, 60, 70]
    log = (small_run / "experiment.log").read_text()
    for part in (
        "parameters: ",
        "seed 0",
        "epoch 2/2: train loss",
        " macro-F1 0.",
        "test: 320 rows",
        "TransformerClassifier(",
    ):
        assert part in log


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_best_epoch_by_validation_is_what_is_saved_or_the_last(tmp_path: Path, keep: str) -> None:
    training = {"epochs": 4, "keep": keep}
    # At a constant learning rate this high the last epoch is hardly the best.
    train(small(training=training, schedule={"name": "constant", "lr": 1e-2}), device=CPU, folder=tmp_path)
    valid = [line for line in metrics(tmp_path) if line["split"] == "valid"]
    best = max(valid, key=lambda line: (line["accuracy"], -line["loss"]))
    state = checkpoint.load(tmp_path / "checkpoints")
    assert state["progress"]["best_epoch"] == best["epoch"]
    saved = weights(tmp_path)
    assert all(torch.equal(saved[name], tensor) for name, tensor in state["best"].items())
    is_last = all(torch.equal(saved[name], tensor) for name, tensor in state["model"].items())
    assert is_last == (keep == "last" or best["epoch"] == 4)


def test_training_anew_leaves_nothing_of_the_run_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("model.safetensors", "checkpoints/last.pt", "adapter/adapter_config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old")
    monkeypatch.setattr(Trainer, "_epoch", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(small(), device=CPU, folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        ".lock",
        *("config.json", "experiment.log", "metrics.jsonl", "checkpoints"),
    }
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-0000000000.pt"]


def test_a_training_that_fails_before_it_begins_leaves_what_was_there(tmp_path: Path) -> None:
    old = {name: tmp_path / "old" / name for name in ("model.safetensors", "metrics.jsonl", "experiment.log")}
    (tmp_path / "old").mkdir()
    for path in old.values():
        path.write_text("old")
    wrong = small(training={"class_weights": "spam=2"})
    for folder in (tmp_path / "old", tmp_path / "new"):
        with pytest.raises(ConfigError, match="there is no class 'spam'"):
            train(wrong, device=CPU, folder=folder)
    assert {path.read_text() for path in old.values()} == {"old"}
    assert not (tmp_path / "new").exists()


def test_a_folder_takes_one_training_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path) as first:
        first.metrics({"kept": 1})
        with pytest.raises(StorageError, match="another training is writing there"):
            train(small(), device=CPU, folder=tmp_path)
    assert metrics(tmp_path) == [{"kept": 1}]


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def trainer(folder: Path, config: Config, journal: Journal) -> Trainer:
    stored = sources.load("sample")
    tokenizer = make_tokenizer(config.tokenizer, training_texts(config, stored))
    data = prepare(config, stored, tokenizer)
    model = artifact.new_model(config, vocab_size=tokenizer.vocab_size, n_classes=data.n_classes)
    return Trainer(model, data, config, CPU, folder, journal)


def test_validation_rows_are_carved_from_train_and_never_trained_on(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        run = trainer(tmp_path, small(), journal)
        seen: set[int] = set()
        for epoch in range(3):
            run.progress = replace(run.progress, epoch=epoch)
            seen.update(torch.cat(run._batches()).tolist())
    valid = set(run.data.valid_rows.tolist())
    assert len(valid) == 160
    assert seen == set(range(1_280)) - valid


def test_so_many_rows_of_each_class_keep_their_label(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        few = trainer(tmp_path, small(data={"labels_per_class": 5}), journal).data
    with Journal(tmp_path) as journal:
        every = trainer(tmp_path, small(), journal).data
    assert few.batcher.rows.labels is not None
    assert few.batcher.rows.labels[few.train_rows].bincount().tolist() == [5, 5, 5, 5]
    assert set(few.train_rows.tolist()) < set(few.text_rows.tolist())
    assert torch.equal(few.text_rows, every.train_rows)
    assert torch.equal(few.valid_rows, every.valid_rows)


def test_a_tokenizer_is_trained_without_the_validation_rows() -> None:
    stored, config = sources.load("sample"), small()
    texts = list(training_texts(config, stored))
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
    assert str(tmp_path / "checkpoints/step-0000000035.pt") in str(caught.value)
    kept = checkpoint.load(tmp_path / "checkpoints")["model"]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in kept.values())


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_mixed_precision_learns_and_saves_f32(dtype: Any, tmp_path: Path) -> None:
    train(small(training={"dtype": dtype, "epochs": 4}), device=CPU, folder=tmp_path)
    losses = [line["loss"] for line in metrics(tmp_path) if line["split"] == "train" and "so_far" not in line]
    assert losses[-1] < losses[0] < math.log(4) + 0.1
    assert {tensor.dtype for tensor in weights(tmp_path).values()} == {torch.float32}


def test_f16_leaves_out_steps_that_overflow_until_the_scale_fits(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        run = trainer(tmp_path, small(training={"dtype": "f16"}), journal)
        run.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
        before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
        run._step(run._batches()[:1])
        assert (run.progress.step, run.progress.skipped, run.progress.skipped_in_a_row) == (1, 1, 1)
        assert all(torch.equal(tensor, before[name]) for name, tensor in run.model.state_dict().items())
        run._epoch()
    assert 1 < run.progress.skipped < 20
    assert run.progress.skipped_in_a_row == 0
    line = metrics(tmp_path)[-2]
    assert line["skipped_steps"] == run.progress.skipped
    assert math.isfinite(line["loss"])


def test_f16_that_overflows_whatever_the_scale_stops_with_advice(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        run = trainer(tmp_path, small(training={"dtype": "f16"}), journal)
        run.save()
        with torch.no_grad():
            run.model.get_submodule("head").weight.fill_(1e5)  # type: ignore[operator]
        with pytest.raises(
            TrainingError, match=r"20 steps in a row overflowed in f16 at .*step-0000000000\.pt; try a sm"
        ):
            run._epoch()
    assert run.progress.skipped == run.progress.step == 20


@pytest.mark.parametrize("padding", ["fixed", "longest"])
def test_accumulated_batches_are_one_larger_batch(padding: Any, tmp_path: Path) -> None:
    """The same rows in one batch of 28, or in three of 12, 12 and 4, give one update."""
    updated = []
    for accumulate in (1, 3):
        config = small(training={"accumulate": accumulate}, transformer={"dropout": 0.0}, batch={"padding": padding})
        torch.manual_seed(0)
        with Journal(tmp_path) as journal:
            run = trainer(tmp_path, config, journal)
        rows = run.data.train_rows[:28]
        run._step([rows] if accumulate == 1 else list(rows.split(12)))
        assert run.progress.step == 1
        rates = run.so_far.counts.rates()
        assert rates["rows"] == 28
        updated.append((rates["loss"], run.model.state_dict()))
    (loss, one), (sums, several) = updated
    assert sums == pytest.approx(loss, rel=1e-5)
    for name, tensor in one.items():
        torch.testing.assert_close(several[name], tensor, rtol=0, atol=1e-5)


@pytest.mark.parametrize("padding", ["fixed", "longest"])
def test_a_batch_of_many_tokens_is_computed_in_parts_with_the_same_update(
    padding: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updated = []
    for most in (100_000, 400, 20):
        monkeypatch.setattr("textcls.train.TOKENS_AT_ONCE", most)
        config = small(transformer={"dropout": 0.0}, batch={"padding": padding})
        torch.manual_seed(0)
        with Journal(tmp_path) as journal:
            run = trainer(tmp_path, config, journal)
        rows = run.data.train_rows[:30]
        assert (len(run._parts(rows)) == 1) == (most == 100_000)
        run._step([rows])
        assert run.progress.step == 1
        updated.append((run.so_far.counts.rates()["loss"], run.model.state_dict()))
    (loss, whole), *others = updated
    for sums, parts in others:
        assert sums == pytest.approx(loss, rel=1e-5)
        for name, tensor in whole.items():
            torch.testing.assert_close(parts[name], tensor, rtol=0, atol=1e-5)


def test_accumulation_makes_fewer_steps_of_the_same_rows(tmp_path: Path) -> None:
    train(small(training={"accumulate": 4, "epochs": 1}), device=CPU, folder=tmp_path)
    last = metrics(tmp_path)[-2]
    assert (last["step"], last["rows"]) == (9, 1_120)


def test_steps_end_a_training_within_an_epoch(tmp_path: Path) -> None:
    train(small(training={"steps": 50}), device=CPU, folder=tmp_path)
    ends = [line for line in metrics(tmp_path) if line["split"] == "train" and "so_far" not in line]
    assert [(line["epoch"], line["step"], line["rows"]) for line in ends] == [(1, 35, 1_120), (2, 50, 480)]
    assert ends[-1]["lr"] == 0  # the schedule is that of 50 steps


def test_averaged_weights_are_what_is_saved(tmp_path: Path) -> None:
    constant: dict[str, Any] = {"name": "constant", "lr": 1e-3}
    ends = []
    for steps in (1, 2, 3):
        train(small(training={"steps": steps}, schedule=constant), device=CPU, folder=tmp_path / str(steps))
        ends.append(weights(tmp_path / str(steps)))
    averaging = small(training={"steps": 3, "averaging": 0.2}, schedule=constant)
    train(averaging, device=CPU, folder=tmp_path / "averaged")
    for name, found in weights(tmp_path / "averaged").items():
        first, second, third = (end[name] for end in ends)
        after_two = torch.lerp(first, second, 9 / 11)  # the decay is still 2 / 11; then it would be 3 / 12
        torch.testing.assert_close(found, torch.lerp(after_two, third, 0.8), rtol=1e-5, atol=1e-7)
    assert not torch.equal(found, third)


def test_patience_ends_a_training_that_no_longer_gets_better(tmp_path: Path) -> None:
    still: dict[str, Any] = {"name": "constant", "lr": 1e-12}  # moves no weight
    config = small(training={"epochs": 9, "patience": 2}, schedule=still, data={"rows_per_epoch": 64})
    train(config, device=CPU, folder=tmp_path)
    assert [line["epoch"] for line in metrics(tmp_path) if line["split"] == "valid"] == [1, 2, 3]
    assert "stopping early: no epoch after the 1. was better" in (tmp_path / "experiment.log").read_text()


def test_a_class_of_more_weight_is_predicted_more(small_run: Path, tmp_path: Path) -> None:
    plain = (small_run / "experiment.log").read_text()
    assert "class weights" not in plain
    config = small(training={"class_weights": "Sports=30", "label_smoothing": 0.1})
    weighted = train(config, device=CPU, folder=tmp_path)
    assert "class weights: World 1, Sports 30, Business 1" in (tmp_path / "experiment.log").read_text()
    stored = sources.load("sample")
    even = evaluate_split(artifact.load(small_run / "model.safetensors"), stored, "test", CPU, "f32")
    assert weighted.confusion.sum(0)[1] > even.confusion.sum(0)[1] + 20


def test_calibration_is_of_the_head_alone(small_run: Path, tmp_path: Path) -> None:
    train(small(training={"calibrate": True}), device=CPU, folder=tmp_path)
    temperature = artifact.load(tmp_path / "model.safetensors").temperature
    assert f"calibrated: temperature {temperature:.3f}" in (tmp_path / "experiment.log").read_text()
    assert abs(temperature - 1) > 0.01
    plain, fitted = weights(small_run), weights(tmp_path)
    for name, tensor in plain.items():
        expected = tensor / temperature if name.startswith("head.") else tensor
        torch.testing.assert_close(fitted[name], expected, rtol=1e-6, atol=0)
    text = ["Shares fell after the bank's results."]
    before, after = (load(folder, device="cpu").probabilities(text) for folder in (small_run, tmp_path))
    torch.testing.assert_close(after, (before.log() / temperature).softmax(-1), rtol=1e-4, atol=1e-6)


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
    texts = list(training_texts(config, stored))
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
