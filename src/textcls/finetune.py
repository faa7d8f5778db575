"""Carry a trained classifier to another data set with LoRA, and merge the result into a plain model.

W x becomes W x + (alpha / rank) B A x, with A (rank, in) and B (out, rank) trained and W frozen.
(Hu et al. 2021, arXiv:2106.09685)
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from torch import nn

from textcls.artifact import ADAPTER, Artifact, new_model
from textcls.config import Config, Size, recipe
from textcls.data import sources
from textcls.errors import ConfigError, StorageError
from textcls.files import writing
from textcls.journal import Journal
from textcls.metrics import Counts
from textcls.model import TransformerClassifier
from textcls.runtime import seed_everything
from textcls.train import Trainer, finish, run
from textcls.training_data import prepare

log = logging.getLogger(__name__)

HEAD = "head"
ADAPTED = ["token", "query", "value", "output", "inner", "outer"]
"""What gets an adapter: the token embeddings, attention's query, value and output, and both of the feed-forward.

The original's has none on the embeddings, and then new classes can be told by what the old ones taught of words alone.
"""

# What finetuning changes of the data set's own recipe and of the trained model's. Dropping tokens or units brings
# nothing to what so few numbers learn. At a constant rate the last step's weights are noisy: the average over the last
# 500 or so is right half a point more often.
_RECIPE: dict[str, Any] = {
    "schedule": {"name": "constant", "lr": 1e-3},
    "transformer": {"dropout": 0.0, "score_dropout": 0.0, "token_dropout": 0.0},
    "training": {"averaging": 0.998, "label_smoothing": 0.0},
    "pretraining": {"epochs": 0},
}


def finetune_config(base: Config, dataset: str, size: Size | None = None) -> Config:
    """The configuration to finetune with: the data set's recipe, with the model and tokenizer of the one trained."""
    model = {"transformer": base.to_dict()["transformer"], "tokenizer": base.to_dict()["tokenizer"]}
    length = {"batch": {"max_length": base.batch.max_length}}
    return recipe(dataset, size).override(model).override(length).override(_RECIPE)


def check_same_model(base: Config, config: Config) -> None:
    """Refuse to finetune with other dimensions than those trained.

    Raises:
        ConfigError: a key of the model or the tokenizer was changed; the message names it.
    """
    fixed: Mapping[str, tuple[str, ...]] = {
        "transformer": ("d_model", "n_heads", "d_ff", "n_layers", "quiet_softmax"),
        "tokenizer": ("source", "vocab_size"),
        "batch": ("max_length",),
    }
    for section, names in fixed.items():
        for name in names:
            old, new = (getattr(getattr(c, section), name) for c in (base, config))
            if old != new:
                raise ConfigError(
                    f"{section}.{name}: {new} can't be finetuned from a model that has {old}; leave it out."
                )


def _check_no_pretraining(config: Config) -> None:
    if n := config.pretraining.epochs:
        raise ConfigError(
            f"pretraining.epochs: {n} can't work in finetuning, which learns from labels alone; leave it out."
        )


def add_adapters(model: TransformerClassifier, rank: int, alpha: int) -> PeftModel:
    """Put adapters on; the head is trained in full, and all else is frozen."""
    settings = LoraConfig(r=rank, lora_alpha=alpha, target_modules=ADAPTED, modules_to_save=[HEAD])
    return cast(PeftModel, get_peft_model(cast(Any, model), settings))


def merge(adapted: PeftModel) -> TransformerClassifier:
    """A plain model that computes what the adapted one does: W + (alpha / rank) B A in every adapted layer, in f32."""
    return cast(TransformerClassifier, cast(Any, adapted).float().merge_and_unload())


def _save_adapter(adapted: PeftModel, folder: Path) -> None:
    try:
        with writing(folder):
            adapted.save_pretrained(str(folder), save_embedding_layers=False)
    except SafetensorError as error:  # what safetensors makes of a full disk
        raise StorageError(f"{folder}: can't be written ({error}); make room, and go on with --resume.") from error


def finetune(base: Artifact, config: Config, *, device: torch.device, folder: Path, resume: bool = False) -> Counts:
    """Finetune a trained classifier, save the adapter and the merged model, and count its hits on the test split.

    Raises:
        ConfigError: the configuration is of another model than `base`.
    """
    check_same_model(base.config, config)
    _check_no_pretraining(config)
    seed_everything(config.training.seed)
    with Journal(folder, resume=resume) as journal:
        stored = sources.load(config.dataset, config.data)
        data = prepare(config, stored, base.tokenizer)
        model = new_model(config, vocab_size=base.tokenizer.vocab_size, n_classes=len(base.class_names))
        model.load_state_dict(base.model.state_dict())  # into a model that has the dropout of this training
        model.head = nn.Linear(model.head.in_features, data.n_classes)
        rank, alpha = config.lora.rank, config.lora.alpha
        outline = f"{model}\nadapters of rank {rank} and alpha {alpha} on every {', '.join(ADAPTED)}"
        trainer = Trainer(add_adapters(model, rank, alpha), data, config, device, folder, journal)
        run(trainer, stored, outline=outline, resume=resume)
        adapted = cast(PeftModel, trainer.model)
        _save_adapter(adapted, folder / ADAPTER)
        merged = merge(adapted)
        artifact = Artifact(model=merged, config=config, class_names=stored.class_names, tokenizer=base.tokenizer)
        return finish(trainer, artifact, stored)
