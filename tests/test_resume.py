"""Nothing is lost: whatever ends a training, it goes on from there, and ends as if it had never been stopped."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL, file_size_limit

from textcls import artifact, checkpoint
from textcls import finetune as finetuning
from textcls.config import Config, recipe
from textcls.data import sources
from textcls.errors import ArtifactError, ConfigError, DataError, Interrupted, StorageError
from textcls.finetune import finetune, finetune_config
from textcls.runtime import StopRequest
from textcls.train import Trainer, train

CPU = torch.device("cpu")
KILLING = Path(__file__).with_name("killing.py")
SETTINGS = [f"--set={section}.{key}={value}" for section, keys in SMALL.items() for key, value in keys.items()]


def small(**sections: dict[str, Any]) -> Config:
    return recipe("sample").override(SMALL).override(sections)


def timeless(folder: Path) -> list[str]:
    """The lines of metrics.jsonl, but for what the clock and the machine have to say."""
    measured = {"rows_per_second", "tokens_per_second", "peak_memory_mib"}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [json.dumps({key: value for key, value in line.items() if key not in measured}) for line in lines]


def assert_same(folder: Path, other: Path) -> None:
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name
    assert timeless(folder) == timeless(other)
    assert not list(folder.rglob(".*.tmp"))


@contextmanager
def at_step(step: int, act: Callable[[], None]) -> Iterator[None]:
    """Do something just before the update of a step, if a training comes to it."""
    update = Trainer._update

    def watched(self: Trainer) -> None:
        if self.progress.step + 1 == step:
            act()
        update(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_update", watched)
        yield


def interrupt() -> None:
    raise KeyboardInterrupt


SHORT: dict[str, Any] = {"data": {"rows_per_epoch": 256, "valid_rows": 32}}


@pytest.mark.parametrize(
    ("stops", "sections"),
    [
        ((1, 5, 14), {"training": {"epochs": 2, "checkpoint_every": "3"}}),
        ((12,), {"training": {"epochs": 2, "checkpoint_every": "2h"}}),
        ((3,), {"training": {"dtype": "f16", "checkpoint_every": "2", "steps": 6}}),
        (
            (2, 5),
            {
                "training": {
                    "accumulate": 3,
                    "averaging": 0.9,
                    "label_smoothing": 0.1,
                    "class_weights": "balanced",
                    "steps": 7,
                },
                "transformer": {"token_dropout": 0.2, "score_dropout": 0.1},
            },
        ),
        (
            (3, 13),
            {
                "training": {"epochs": 5, "patience": 1, "calibrate": True, "checkpoint_every": "5"},
                "schedule": {"name": "constant", "lr": 1e-2},
            },
        ),
        (
            (5, 11, 21),  # in each epoch of pretraining, and in one of training
            {
                "pretraining": {"epochs": 2, "warmup_steps": 5},
                "training": {"checkpoint_every": "6", "patience": 1},
            },
        ),
        (
            (7,),
            {
                "batch": {"padding": "fixed", "max_length": 64},
                "transformer": {"embedding_init": "lsa"},
                "data": {"with_replacement": True, "rows_per_epoch": 256},
                "optimizer": {"name": "adam", "clip_norm": 0.0},
                "schedule": {"name": "noam", "lr": 1e-1},
                "training": {"checkpoint_every": "6"},
            },
        ),
    ],
)
def test_a_run_stopped_within_an_epoch_ends_with_the_same_bytes(
    tmp_path: Path, stops: tuple[int, ...], sections: dict[str, Any]
) -> None:
    config = small(**SHORT).override(sections)
    train(config, device=CPU, folder=tmp_path / "whole")
    resume = False
    for step in stops:
        with at_step(step, interrupt), pytest.raises(KeyboardInterrupt):
            train(config, device=CPU, folder=tmp_path / "stopped", resume=resume)
        resume = True
    train(config, device=CPU, folder=tmp_path / "stopped", resume=True)
    assert_same(tmp_path / "stopped", tmp_path / "whole")


def test_a_finetuning_stopped_within_an_epoch_ends_with_the_same_bytes(small_run: Path, tmp_path: Path) -> None:
    def run(name: str, resume: bool = False) -> None:
        base = artifact.load(small_run / "model.safetensors")
        config = finetune_config(base.config, "sample").override(SHORT)
        config = config.override({"training": {"epochs": 2, "checkpoint_every": "4"}})
        finetune(base, config, device=CPU, folder=tmp_path / name, resume=resume)

    run("whole")
    with at_step(11, interrupt), pytest.raises(KeyboardInterrupt):
        run("stopped")
    run("stopped", resume=True)
    assert_same(tmp_path / "stopped", tmp_path / "whole")
    for path in (tmp_path / "whole/adapter").iterdir():
        assert (tmp_path / "stopped/adapter" / path.name).read_bytes() == path.read_bytes()


def test_a_run_that_was_done_ends_as_it_did(small_run: Path, tmp_path: Path) -> None:
    train(small(), device=CPU, folder=tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    train(small(), device=CPU, folder=tmp_path, resume=True)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert_same(tmp_path, small_run)


def test_a_damaged_newest_checkpoint_costs_steps_and_no_bytes(
    small_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(small(), device=CPU, folder=tmp_path)
    newest, before = checkpoint.found(tmp_path / "checkpoints")
    assert (newest.stem, before.stem) == ("step-0000000070", "step-0000000035")
    newest.write_bytes(newest.read_bytes()[:-1])
    train(small(), device=CPU, folder=tmp_path, resume=True)
    assert f"{newest}: this checkpoint is damaged" in caplog.text
    assert "resuming after step 35 of 70" in caplog.text
    assert_same(tmp_path, small_run)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The folder of a small training that was stopped after its first epoch."""
    folder = tmp_path / "stopped"
    with at_step(36, interrupt), pytest.raises(KeyboardInterrupt):
        train(small(), device=CPU, folder=folder)
    return folder


