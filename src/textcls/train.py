"""The training loop, which train and finetune share, with its optimizer and schedule; and `textcls train` itself."""

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from textcls import artifact as artifacts
from textcls.artifact import CHECKPOINTS, CONFIG, Artifact, new_model
from textcls.config import Config, OptimizerConfig, ScheduleConfig, first_difference
from textcls.data import sources
from textcls.data.batcher import Batch, Batcher, carve, epoch_batches, epoch_rows
from textcls.data.encoded import encode_split
from textcls.data.store import StoredData
from textcls.data.tokenizer import Tokenizer, make_tokenizer
from textcls.errors import ConfigError, TrainingError
from textcls.evaluate import evaluate, evaluate_split, logits_and_loss
from textcls.files import write_text
from textcls.journal import Bar, Journal, bar
from textcls.metrics import Counts
from textcls.model import count_parameters
from textcls.runtime import autocast, device_metrics, peak_memory_mib, seed_everything

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The train split as token ids, and which of its rows are for training and which for validation."""

    batcher: Batcher
    train_rows: Tensor  # row numbers, int64
    valid_rows: Tensor
    n_classes: int


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a training is; epochs and steps are counted as done."""

    epoch: int = 0
    step: int = 0
    best_epoch: int = 0
    best_accuracy: float = -1.0
    best_loss: float = math.inf
    metrics_bytes: int = 0


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


