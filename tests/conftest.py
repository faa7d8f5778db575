"""Fixtures: a home of its own for every file that tests make, and the rows of the benchmarks where there are any."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from textcls.data.encoded import EncodedRows

# A server of the Hub's routes with rows of the two benchmarks and the bert-base-cased tokenizer, as `serve.py`.
HUB = Path(os.environ.get("TEXTCLS_TEST_HUB", Path(__file__).parents[2] / "shared" / "hub")) / "serve.py"
_HOME = pytest.StashKey[tempfile.TemporaryDirectory[str]]()
_SERVER = pytest.StashKey[subprocess.Popen[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment before anything imports the Hub's client, which reads it once; workers inherit it."""
    if hasattr(config, "workerinput"):
        os.environ["OMP_NUM_THREADS"] = "1"  # of several processes with several threads each waits for the others
        return
    home = tempfile.TemporaryDirectory(prefix="textcls-tests-")
    config.stash[_HOME] = home
    os.environ["HF_HOME"] = f"{home.name}/hf"
    os.environ["TEXTCLS_CACHE"] = f"{home.name}/cache"
    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # nobody answers there
    if HUB.is_file():
        server = subprocess.Popen([sys.executable, HUB], stdout=subprocess.PIPE, text=True)
        config.stash[_SERVER] = server
        assert server.stdout is not None
        os.environ["HF_ENDPOINT"] = server.stdout.readline().strip()


def pytest_unconfigure(config: pytest.Config) -> None:
    if server := config.stash.get(_SERVER, None):
        server.terminate()
        server.wait()
    if home := config.stash.get(_HOME, None):
        home.cleanup()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run fast tests first, and skip those that need the benchmarks' rows where there are none."""
    for item in items:
        if item.get_closest_marker("hub") and not HUB.is_file():
            item.add_marker(pytest.mark.skip(reason=f"needs the rows of the benchmarks: no {HUB}"))
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@contextmanager
def file_size_limit(n_bytes: int) -> Iterator[None]:
    """No file can grow beyond so many bytes, as on a disk that is full."""
    resource = pytest.importorskip("resource", reason="needs a system with limits on the size of files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


SMALL: dict[str, Any] = {
    "transformer": {
        "d_model": 32,
        "n_heads": 4,
        "d_ff": 64,
        "n_layers": 2,
        "token_dropout": 0.0,
        "embedding_init": "random",
    },
    "tokenizer": {"vocab_size": 1_000},
    "training": {"epochs": 2, "log_every": 10},
    "schedule": {"lr": 3e-3, "warmup_steps": 10},
}
"""What makes the sample's recipe a training of two seconds."""


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model trained on the sample."""
    import torch

    from textcls.config import recipe
    from textcls.train import train

    folder = tmp_path_factory.mktemp("runs") / "sample"
    train(recipe("sample").override(SMALL), device=torch.device("cpu"), folder=folder)
    return folder


@pytest.fixture(scope="session")
def rows() -> "EncodedRows":
    """The sample's training rows, in 1,000 tokens of its own."""
    from textcls.data import sources
    from textcls.data.encoded import encode_split
    from textcls.data.tokenizer import train_tokenizer

    stored = sources.load("sample")
    tokenizer = train_tokenizer((item.text for item in stored.splits["train"]), 1_000)
    return encode_split(stored, "train", tokenizer, 128)


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder is an empty one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache is an empty one."""
    monkeypatch.setenv("TEXTCLS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _one_seed() -> Iterator[None]:
    import torch

    state = torch.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.set_rng_state(state)
