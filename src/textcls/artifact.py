"""What a run leaves on disk, and how it is read back.

    model.safetensors   f32 weights; metadata: format, config, ordered class names, the tokenizer's fingerprint
    config.json         the whole configuration
    tokenizer.json      the tokenizer
    metrics.jsonl       one object a logging step and one an epoch
    experiment.log      what the terminal showed, with times
    checkpoints/        the newest two states of the training, to go on from
    adapter/            after finetuning: the LoRA adapter in PEFT's own format

The weights file and the tokenizer.json beside it are enough to classify or to finetune, wherever they are copied.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from textcls.config import Config
from textcls.data.tokenizer import Tokenizer, fetch_tokenizer, read_tokenizer
from textcls.errors import ArtifactError, ConfigError, DataError
from textcls.files import replaced, write_text
from textcls.model import TransformerClassifier

FORMAT = 1
METADATA_KEY = "textcls"
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
METRICS, LOG, CHECKPOINTS, ADAPTER = "metrics.jsonl", "experiment.log", "checkpoints", "adapter"
RUNS = Path("runs")


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A trained classifier with all that it takes to use it."""

    model: TransformerClassifier
    config: Config
    class_names: tuple[str, ...]
    tokenizer: Tokenizer
    temperature: float = 1.0
    """What the logits were divided by to calibrate them; the model's head has it in it."""


class _Undrawn(TorchFunctionMode):
    """Leaves out normal_, whose version for the meta device imports torch's compiler: 2 s, more than torch itself."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return None if func is nn.init.normal_ else func(*args, **(kwargs or {}))


def new_model(config: Config, *, vocab_size: int, n_classes: int) -> TransformerClassifier:
    """A randomly initialised model of a configuration's dimensions."""
    return TransformerClassifier(
        config.transformer, vocab_size=vocab_size, max_length=config.batch.max_length, n_classes=n_classes
    )


def save(artifact: Artifact, folder: Path) -> None:
    """Write the weights, the configuration and the tokenizer into a folder, each file whole or not at all."""
    about = {
        "format": FORMAT,
        "config": artifact.config.to_dict(),
        "class_names": artifact.class_names,
        "tokenizer": artifact.tokenizer.fingerprint,
        "temperature": artifact.temperature,
    }
    metadata = {METADATA_KEY: json.dumps(about)}  # safetensors writes several keys in no fixed order
    weights = {name: tensor.detach().float().cpu().contiguous() for name, tensor in artifact.model.state_dict().items()}
    write_text(folder / TOKENIZER, artifact.tokenizer.to_json())
    write_text(folder / CONFIG, artifact.config.to_json())
    with replaced(folder / WEIGHTS) as temporary:
        temporary.write_bytes(to_bytes(weights, metadata))  # not save_file, whose errors hide those of the disk


def clear(folder: Path) -> None:
    """Delete what an earlier run left in a folder, so that none of it passes for part of the next."""
    (folder / WEIGHTS).unlink(missing_ok=True)
    for name in (CHECKPOINTS, ADAPTER):
        shutil.rmtree(folder / name, ignore_errors=True)


def locate(run: str) -> Path:
    """The weights file of a run: a weights file, a run folder, or the name of a data set (its default run).

    Raises:
        ArtifactError: there is none; the message names the command that makes it.
    """
    path = Path(run)
    if path.is_file():
        if path.suffix != ".safetensors":
            raise ArtifactError(f"{run}: is not a weights file; train on it first: textcls train {run}")
        return path
    candidates = [path / WEIGHTS, RUNS / run / WEIGHTS]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if path.suffix == ".safetensors" or path.is_dir():
        raise ArtifactError(f"{run}: there is no weights file there; give a run folder that has a {WEIGHTS}.")
    if path.name != run:
        raise ArtifactError(f"{run}: there is no such folder; give a run folder that has a {WEIGHTS}.")
    raise ArtifactError(f"{run}: no such run yet; make it with: textcls train {run} (none is in {RUNS / run})")