def test_another_configuration_is_refused_and_shown(stopped: Path) -> None:
    before = {path: path.read_bytes() for path in stopped.rglob("*.jso*")}
    with pytest.raises(ConfigError, match=r"--resume: batch\.size was 32 in .*, and is 16 now; give that of then"):
        train(small(batch={"size": 16}), device=CPU, folder=stopped, resume=True)
    assert {path: path.read_bytes() for path in stopped.rglob("*.jso*")} == before


def test_data_that_have_changed_are_refused_and_shown(tmp_path: Path) -> None:
    table, folder = tmp_path / "news.csv", tmp_path / "run"
    items = sources.load("sample").splits["train"][:400]
    rows = [f'"{item.text.replace(chr(34), chr(39))}",{"abcd"[item.label]}' for item in items]
    table.write_text("\n".join(["text,label", *rows]))
    config = small(data={"valid_rows": 40}).override({"dataset": str(table)})
    with at_step(3, interrupt), pytest.raises(KeyboardInterrupt):
        train(config, device=CPU, folder=folder)
    table.write_text("\n".join(["text,label", *rows, "One row more.,a"]))
    with pytest.raises(DataError) as caught:
        train(config, device=CPU, folder=folder, resume=True)
    assert f"--resume: the data or their tokenizer have changed since {folder} was begun" in str(caught.value)
    assert re.search(r"training rows \d+ then and \d+ now, .*digest \w{64} then and \w{64} now", str(caught.value))
    table.write_text("\n".join(["text,label", *rows]))
    with at_step(6, interrupt), pytest.raises(KeyboardInterrupt):
        train(config, device=CPU, folder=folder, resume=True)


def test_the_digest_is_of_rows_and_tokenizer(stopped: Path, tmp_path: Path) -> None:
    digests = set()
    for folder, vocab_size in (("a", 1_000), ("b", 1_001)):
        with at_step(1, interrupt), pytest.raises(KeyboardInterrupt):
            train(small(tokenizer={"vocab_size": vocab_size}), device=CPU, folder=tmp_path / folder)
        digests.add(checkpoint.load(tmp_path / folder / "checkpoints")["data"]["digest"])
    assert len(digests) == 2
    assert checkpoint.load(stopped / "checkpoints")["data"]["digest"] in digests


