"""The training loop, which train and finetune share; and `textcls train` itself."""

import logging
import math
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from textcls import artifact as artifacts
from textcls import checkpoint
from textcls.artifact import CHECKPOINTS, CONFIG, Artifact, new_model
from textcls.calibration import calibrate
from textcls.config import Config, ScheduleConfig, checkpoint_interval, first_difference
from textcls.data import sources
from textcls.data.batcher import Batch, epoch_batches, epoch_rows
from textcls.data.lsa import token_vectors
from textcls.data.store import StoredData
from textcls.data.tokenizer import make_tokenizer
from textcls.errors import ConfigError, DataError, Interrupted, TrainingError
from textcls.evaluate import evaluate, evaluate_split, logits_and_loss
from textcls.files import sweep, write_text
from textcls.guessing import TokenGuesser, token_counts
from textcls.journal import Bar, Journal, bar
from textcls.metrics import Counts, Guesses
from textcls.model import TransformerClassifier, count_parameters
from textcls.objective import Objective, class_weights
from textcls.optimizer import learning_rate, make_optimizer
from textcls.runtime import (
    StopRequest,
    autocast,
    device_metrics,
    peak_memory_mib,
    random_state,
    seed_everything,
    set_random_state,
)
from textcls.training_data import TrainingData, prepare, training_texts

