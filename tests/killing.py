"""Train a run that SIGKILL ends again and again, each time in another place, and go on with it each time.

    python killing.py FOLDER SEED N_KILLS [BASE]       with BASE, a weights file, it is finetuned instead

Prints a line a kill, and leaves the runs in FOLDER/0, 1, ...: one that comes to its end in between is followed by the
next. Each attempt is a process of its own, forked from this one, which has done nothing but import.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from conftest import SMALL

from textcls import artifact, checkpoint, train
from textcls.config import Config, recipe
from textcls.finetune import finetune, finetune_config

SETTINGS: dict[str, Any] = {"training": {**SMALL["training"], "checkpoint_every": "4"}}
PLACES = ("step", "write", "fsync", "replace", "unlink", "any time")


def config_of(base: Path | None) -> Config:
    """What is trained: the small model, or that of `base` finetuned, with many checkpoints."""
    if base is None:
        return recipe("sample").override(SMALL).override(SETTINGS)
    return finetune_config(artifact.load(base).config, "sample").override(SETTINGS)


def attempt(folder: Path, base: Path | None) -> None:
    """Begin the training, or go on with it."""
    resume = bool(checkpoint.found(folder / "checkpoints"))
    if base is None:
        train.train(config_of(None), device=torch.device("cpu"), folder=folder, resume=resume)
    else:
        loaded = artifact.load(base)
        finetune(loaded, config_of(base), device=torch.device("cpu"), folder=folder, resume=resume)


def die_at(place: str, count: int) -> None:
    """Have this process killed at the `count`-th time that it comes to a place, half of the times just after it."""
    owner, name = {
        "step": (train.Trainer, "_update"),
        "write": (checkpoint._Digesting, "write"),
        "fsync": (os, "fsync"),
        "replace": (os, "replace"),
        "unlink": (Path, "unlink"),
    }[place]
    real: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def counted(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and count % 2:
            if place == "write":
                writer, data = arguments
                real(writer, bytes(data)[: len(data) // 2])
                writer._file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **keywords)
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, counted)


def killed(folder: Path, base: Path | None, place: str, chance: random.Random) -> bool:
    """Whether one more attempt was killed, rather than done before it came to its end."""
    count = chance.randint(1, {"step": 25, "write": 200}.get(place, 9))
    delay = chance.uniform(0.1, 2.0)
    pid = os.fork()
    if pid == 0:
        if place != "any time":
            die_at(place, count)
        attempt(folder, base)
        os._exit(0)
    if place == "any time":
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        return False
    assert os.WTERMSIG(status) == signal.SIGKILL
    states = checkpoint.found(folder / "checkpoints")
    for path in states:
        checkpoint.read(path)  # whole, wherever the kill was
    print(f"{place} {count}: killed; states: {', '.join(path.stem for path in states)}", flush=True)
    return True


def main(folder: Path, seed: int, n_kills: int, base: Path | None = None) -> None:
    """Kill the training so many times, then let it end."""
    chance = random.Random(seed)
    places = [PLACES[number % len(PLACES)] for number in range(n_kills)]
    chance.shuffle(places)
    n_ended = 0
    for place in places:
        while not killed(folder / str(n_ended), base, place, chance):
            n_ended += 1
    attempt(folder / str(n_ended), base)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *map(Path, sys.argv[4:]))