def test_nothing_to_resume_and_lost_metrics_are_sentences(stopped: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no checkpoint to resume from"):
        train(small(), device=CPU, folder=tmp_path / "none", resume=True)
    (stopped / "metrics.jsonl").write_text("")
    with pytest.raises(ArtifactError, match=r"metrics\.jsonl: has 0 bytes, and had \d+ at the checkpoint; put"):
        train(small(), device=CPU, folder=stopped, resume=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_saves_and_stops(number: signal.Signals, small_run: Path, tmp_path: Path) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with at_step(17, lambda: signal.raise_signal(number)), pytest.raises(Interrupted) as caught:
        train(small(), device=CPU, folder=tmp_path)
    assert caught.value.exit_code == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    assert str(caught.value) == f"{number.name}: stopped after step 17 of 70, and saved"
    assert [path.stem for path in checkpoint.found(tmp_path / "checkpoints")] == ["step-0000000017", "step-0000000000"]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    train(small(), device=CPU, folder=tmp_path, resume=True)
    assert_same(tmp_path, small_run)


def test_a_second_ctrl_c_stops_at_once_and_damages_nothing(small_run: Path, tmp_path: Path) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with at_step(17, twice), pytest.raises(KeyboardInterrupt) as caught:
        train(small(), device=CPU, folder=tmp_path)
    assert not isinstance(caught.value, Interrupted)
    assert [path.stem for path in checkpoint.found(tmp_path / "checkpoints")] == ["step-0000000000"]
    train(small(), device=CPU, folder=tmp_path, resume=True)
    assert_same(tmp_path, small_run)


def test_a_second_ctrl_c_within_the_write_keeps_the_state_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def slow(source: Path, target: Path) -> None:
        if target.name == "step-0000000017.pt":
            signal.raise_signal(signal.SIGINT)
        replace(source, target)

    monkeypatch.setattr(os, "replace", slow)
    with at_step(17, lambda: signal.raise_signal(signal.SIGINT)), pytest.raises(KeyboardInterrupt):
        train(small(), device=CPU, folder=tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-0000000000.pt"]


def test_in_another_thread_signals_are_left_alone() -> None:
    seen: list[Any] = []

    def enter() -> None:
        with StopRequest() as stop:
            seen.extend([signal.getsignal(signal.SIGINT), stop.received])

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT), None]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_prints_the_command_that_goes_on(number: signal.Signals, code: int, tmp_path: Path) -> None:
    arguments = ["train", "sample", *SETTINGS, "--out", "a run", "--epochs", "4", "--overwrite"]
    command = [sys.executable, "-m", "textcls"]
    process = subprocess.Popen([*command, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    shown = ""
    while "epoch 1/4" not in shown:
        shown = process.stderr.readline()
        assert shown, "it ended too soon"
    process.send_signal(number)
    _, rest = process.communicate()
    assert process.returncode == code, rest
    assert "Traceback" not in rest
    *_, sentence, resume = rest.splitlines()
    assert sentence.startswith(f"textcls: {number.name}: stopped after step ")
    assert sentence.endswith(" of 140, and saved; go on with:")
    assert shlex.split(resume) == ["textcls", *arguments[:-1], "--resume"]
    step = sentence.split()[5]
    assert checkpoint.load(tmp_path / "a run/checkpoints")["progress"]["step"] == int(step)
    again = subprocess.run([*command, *shlex.split(resume)[1:]], cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert f"resuming after step {step} of 140" in again.stderr


def killed(tmp_path: Path, n_kills: int, *base: str) -> list[Path]:
    """The runs that were killed so many times, and ended."""
    command = [sys.executable, str(KILLING), str(tmp_path / "killed"), "0", str(n_kills), *base]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": killed; ") == n_kills
    return list((tmp_path / "killed").iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork and SIGKILL")
def test_a_run_killed_at_ten_random_moments_ends_with_the_same_bytes(tmp_path: Path) -> None:
    from killing import config_of

    train(config_of(None), device=CPU, folder=tmp_path / "whole")
    for folder in killed(tmp_path, 10):
        assert_same(folder, tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork and SIGKILL")
def test_a_finetuning_killed_at_random_moments_ends_with_the_same_bytes(small_run: Path, tmp_path: Path) -> None:
    from killing import config_of

    weights = small_run / "model.safetensors"
    finetune(artifact.load(weights), config_of(weights), device=CPU, folder=tmp_path / "whole")
    for folder in killed(tmp_path, 6, str(weights)):
        assert_same(folder, tmp_path / "whole")


def test_a_disk_that_is_full_at_a_checkpoint_keeps_the_one_before(small_run: Path, tmp_path: Path) -> None:
    limit = file_size_limit(100_000)
    try:
        with (
            at_step(40, limit.__enter__),
            pytest.raises(StorageError, match=r"step-0000000070\.pt: can't be written .File too large"),
        ):
            train(small(), device=CPU, folder=tmp_path)
    finally:
        limit.__exit__(None, None, None)
    assert checkpoint.load(tmp_path / "checkpoints")["progress"]["step"] == 35
    train(small(), device=CPU, folder=tmp_path, resume=True)
    assert_same(tmp_path, small_run)


def test_a_disk_that_is_full_for_the_record_is_a_sentence(small_run: Path, tmp_path: Path) -> None:
    """metrics.jsonl and experiment.log have 1,000 bytes at most."""
    limit = file_size_limit(1_000)
    try:
        with (
            at_step(40, limit.__enter__),
            pytest.raises(StorageError, match=r"(metrics\.jsonl|experiment\.log): can't be"),
        ):
            train(small(), device=CPU, folder=tmp_path)
    finally:
        limit.__exit__(None, None, None)
    train(small(), device=CPU, folder=tmp_path, resume=True)
    assert_same(tmp_path, small_run)


def test_a_disk_that_is_full_when_the_model_is_saved_keeps_the_states(small_run: Path, tmp_path: Path) -> None:
    save = artifact.save

    def full(saved: artifact.Artifact, folder: Path) -> None:
        with file_size_limit(100_000):
            save(saved, folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifact, "save", full)
        with pytest.raises(
            StorageError, match=r"model\.safetensors: can't be written .File too large.; what was compl"
        ):
            train(small(), device=CPU, folder=tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    train(small(), device=CPU, folder=tmp_path, resume=True)
    assert_same(tmp_path, small_run)


def test_a_disk_that_is_full_when_the_adapter_is_saved_is_a_sentence(small_run: Path, tmp_path: Path) -> None:
    base = artifact.load(small_run / "model.safetensors")
    config = finetune_config(base.config, "sample").override({"training": {"steps": 1}, **SHORT})
    limit = file_size_limit(2_000)

    def full(adapted: Any, folder: Path) -> None:
        with limit:
            save(adapted, folder)

    save = finetuning._save_adapter
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetuning, "_save_adapter", full)
        with pytest.raises(StorageError, match="adapter: can't be written"):
            finetune(base, config, device=CPU, folder=tmp_path)
    finetune(artifact.load(small_run / "model.safetensors"), config, device=CPU, folder=tmp_path, resume=True)
    assert (tmp_path / "model.safetensors").exists()


def test_a_disk_that_is_full_for_the_cache_is_a_sentence_and_leaves_no_part(own_cache: Path) -> None:
    with (
        file_size_limit(50_000),
        pytest.raises(StorageError, match=r"sample@.*\.sqlite: can't be written .*TEXTCLS_CACH"),
    ):
        sources.load("sample")
    assert not list(own_cache.rglob("*.sqlite")) + list(own_cache.rglob(".*.tmp"))
    assert len(sources.load("sample").splits["train"]) == 1_280


def test_a_disk_that_is_full_from_the_start_is_refused_before_training(tmp_path: Path) -> None:
    with file_size_limit(100_000), pytest.raises(StorageError, match=r"step-0000000000\.pt: can't be written"):
        train(small(), device=CPU, folder=tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_a_folder_that_cannot_be_made_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=r"file/run: can't be written \(Not a directory\); give a folder with --out"):
        train(small(), device=CPU, folder=tmp_path / "file/run")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_folder_is_refused_before_training(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match=r"can't be written \(Permission denied\)"):
        train(small(), device=CPU, folder=tmp_path)


def test_the_space_a_run_takes_is_estimated_from_above(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed: list[int] = []
    monkeypatch.setattr(checkpoint, "require_space", lambda folder, n_bytes: needed.append(n_bytes))
    with at_step(1, interrupt), pytest.raises(KeyboardInterrupt):
        train(small(), device=CPU, folder=small_run.with_name("space"))
    states = [path.stat().st_size for path in checkpoint.found(small_run / "checkpoints")]
    taken = max(states) * (checkpoint.KEPT + 1) + (small_run / "model.safetensors").stat().st_size
    assert taken < needed[0] < 1.2 * taken