class Trainer:
    """One training: a model, its data, and all the state that a checkpoint holds."""

    def __init__(
        self, model: nn.Module, data: TrainingData, config: Config, device: torch.device, folder: Path, journal: Journal
    ) -> None:
        self.journal = journal
        self.model = model.to(device)
        self.data = data
        self.config = config
        self.device = device
        self.folder = folder
        self.optimizer = make_optimizer(model, config.optimizer)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.training.dtype == "f16")
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.progress = Progress()
        size = config.data.rows_per_epoch or len(data.train_rows)
        self.steps_per_epoch = math.ceil(size / config.batch.size)
        self.n_steps = self.steps_per_epoch * config.training.epochs

    def fit(self) -> Progress:
        """Train every epoch that isn't done yet, and leave the model with the weights of the best one."""
        for epoch in range(self.progress.epoch, self.config.training.epochs):
            self._epoch(epoch)
        best = artifacts.load_checkpoint(self.folder / CHECKPOINTS / "best.pt")
        self.model.load_state_dict(best["model"])
        return self.progress

    def _epoch(self, epoch: int) -> None:
        """Train one epoch, evaluate it, and write the checkpoints."""
        started = time.perf_counter()
        train, n_tokens = self._train_epoch(epoch)
        seconds = time.perf_counter() - started
        dtype = self.config.training.dtype
        valid = evaluate(self.model, self.data.batcher, self.data.valid_rows, self.data.n_classes, self.device, dtype)
        speed = {"rows_per_second": train.rows / seconds, "tokens_per_second": n_tokens / seconds}
        memory = {"peak_memory_mib": peak_memory_mib(), **device_metrics(self.device)}
        position = {"epoch": epoch + 1, "step": self.progress.step}
        self.journal.metrics({**position, "split": "train", **_rates(train), "lr": self._lr(), **speed, **memory})
        self.journal.metrics({**position, "split": "valid", **_rates(valid)})
        log.info(_epoch_line(epoch, self.config.training.epochs, train, valid, self._lr(), speed, memory))
        better = (valid.accuracy, -valid.loss) > (self.progress.best_accuracy, -self.progress.best_loss)
        if better:
            self.progress = replace(
                self.progress, best_epoch=epoch + 1, best_accuracy=valid.accuracy, best_loss=valid.loss
            )
            artifacts.save_checkpoint({"model": self.model.state_dict()}, self.folder / CHECKPOINTS / "best.pt")
        self.progress = replace(self.progress, epoch=epoch + 1, metrics_bytes=self.journal.metrics_bytes)
        artifacts.save_checkpoint(self.state(), self.folder / CHECKPOINTS / "last.pt")

    def _train_epoch(self, epoch: int) -> tuple[Counts, int]:
        """Train on one epoch's batches: the counts over its rows, and how many tokens they had."""
        self.model.train()
        counts, n_tokens = Counts(self.data.n_classes), 0
        batches = self._batches(epoch)
        with bar(f"epoch {epoch + 1}/{self.config.training.epochs}", len(batches)) as shown:
            for indices in batches:
                batch = self.data.batcher.batch(indices)
                assert batch.labels is not None
                logits, loss = self._step(batch.to(self.device))
                counts.add(logits, batch.labels, loss * len(logits))
                n_tokens += int(batch.keep.sum())
                self._report(counts, epoch, shown)
        return counts, n_tokens

    def _batches(self, epoch: int) -> list[Tensor]:
        config = self.config
        chosen = epoch_rows(
            len(self.data.train_rows),
            config.data.rows_per_epoch,
            epoch,
            config.training.seed,
            with_replacement=config.data.with_replacement,
        )
        seed = config.training.seed + epoch
        return epoch_batches(self.data.batcher, self.data.train_rows[chosen], config.batch.size, seed)

    def _step(self, batch: Batch) -> tuple[Tensor, float]:
        """One update: (logits, mean loss)."""
        rate = self._lr(self.progress.step + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with autocast(self.device, self.config.training.dtype):
            logits, loss = logits_and_loss(self.model, batch)
        value = loss.item()
        if not math.isfinite(value):
            raise TrainingError(self._not_finite(rate))
        self.scaler.scale(loss).backward()
        if self.config.optimizer.clip_norm:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.config.optimizer.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.progress = replace(self.progress, step=self.progress.step + 1)
        return logits, value

    def _lr(self, step: int | None = None) -> float:
        """The learning rate of a step, by default that of the last one done."""
        step = self.progress.step if step is None else step
        return learning_rate(self.config.schedule, step, self.n_steps, self.config.transformer.d_model)

    def _report(self, counts: Counts, epoch: int, shown: Bar) -> None:
        shown.advance({"loss": f"{counts.loss:.4f}", "accuracy": f"{counts.accuracy:.4f}"})
        if self.progress.step % self.config.training.log_every == 0:
            position = {"epoch": epoch + 1, "step": self.progress.step}
            self.journal.metrics({**position, "split": "train", "so_far": True, **_rates(counts), "lr": self._lr()})

    def _not_finite(self, rate: float) -> str:
        last = self.folder / CHECKPOINTS / "last.pt"
        kept = f"the last good state is {last}" if self.progress.epoch else "no epoch was complete yet"
        return (
            f"step {self.progress.step + 1}: the loss is not a finite number at a learning rate of {rate:.3g}; {kept}; "
            "try a smaller --set schedule.lr, or --dtype f32."
        )

    def state(self) -> dict[str, Any]:
        """Everything that it takes to go on from here as if never stopped."""
        return {
            "config": self.config.to_dict(),
            "progress": asdict(self.progress),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": torch.get_rng_state(),
        }

    def resume(self) -> None:
        """Take up the state of the folder's last checkpoint.

        Raises:
            ArtifactError: there is none, or it is damaged.
            ConfigError: it was made with another configuration.
        """
        path = self.folder / CHECKPOINTS / "last.pt"
        state = artifacts.load_checkpoint(path)
        if difference := first_difference(state["config"], self.config.to_dict()):
            key, then, now = difference
            raise ConfigError(f"--resume: {key} was {then} in {path}, and is {now} now; resume with that of then.")
        self.progress = Progress(**state["progress"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["random"])
        self.journal.rewind(self.progress.metrics_bytes)
        log.info("resuming after epoch %d", self.progress.epoch)


def prepare(config: Config, stored: StoredData, tokenizer: Tokenizer) -> TrainingData:
    """Tokenise the train split, and carve the validation rows from it; a split of them is put at its end.

    Raises:
        ConfigError: no row would be left to train on.
    """
    rows = encode_split(stored, "train", tokenizer, config.batch.max_length)
    if "valid" in stored.splits:
        rows = rows.joined(encode_split(stored, "valid", tokenizer, config.batch.max_length))
    train_rows, valid_rows = _carve(config, stored)
    return TrainingData(
        batcher=Batcher.of(rows, tokenizer.pad_token, config.batch),
        train_rows=train_rows,
        valid_rows=valid_rows,
        n_classes=len(stored.class_names),
    )


def train(config: Config, *, device: torch.device, folder: Path, resume: bool = False) -> Counts:
    """Train a classifier from random weights, save the best epoch's, and count its hits on the test split."""
    seed_everything(config.training.seed)
    with Journal(folder, resume=resume) as journal:
        write_text(folder / CONFIG, config.to_json())
        stored = sources.load(config.dataset, config.data)
        tokenizer = make_tokenizer(config.tokenizer, _training_texts(config, stored))
        data = prepare(config, stored, tokenizer)
        model = new_model(config, vocab_size=tokenizer.vocab_size, n_classes=data.n_classes)
        trainer = Trainer(model, data, config, device, folder, journal)
        run(trainer, stored, resume=resume)
        artifact = Artifact(model=model, config=config, class_names=stored.class_names, tokenizer=tokenizer)
        return finish(artifact, stored, folder, device)


def finish(artifact: Artifact, stored: StoredData, folder: Path, device: torch.device) -> Counts:
    """Save the artifact, and count its hits on the test split: the one time that training reads it."""
    artifacts.save(artifact, folder)
    counts = evaluate_split(artifact, stored, "test", device, artifact.config.training.dtype)
    log.info("test: %d rows, loss %.4f, accuracy %.4f", counts.rows, counts.loss, counts.accuracy)
    return counts


def run(trainer: Trainer, stored: StoredData, *, resume: bool) -> None:
    """Say what will be trained, then train it: from the folder's last checkpoint, or afresh in an emptied folder."""
    announce(trainer, stored)
    if resume:
        trainer.resume()
    else:
        artifacts.clear(trainer.folder)
    trainer.fit()


def announce(trainer: Trainer, stored: StoredData) -> None:
    """Say what is about to be trained, on what, and how."""
    config, data = trainer.config, trainer.data
    n_all, n_trained = count_parameters(trainer.model)
    log.info("%s", trainer.model)
    log.info("parameters: %s, of which trained: %s (%.2f %%)", f"{n_all:,}", f"{n_trained:,}", 100 * n_trained / n_all)
    log.info("data: %s; classes: %s", stored.origin, ", ".join(stored.class_names))
    log.info("rows: %s for training, %s for validation", f"{len(data.train_rows):,}", f"{len(data.valid_rows):,}")
    if n_cut := data.batcher.rows.n_cut:
        log.info("cut at batch.max_length = %d tokens: %s of them", config.batch.max_length, f"{n_cut:,}")
    log.info(
        "%d epochs of %s steps of %d rows on %s in %s, seed %d",
        *(config.training.epochs, f"{trainer.steps_per_epoch:,}", config.batch.size),
        *(trainer.device, config.training.dtype, config.training.seed),
    )


def _carve(config: Config, stored: StoredData) -> tuple[Tensor, Tensor]:
    """The row numbers of the train split, with that of validation at its end, that are for (training, validation)."""
    n_rows, n_valid = len(stored.splits["train"]), config.data.valid_rows
    if "valid" in stored.splits:
        return torch.arange(n_rows), torch.arange(n_rows, n_rows + len(stored.splits["valid"]))
    if n_valid >= n_rows:
        raise ConfigError(f"data.valid_rows: {n_valid} leaves none of {n_rows} rows to train on; give a smaller one.")
    return carve(n_rows, n_valid, config.training.seed)


def _training_texts(config: Config, stored: StoredData) -> Iterator[str]:
    """The texts that a tokenizer may be trained on: those of the training rows, and none of validation."""
    chosen = torch.zeros(len(stored.splits["train"]), dtype=torch.bool)
    chosen[_carve(config, stored)[0]] = True
    return (item.text for item, wanted in zip(stored.splits["train"], chosen.tolist(), strict=True) if wanted)


def _rates(counts: Counts) -> dict[str, float]:
    return {"rows": counts.rows, "loss": counts.loss, "accuracy": counts.accuracy}


def _epoch_line(
    epoch: int,
    epochs: int,
    train: Counts,
    valid: Counts,
    lr: float,
    speed: dict[str, float],
    memory: dict[str, float],
) -> str:
    return (
        f"epoch {epoch + 1}/{epochs}: "
        f"train loss {train.loss:.4f} accuracy {train.accuracy:.4f}, "
        f"valid loss {valid.loss:.4f} accuracy {valid.accuracy:.4f}, lr {lr:.2e}, "
        f"{speed['rows_per_second']:.0f} rows/s, {speed['tokens_per_second']:.0f} tokens/s, "
        + ", ".join(f"{name.replace('_', ' ')} {value:.0f}" for name, value in memory.items())
    )
