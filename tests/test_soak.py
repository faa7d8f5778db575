"""What runs for long takes no more memory in the end than at the start."""

import gc
import os
from pathlib import Path

import pytest
import torch
from conftest import SMALL

import textcls
from textcls.config import recipe
from textcls.train import Trainer, train

STATM = Path("/proc/self/statm")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not STATM.is_file(), reason="reads the resident size from /proc, which only Linux has"),
]


def resident() -> int:
    """The process's resident size in bytes."""
    gc.collect()
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_ten_thousand_predictions_take_no_more_memory_than_the_first(small_run: Path) -> None:
    classifier = textcls.load(small_run, device="cpu")
    texts = ["Late goal wins the cup for the visitors", "Shares fall as oil climbs", "", "words " * 200]
    sizes = []
    for call in range(11_000):
        classifier.predict([texts[call % 4]])
        if call % 1_000 == 999:
            sizes.append(resident())
    assert sizes[-1] < 1.05 * sizes[0]  # the first thousand fill caches


def test_fifty_epochs_take_no_more_memory_than_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    one_epoch = Trainer._epoch

    def measured(trainer: Trainer) -> None:
        one_epoch(trainer)
        sizes.append(resident())

    monkeypatch.setattr(Trainer, "_epoch", measured)
    config = recipe("sample").override(SMALL).override({"training": {"epochs": 55}, "data": {"rows_per_epoch": 160}})
    train(config, device=torch.device("cpu"), folder=tmp_path)
    assert len(sizes) == 55
    assert sizes[-1] < 1.05 * sizes[4]
