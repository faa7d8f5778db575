import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from textcls import artifact
from textcls.artifact import Artifact
from textcls.errors import ArtifactError
from textcls.files import replaced


def logits(loaded: Artifact) -> torch.Tensor:
    tokens = torch.arange(40).reshape(2, 20)
    with torch.inference_mode():
        result: torch.Tensor = loaded.model(tokens, torch.ones_like(tokens, dtype=torch.bool))
    return result


def test_what_a_run_leaves(small_run: Path) -> None:
    names = {path.name for path in small_run.iterdir()}
    assert names == {
        *("model.safetensors", "config.json", "tokenizer.json", "metrics.jsonl", "experiment.log", "checkpoints"),
        ".lock",
    }
    with safe_open(small_run / "model.safetensors", framework="pt") as file:
        metadata = file.metadata()
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F32"}  # noqa: SIM118
    about = json.loads(metadata["textcls"])
    assert about["format"] == 1
    assert about["class_names"] == ["World", "Sports", "Business", "Technology"]
    assert about["config"] == json.loads((small_run / "config.json").read_text())


def test_a_round_trip_gives_the_same_bytes_and_logits(small_run: Path, tmp_path: Path) -> None:
    first = artifact.load(small_run / "model.safetensors")
    artifact.save(first, tmp_path)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / name).read_bytes() == (small_run / name).read_bytes(), name
    second = artifact.load(tmp_path / "model.safetensors")
    assert torch.equal(logits(first), logits(second))
    assert (second.config, second.class_names) == (first.config, first.class_names)


def test_weights_and_tokenizer_are_enough_elsewhere(small_run: Path, in_tmp: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        shutil.copy(small_run / name, in_tmp / name)
    assert artifact.load(artifact.locate("model.safetensors")).class_names[1] == "Sports"


def test_a_run_is_found_by_name_folder_and_file(small_run: Path, in_tmp: Path) -> None:
    shutil.copytree(small_run, in_tmp / "runs" / "sample")
    found = Path("runs/sample/model.safetensors")
    assert [artifact.locate(run) for run in ("sample", "runs/sample", str(found))] == [found] * 3


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("ag-news", "ag-news: no such run yet; make it with: textcls train ag-news"),
        ("model.safetensors", "model.safetensors: there is no weights file there"),
        (".", ".: there is no weights file there; give a run folder that has a model.safetensors."),
    ],
)
def test_a_run_that_is_not_there_is_a_sentence(run: str, message: str, in_tmp: Path) -> None:
    with pytest.raises(ArtifactError) as caught:
        artifact.locate(run)
    assert str(caught.value).startswith(message)


def changed(run: Path, folder: Path, tensors: dict[str, Any] | None = None, **about: Any) -> Path:
    """A copy of a run's weights with other tensors (None takes one out) or metadata."""
    with safe_open(run / "model.safetensors", framework="pt") as file:
        kept = json.loads(file.metadata()["textcls"])
    weights = load_file(run / "model.safetensors") | (tensors or {})
    path = folder / "model.safetensors"
    save_file({k: v for k, v in weights.items() if v is not None}, path, metadata={"textcls": json.dumps(kept | about)})
    shutil.copy(run / "tokenizer.json", folder)
    return path


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"head.bias": None}, "does not fit its configuration: it lacks the tensor head.bias"),
        ({"head.extra": torch.zeros(1)}, "does not fit its configuration: it has an unknown tensor head.extra"),
        ({"head.bias": torch.zeros(5)}, r"head.bias is F32 \(5,\), not F32 \(4,\)"),
        ({"head.bias": torch.zeros(4, dtype=torch.float16)}, r"head.bias is F16 \(4,\), not F32"),
        ({"head.bias": torch.full((4,), torch.nan)}, "head.bias has values that aren't finite"),
    ],
)
def test_tensors_that_do_not_fit_are_a_sentence(
    small_run: Path, tmp_path: Path, tensors: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        artifact.load(changed(small_run, tmp_path, tensors))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"format": 9}, "its format is 9; this textcls reads format 1"),
        ({"config": 3}, "its metadata is damaged"),
        ({"config": []}, "its metadata is damaged"),
        ({"config": {"transformer": {"d_model": 99999999}}}, "transformer.d_model: 99999999 can't work"),
        ({"config": {"transformer": {"n_layers": 250, "d_model": 16384}}}, "does not fit its configuration"),
        ({"class_names": "World"}, "class_names is not a list of names"),
        ({"class_names": []}, "class_names is not a list of names"),
        ({"tokenizer": "0"}, "the tokenizer.json beside it is of another model"),
    ],
)
def test_metadata_that_lies_is_a_sentence(
    small_run: Path, tmp_path: Path, metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        artifact.load(changed(small_run, tmp_path, **metadata))


@pytest.mark.parametrize("value", ["{", "[]", "null", "[" * 100_000])
def test_damaged_metadata_is_a_sentence(tmp_path: Path, value: str) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"textcls": value})
    with pytest.raises(ArtifactError, match="its metadata is damaged"):
        artifact.load(tmp_path / "model.safetensors")


def test_a_file_of_another_program_is_a_sentence(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ArtifactError, match="was not made by textcls"):
        artifact.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize("size", [0, 4, 100, 20_000])
def test_a_cut_file_is_a_sentence(small_run: Path, tmp_path: Path, size: int) -> None:
    path = changed(small_run, tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ArtifactError, match="not a readable safetensors file"):
        artifact.load(path)


def test_a_missing_tokenizer_is_a_sentence(small_run: Path, tmp_path: Path) -> None:
    shutil.copy(small_run / "model.safetensors", tmp_path)
    with pytest.raises(ArtifactError, match=r"its tokenizer\.json is not beside it"):
        artifact.load(tmp_path / "model.safetensors")


def test_a_write_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write() -> None:
        with replaced(path) as temporary:
            temporary.write_text("half of the n")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