TOKENS_AT_ONCE = 2_048
"""Tokens, padding included, that are computed at once: a batch of more in parts, whose gradients add up to its own.

A batch of the longest rows then takes no more memory than any other, and what the heap keeps of it stays small: the
training of the original's model on DbPedia peaks at 1,320 MiB rather than at 1,860, in the same time.
"""
MAX_SKIPPED = 20  # after as many halvings a loss scale of 2^16 is below 1: the overflow isn't the scale's
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a training is; epochs and steps are counted as done."""

    epoch: int = 0
    """Of pretraining and training together, as `step`."""
    step: int = 0
    best_epoch: int = 0
    """Of training, from 1."""
    best_accuracy: float = -1.0
    best_loss: float = math.inf
    skipped: int = 0
    """Steps whose gradient overflowed in f16, and was not applied."""
    skipped_in_a_row: int = 0


@dataclass(kw_only=True)
class EpochSoFar:
    """What is summed over the batches of the epoch that is under way."""

    counts: Counts | Guesses
    n_rows: int = 0
    n_tokens: int = 0
    seconds: float = 0.0


class Trainer:
    """One training: a model, its data, and all the state that a checkpoint holds."""

    def __init__(
        self,
        model: nn.Module,
        data: TrainingData,
        config: Config,
        device: torch.device,
        folder: Path,
        journal: Journal,
        guesser: TokenGuesser | None = None,
    ) -> None:
        self.journal = journal
        self.model = model.to(device)
        self.guesser = guesser if guesser is None else guesser.to(device)
        self.trained = self.model if self.guesser is None else self.guesser  # which has the model in it
        self.data = data
        self.config = config
        self.device = device
        self.folder = folder
        self.optimizer = make_optimizer(self.trained, config.optimizer)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.training.dtype == "f16")
        self.parameters = [parameter for parameter in self.trained.parameters() if parameter.requires_grad]
        self.averaged = _averaged(self.model, config.training.averaging)
        self.objective = _objective(config, data, device)
        self.steps_per_epoch = self._n_steps(data.train_rows)
        self.n_steps = config.training.steps or self.steps_per_epoch * config.training.epochs
        self.n_epochs = math.ceil(self.n_steps / self.steps_per_epoch)
        self.pretraining_epochs = config.pretraining.epochs
        self.pretraining_steps = self.pretraining_epochs * self._n_steps(data.text_rows)
        self.progress = Progress()
        self.so_far = EpochSoFar(counts=self._no_counts())
        self.best: dict[str, Tensor] = {}  # the weights of the epoch that is to be kept, on the CPU
        self.stop = StopRequest()
        self.saved_step, self.saved_at = 0, time.monotonic()

    def fit(self) -> Progress:
        """Train what isn't done yet, and leave the model with the weights of the epoch that is kept.

        Raises:
            Interrupted: a signal asked to stop; the state is saved.
            TrainingError: the loss is not finite.
            StorageError: a checkpoint can't be written.
        """
        with StopRequest() as self.stop:
            while self.progress.epoch < self.pretraining_epochs + self.n_epochs and not self._out_of_patience():
                self._epoch()
        self.model.load_state_dict(self.best)
        return self.progress

    @property
    def _is_pretraining(self) -> bool:
        return self.progress.epoch < self.pretraining_epochs

    @property
    def _n_done(self) -> int:
        """Epochs of the phase, pretraining or training, that are done."""
        return self.progress.epoch if self._is_pretraining else self.progress.epoch - self.pretraining_epochs

    def _n_steps(self, rows: Tensor) -> int:
        """How many steps an epoch of these rows takes."""
        n_rows = self.config.data.rows_per_epoch or len(rows)
        return math.ceil(math.ceil(n_rows / self.config.batch.size) / self.config.training.accumulate)

    def _no_counts(self) -> Counts | Guesses:
        return Guesses() if self._is_pretraining else Counts(self.data.n_classes)

    def _out_of_patience(self) -> bool:
        patience, stale = self.config.training.patience, self._n_done - self.progress.best_epoch
        if patience and stale >= patience and not self._is_pretraining:
            log.info("stopping early: no epoch after the %d. was better", self.progress.best_epoch)
            return True
        return False

    def _epoch(self) -> None:
        """Train what is left of an epoch, evaluate it, and write a checkpoint."""
        self._train_epoch()
        if self._is_pretraining:
            self._record(None)
        else:
            self._validate()
        self.progress = replace(self.progress, epoch=self.progress.epoch + 1)
        self.so_far = EpochSoFar(counts=self._no_counts())
        self._checkpoint(due=True)

    def _validate(self) -> None:
        """Evaluate an epoch, and keep its weights if it is the best so far, or if the last is what is asked for."""
        dtype = self.config.training.dtype
        model = self.averaged.module if self.averaged else self.model
        valid = evaluate(model, self.data.batcher, self.data.valid_rows, self.data.n_classes, self.device, dtype)
        self._record(valid)
        is_best = (valid.accuracy, -valid.loss) > (self.progress.best_accuracy, -self.progress.best_loss)
        if is_best:
            self.progress = replace(
                self.progress, best_epoch=self._n_done + 1, best_accuracy=valid.accuracy, best_loss=valid.loss
            )
        if is_best or self.config.training.keep == "last":
            self.best = {name: tensor.cpu().clone() for name, tensor in model.state_dict().items()}

    def _train_epoch(self) -> None:
        """Train on the epoch's batches that are left."""
        # Pretraining drops nothing: what is hidden is noise enough, and an encoder this small learns no text by heart.
        self.trained.train(not self._is_pretraining)
        steps = self._steps()
        n_done = self.progress.step - self._first_step()
        with bar(self._title(), len(steps), n_done) as shown:
            for batches in steps[n_done:]:
                started = time.perf_counter()
                self._step(batches)
                self.so_far.seconds += time.perf_counter() - started
                self._report(shown)
                self._checkpoint(due=self._is_due())

    def _title(self) -> str:
        if self._is_pretraining:
            return f"pretraining {self._n_done + 1}/{self.pretraining_epochs}"
        return f"epoch {self._n_done + 1}/{self.n_epochs}"

    def _last_step(self) -> int:
        return self.pretraining_steps + self.n_steps

    def _first_step(self) -> int:
        """How many steps were done before the epoch that is under way."""
        if self._is_pretraining:
            return self._n_done * (self.pretraining_steps // self.pretraining_epochs)
        return self.pretraining_steps + self._n_done * self.steps_per_epoch

    def _steps(self) -> list[list[Tensor]]:
        """The batches of each of the epoch's steps, as row numbers."""
        batches, each = self._batches(), self.config.training.accumulate
        steps = [batches[start : start + each] for start in range(0, len(batches), each)]
        return steps[: self._last_step() - self._first_step()]

    def _batches(self) -> list[Tensor]:
        config = self.config
        rows = self.data.text_rows if self._is_pretraining else self.data.train_rows
        chosen = epoch_rows(
            len(rows),
            config.data.rows_per_epoch,
            self._n_done,
            config.training.seed,
            with_replacement=config.data.with_replacement,
        )
        seed = config.training.seed + self.progress.epoch
        return epoch_batches(self.data.batcher, rows[chosen], config.batch.size, seed)

    def _step(self, batches: Sequence[Tensor]) -> None:
        """One update, from the rows of all its batches."""
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr(self.progress.step + 1)
        n_rows = sum(map(len, batches))
        for batch in batches:
            for indices in self._parts(batch):
                self._backward(indices, len(indices) / n_rows)
        self._update()

    def _parts(self, indices: Tensor) -> Sequence[Tensor]:
        """A batch's rows, by as many as are computed at once; only the CPU takes no longer for parts."""
        return self.data.batcher.parts(indices, TOKENS_AT_ONCE) if self.device.type == "cpu" else [indices]

    def _backward(self, indices: Tensor, share: float) -> None:
        """Add a batch's gradient, times its share of the step's rows."""
        batch = self.data.batcher.batch(indices)
        with autocast(self.device, self.config.training.dtype):
            logits, labels, loss, objective = self._forward(batch.to(self.device))
        value = loss.item()
        if not math.isfinite(value) and not self.scaler.is_enabled():
            raise TrainingError(self._not_finite("the loss is not a finite number"))
        self.scaler.scale(objective * share).backward()
        if math.isfinite(value):
            self.so_far.counts.add(logits, labels, value * len(logits))
            self.so_far.n_rows += len(indices)
            self.so_far.n_tokens += int(batch.keep.sum())

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of a batch: logits and labels, of the hidden tokens or of the rows; the cross-entropy; what is minimised."""
        if self._is_pretraining:
            assert self.guesser is not None
            logits, labels = self.guesser(batch.tokens, batch.keep, self.config.pretraining.hidden)
            loss = F.cross_entropy(logits.float(), labels)
            return logits, labels, loss, loss
        assert batch.labels is not None  # training rows have labels
        logits, loss = logits_and_loss(self.model, batch)
        return logits, batch.labels, loss, self.objective(logits, batch.labels)

    def _update(self) -> None:
        """Apply the gradient; in f16, leave it out where it has overflowed, and scale the next loss down."""
        if self.config.optimizer.clip_norm:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.config.optimizer.clip_norm)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.averaged:
            self.averaged.update_parameters(self.model)
        skipped = self.scaler.get_scale() < scale
        self.progress = replace(
            self.progress,
            step=self.progress.step + 1,
            skipped=self.progress.skipped + skipped,
            skipped_in_a_row=self.progress.skipped_in_a_row + 1 if skipped else 0,
        )
        if self.progress.skipped_in_a_row == MAX_SKIPPED:
            raise TrainingError(self._not_finite(f"{MAX_SKIPPED} steps in a row overflowed in f16"))

    def _lr(self, step: int | None = None) -> float:
        """The learning rate of a step, by default that of the last one done."""
        step = self.progress.step if step is None else step
        config, before = self.config, self.pretraining_steps
        if step > before:
            return learning_rate(config.schedule, step - before, self.n_steps, config.transformer.d_model)
        schedule = ScheduleConfig(lr=config.pretraining.lr, warmup_steps=config.pretraining.warmup_steps)
        return learning_rate(schedule, step, before, config.transformer.d_model)

    def _report(self, shown: Bar) -> None:
        counts = self.so_far.counts
        shown.advance({"loss": f"{counts.loss:.4f}", "accuracy": f"{counts.accuracy:.4f}"})
        if self.progress.step % self.config.training.log_every == 0:
            self.journal.metrics({**self._position(), "so_far": True, **counts.rates(), "lr": self._lr()})

    def _position(self) -> dict[str, Any]:
        """What a line of metrics.jsonl about training begins with."""
        split = "pretraining" if self._is_pretraining else "train"
        return {"epoch": self._n_done + 1, "step": self.progress.step, "split": split}

    def _record(self, valid: Counts | None) -> None:
        """Write an epoch's lines."""
        train, seconds = self.so_far.counts.rates(), self.so_far.seconds
        speed = {"rows_per_second": self.so_far.n_rows / seconds, "tokens_per_second": self.so_far.n_tokens / seconds}
        memory = {"peak_memory_mib": peak_memory_mib(), **device_metrics(self.device)}
        skipped = {"skipped_steps": self.progress.skipped} if self.scaler.is_enabled() else {}
        measured = {**skipped, **speed, **memory}
        self.journal.metrics({**self._position(), **train, "lr": self._lr(), **measured})
        shown = _shown("train", train)
        if valid is not None:
            self.journal.metrics({**self._position(), "split": "valid", **valid.rates()})
            shown += f"; {_shown('valid', valid.rates())}"
        measures = ", ".join(_measure(name, value) for name, value in measured.items())
        log.info("%s: %s; lr %.2e, %s", self._title(), shown, self._lr(), measures)

    def _not_finite(self, what: str) -> str:
        """What to say of a training that went astray in the step after those done."""
        kept = checkpoint.found(self.folder / CHECKPOINTS)
        return (
            f"step {self.progress.step + 1}: {what} at a learning rate of {self._lr(self.progress.step + 1):.3g}; "
            f"{f'the last good state is {kept[0]}' if kept else 'no state was saved yet'}; "
            "try a smaller --set schedule.lr, or --dtype f32."
        )

    def _is_due(self) -> bool:
        """Whether it is time for a checkpoint within an epoch."""
        steps, seconds = checkpoint_interval(self.config.training.checkpoint_every)
        if steps:
            return self.progress.step - self.saved_step >= steps
        return time.monotonic() - self.saved_at >= seconds

    def _checkpoint(self, *, due: bool) -> None:
        """Save where it is time to, and where a signal asked to stop do so, then stop."""
        stop = self.stop.received
        if due or stop is not None:
            self.save()
        if stop is not None:
            done = f"stopped after step {self.progress.step:,} of {self._last_step():,}, and saved"
            raise Interrupted(f"{signal.Signals(stop).name}: {done}", stop)

    def save(self) -> None:
        """Write a checkpoint.

        Raises:
            TrainingError: the weights aren't finite; the states before are kept.
            StorageError: it can't be written; the states before are kept.
        """
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.parameters):
            raise TrainingError(self._not_finite("the weights are no longer finite numbers"))
        checkpoint.save(self.state(), self.folder / CHECKPOINTS, self.progress.step)
        self.saved_step, self.saved_at = self.progress.step, time.monotonic()

    def state(self) -> dict[str, Any]:
        """Everything that it takes to go on from here as if never stopped."""
        return {
            "config": self.config.to_dict(),
            "data": self.data.summary(),
            "progress": asdict(self.progress),
            "so_far": {**vars(self.so_far), "counts": vars(self.so_far.counts)},
            "metrics_bytes": self.journal.sync(),
            "model": self.trained.state_dict(),
            "averaged": self.averaged.state_dict() if self.averaged else {},
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": random_state(self.device),
        }

    def resume(self) -> None:
        """Take up the newest whole checkpoint of the folder.

        Raises:
            ArtifactError: there is none.
            ConfigError: it was made with another configuration.
            DataError: it was made with other data.
        """
        state = checkpoint.load(self.folder / CHECKPOINTS)
        self._check_same(state)
        self.journal.rewind(state["metrics_bytes"])
        self.progress = Progress(**state["progress"])
        counts = self._no_counts()
        vars(counts).update(state["so_far"]["counts"])
        self.so_far = EpochSoFar(**{**state["so_far"], "counts": counts})
        self.trained.load_state_dict(state["model"])
        if self.averaged:
            self.averaged.load_state_dict(state["averaged"])
        self.best = state["best"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        set_random_state(state["random"], self.device)
        self.saved_step = self.progress.step
        log.info("resuming after step %s of %s", f"{self.progress.step:,}", f"{self._last_step():,}")

    def _check_same(self, state: dict[str, Any]) -> None:
        """Refuse to go on with another configuration or other data than a state's."""
        if difference := first_difference(state["config"], self.config.to_dict()):
            key, then, now = difference
            raise ConfigError(f"--resume: {key} was {then} in {self.folder}, and is {now} now; give that of then.")
        then, now = state["data"], self.data.summary()
        if then != now:
            changes = ", ".join(
                f"{name} {then[name]} then and {now[name]} now" for name in now if then[name] != now[name]
            )
            raise DataError(
                f"--resume: the data or their tokenizer have changed since {self.folder} was begun ({changes}); bring "
                "back those of then, or train anew with --overwrite."
            )

    def space_needed(self) -> int:
        """Bytes that the run takes on disk at most: the states kept and the one being written, and the weights."""
        n_all, n_trained = count_parameters(self.trained)
        n_models = 3 if self.averaged else 2  # it, the best one, and the average
        state = 4 * (n_models * n_all + 2 * n_trained)  # f32; the last are Adam's two moments
        return round(1.1 * ((checkpoint.KEPT + 1) * state + 4 * n_all))  # the tenth is for all that isn't a weight


def train(config: Config, *, device: torch.device, folder: Path, resume: bool = False) -> Counts:
    """Train a classifier from random weights, save the epoch that is kept, and count its hits on the test split."""
    seed_everything(config.training.seed)
    with Journal(folder, resume=resume) as journal:
        stored = sources.load(config.dataset, config.data)
        tokenizer = make_tokenizer(config.tokenizer, training_texts(config, stored))
        data = prepare(config, stored, tokenizer)
        model = new_model(config, vocab_size=tokenizer.vocab_size, n_classes=data.n_classes)
        if config.transformer.embedding_init == "lsa" and not resume:  # which takes the weights from a checkpoint
            log.info("latent semantic analysis of the training rows")
            model.embeddings.start_from(
                token_vectors(data.batcher.rows, data.text_rows, tokenizer.vocab_size, config.transformer.d_model),
                config.transformer.lsa_std,
            )
        trainer = Trainer(model, data, config, device, folder, journal, _guesser(model, data, config))
        run(trainer, stored, outline=str(model), resume=resume)
        artifact = Artifact(model=model, config=config, class_names=stored.class_names, tokenizer=tokenizer)
        return finish(trainer, artifact, stored)


def _guesser(model: TransformerClassifier, data: TrainingData, config: Config) -> TokenGuesser | None:
    if not config.pretraining.epochs:
        return None
    counts = token_counts(data.batcher.rows, data.text_rows, model.embeddings.token.num_embeddings)
    return TokenGuesser(model, counts)


def finish(trainer: Trainer, artifact: Artifact, stored: StoredData) -> Counts:
    """Save what was trained, and count its hits on the test split: the one time that training reads it."""
    config, data = trainer.config.training, trainer.data
    if config.calibrate:
        artifact = calibrate(artifact, data.batcher, data.valid_rows, trainer.device)
        log.info("calibrated: temperature %.3f", artifact.temperature)
    artifacts.save(artifact, trainer.folder)
    counts = evaluate_split(artifact, stored, "test", trainer.device, config.dtype)
    log.info("test: %d rows, loss %.4f, accuracy %.4f", counts.rows, counts.loss, counts.accuracy)
    return counts


def run(trainer: Trainer, stored: StoredData, *, outline: str, resume: bool) -> None:
    """Say what will be trained, then train it: from the folder's last checkpoint, or afresh in an emptied folder."""
    announce(trainer, stored, outline)
    sweep(trainer.folder)
    checkpoint.require_space(trainer.folder, trainer.space_needed())
    if resume:
        trainer.resume()
    else:
        artifacts.clear(trainer.folder)
        write_text(trainer.folder / CONFIG, trainer.config.to_json())
        trainer.save()  # so that any step can be resumed, and a disk that can't be written shows now
    trainer.fit()


def announce(trainer: Trainer, stored: StoredData, outline: str) -> None:
    """Say what is about to be trained, on what, and how."""
    config, data = trainer.config, trainer.data
    n_all, n_trained = count_parameters(trainer.model)
    log.info("%s", outline)
    log.info("parameters: %s, of which trained: %s (%.2f %%)", f"{n_all:,}", f"{n_trained:,}", 100 * n_trained / n_all)
    log.info("data: %s; classes: %s", stored.origin, ", ".join(stored.class_names))
    log.info("rows: %s for training, %s for validation", f"{len(data.train_rows):,}", f"{len(data.valid_rows):,}")
    if n_cut := data.batcher.rows.n_cut:
        log.info("cut at batch.max_length = %d tokens: %s of them", config.batch.max_length, f"{n_cut:,}")
    if (weights := trainer.objective.weights) is not None:
        named = zip(stored.class_names, weights.tolist(), strict=True)
        log.info("class weights: %s", ", ".join(f"{name} {weight:.3g}" for name, weight in named))
    if trainer.pretraining_steps:
        log.info(
            "pretraining: %s steps (%d epochs), in which %g %% of the tokens are hidden and guessed",
            *(f"{trainer.pretraining_steps:,}", trainer.pretraining_epochs, 100 * config.pretraining.hidden),
        )
    log.info(
        "%s steps (%.3g epochs of %s), each of %d rows, on %s in %s, seed %d",
        *(f"{trainer.n_steps:,}", trainer.n_steps / trainer.steps_per_epoch, f"{trainer.steps_per_epoch:,}"),
        config.batch.size * config.training.accumulate,
        *(trainer.device, config.training.dtype, config.training.seed),
    )


def _averaged(model: nn.Module, decay: float) -> AveragedModel | None:
    """A copy of the model whose weights follow a <- d a + (1 - d) w; none where decay is 0.

    d is min(decay, (1 + n) / (10 + n)) after n updates, so that a short training's average isn't that of its beginning.
    (Polyak & Juditsky 1992, SIAM J. Control Optim. 30(4); exponentially weighted)
    """
    if not decay:
        return None

    def update(averaged: Sequence[Tensor], current: Sequence[Tensor], n: Tensor | int) -> None:
        get_ema_multi_avg_fn(min(decay, (1 + int(n)) / (10 + int(n))))(averaged, current, n)

    return AveragedModel(model, multi_avg_fn=update)


def _objective(config: Config, data: TrainingData, device: torch.device) -> Objective:
    assert data.batcher.rows.labels is not None  # training rows have labels
    labels = data.batcher.rows.labels[data.train_rows]
    weights = class_weights(config.training.class_weights, data.class_names, labels)
    return Objective(
        smoothing=config.training.label_smoothing, weights=weights if weights is None else weights.to(device)
    )


def _measure(name: str, value: float) -> str:
    """`peak_memory_mib` as "peak memory 812 MiB", `rows_per_second` as "300 rows per second"."""
    words = name.removesuffix("_mib").replace("_", " ")
    return f"{words} {value:.0f} MiB" if name.endswith("_mib") else f"{value:.0f} {words}"


def _shown(split: str, rates: dict[str, float]) -> str:
    named = {"loss": "loss", "accuracy": "accuracy", "macro_f1": "macro-F1"}
    return " ".join([split, *(f"{named[name]} {value:.4f}" for name, value in rates.items() if name in named)])