def load(weights: Path) -> Artifact:
    """Read a weights file, and the tokenizer beside it.

    Raises:
        ArtifactError: a file is missing or damaged, or the tensors aren't those the configuration asks for.
    """
    try:
        with safe_open(weights, framework="pt") as file:
            config, class_names, fingerprint, temperature = _read_metadata(weights, file.metadata() or {})
            tokenizer = _find_tokenizer(weights, config, fingerprint)
            with torch.device("meta"), _Undrawn():  # no memory is taken for sizes that a file merely claims
                model = new_model(config, vocab_size=tokenizer.vocab_size, n_classes=len(class_names))
            expected = model.state_dict()
            _check_tensors(weights, file, expected)
            tensors = {name: file.get_tensor(name) for name in expected}
    except (SafetensorError, OSError) as error:
        raise ArtifactError(
            f"{weights}: not a readable safetensors file ({error}); copy it anew, or train again."
        ) from None
    _check_finite(weights, tensors)
    model.load_state_dict(tensors, assign=True)
    model.requires_grad_(True)
    return Artifact(
        model=model.eval(), config=config, class_names=class_names, tokenizer=tokenizer, temperature=temperature
    )


def _read_metadata(weights: Path, metadata: dict[str, str]) -> tuple[Config, tuple[str, ...], str, float]:
    if METADATA_KEY not in metadata:
        raise ArtifactError(f"{weights}: was not made by textcls (its metadata lacks the key {METADATA_KEY}).")
    try:
        about = json.loads(metadata[METADATA_KEY])
        if about["format"] != FORMAT:
            raise ArtifactError(f"{weights}: its format is {about['format']}; this textcls reads format {FORMAT}.")
        config = Config().override(about["config"])
        class_names, fingerprint = about["class_names"], about["tokenizer"]
        temperature = float(about.get("temperature", 1.0))
    except ConfigError as error:
        raise ArtifactError(f"{weights}: its configuration can't be used: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise ArtifactError(f"{weights}: its metadata is damaged ({type(error).__name__}: {error}).") from None
    if not isinstance(class_names, list) or not class_names or not all(isinstance(name, str) for name in class_names):
        raise ArtifactError(f"{weights}: its metadata is damaged (class_names is not a list of names).")
    return config, tuple(class_names), fingerprint, temperature


def _find_tokenizer(weights: Path, config: Config, fingerprint: str) -> Tokenizer:
    """The tokenizer beside the weights, or else the one that the configuration names."""
    beside = weights.with_name(TOKENIZER)
    try:
        if beside.is_file():
            tokenizer: Tokenizer = read_tokenizer(beside)
        elif config.tokenizer.source == "corpus" or config.tokenizer.source.endswith(".json"):
            raise ArtifactError(f"{weights}: its {TOKENIZER} is not beside it; copy it there from the run's folder.")
        else:
            tokenizer = fetch_tokenizer(config.tokenizer.source)
    except DataError as error:
        raise ArtifactError(f"{weights}: its tokenizer can't be had: {error}") from None
    if tokenizer.fingerprint != fingerprint:
        raise ArtifactError(
            f"{weights}: the {TOKENIZER} beside it is of another model; copy the one from the same run's folder."
        )
    return tokenizer


def _check_tensors(weights: Path, file: Any, expected: dict[str, Tensor]) -> None:
    """Hold the names, shapes and types in the file against those of the model, before any is read."""
    names = set(file.keys())
    if missing := expected.keys() - names:
        raise ArtifactError(f"{weights}: does not fit its configuration: it lacks the tensor {min(missing)}.")
    if extra := names - expected.keys():
        raise ArtifactError(f"{weights}: does not fit its configuration: it has an unknown tensor {min(extra)}.")
    for name, tensor in expected.items():
        view = file.get_slice(name)
        shape, dtype = tuple(view.get_shape()), view.get_dtype()
        if shape != tuple(tensor.shape) or dtype != "F32":
            raise ArtifactError(
                f"{weights}: does not fit its configuration: {name} is {dtype} {shape}, not F32 {tuple(tensor.shape)}."
            )


def _check_finite(weights: Path, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ArtifactError(f"{weights}: the tensor {name} has values that aren't finite numbers.")
