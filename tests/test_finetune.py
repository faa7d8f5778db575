import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from textcls import artifact, load
from textcls.config import recipe
from textcls.data import sources
from textcls.errors import ConfigError
from textcls.evaluate import evaluate_split
from textcls.finetune import ADAPTED, add_adapters, check_same_model, finetune, finetune_config, merge
from textcls.model import Dropout

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def finetuned(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finetuned")
    base = artifact.load(small_run / "model.safetensors")
    config = finetune_config(base.config, "sample").override({"training": {"epochs": 1}})
    finetune(base, config, device=CPU, folder=folder)
    return folder


def test_only_adapters_and_head_are_trained_and_the_rest_stays_byte_for_byte(small_run: Path, finetuned: Path) -> None:
    before, after = (load_file(folder / "model.safetensors") for folder in (small_run, finetuned))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        same = tensor.numpy().tobytes() == after[name].numpy().tobytes()
        adapted = name.endswith(".weight") and name.split(".")[-2] in ADAPTED
        assert same != (adapted or name.startswith("head.")), name


def test_the_result_is_plain_and_needs_no_peft(finetuned: Path) -> None:
    stored = sources.load("sample")
    loaded = artifact.load(finetuned / "model.safetensors")
    counts = evaluate_split(loaded, stored, "test", CPU, "f32")
    assert counts.rows == 320
    assert f"accuracy {counts.accuracy:.4f}" in (finetuned / "experiment.log").read_text()
    assert len(load(finetuned, device="cpu").predict(["Shares fell."])) == 1


def test_the_adapter_is_kept_in_peft_s_own_format(small_run: Path, finetuned: Path) -> None:
    settings = json.loads((finetuned / "adapter/adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], set(settings["target_modules"])) == (8, 16, set(ADAPTED))
    base = artifact.load(small_run / "model.safetensors").model
    base.head = torch.nn.Linear(base.head.in_features, 4)
    restored = PeftModel.from_pretrained(base, str(finetuned / "adapter")).eval()
    plain = artifact.load(finetuned / "model.safetensors").model
    tokens, keep = batch()
    with torch.inference_mode():
        torch.testing.assert_close(restored(tokens, keep), plain(tokens, keep), rtol=0, atol=1e-5)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(900, (8, 30)), torch.ones(8, 30, dtype=torch.bool)


def perturb(model: torch.nn.Module) -> None:
    """Give every adapter a part in the result: B is zero at the start, and A of an embedding's."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "lora_embedding_A" in name:
                parameter.normal_(std=0.2)


@pytest.mark.parametrize("n_classes", [2, 4, 14])
def test_merged_and_adapted_logits_agree(small_run: Path, n_classes: int) -> None:
    base = artifact.load(small_run / "model.safetensors").model
    plain = copy.deepcopy(base)
    base.head = torch.nn.Linear(base.head.in_features, n_classes)
    adapted = add_adapters(base, rank=8, alpha=16).eval()
    perturb(adapted)
    tokens, keep = batch()
    with torch.inference_mode():
        before = adapted(tokens, keep)
        merged = merge(adapted)
        torch.testing.assert_close(merged(tokens, keep), before, rtol=0, atol=1e-5)
    assert before.shape == (8, n_classes)
    plain.head = merged.head
    with torch.inference_mode():
        assert float((plain(tokens, keep) - before).abs().max()) > 0.01  # the adapters did something


def test_merging_is_the_formula(small_run: Path) -> None:
    base = artifact.load(small_run / "model.safetensors").model
    old = base.state_dict()["layers.0.attention.query.weight"].clone()
    adapted = add_adapters(base, rank=4, alpha=12)
    perturb(adapted)
    named = dict(adapted.named_parameters())
    prefix = "base_model.model.layers.0.attention.query"
    a, b = (named[f"{prefix}.lora_{part}.default.weight"].detach().clone() for part in "AB")
    merged = merge(adapted).state_dict()["layers.0.attention.query.weight"]
    torch.testing.assert_close(merged, old + 12 / 4 * b @ a, rtol=0, atol=1e-6)


def test_what_is_trained_is_shown_as_count_and_share(small_run: Path, finetuned: Path) -> None:
    d, f, layers, rank = 32, 64, 2, 8
    vocab_size = artifact.load(small_run / "model.safetensors").tokenizer.vocab_size
    adapters = rank * (vocab_size + d + layers * (3 * 2 * d + 2 * (d + f)))
    line = next(line for line in (finetuned / "experiment.log").read_text().splitlines() if "parameters: " in line)
    assert f"of which trained: {adapters + 4 * d + 4:,} (" in line


def test_dropout_is_that_of_the_finetuning(small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    monkeypatch.setattr(
        "textcls.train.Trainer.fit",
        lambda self: seen.extend(m.p for m in self.model.modules() if isinstance(m, Dropout)),
    )
    base = artifact.load(small_run / "model.safetensors")
    config = finetune_config(base.config, "sample").override({"transformer": {"dropout": 0.3}})
    finetune(base, config, device=CPU, folder=tmp_path)
    assert set(seen) == {0.3, 0.0}  # the layers' dropout, and that of the scores


def test_pretraining_in_finetuning_is_a_sentence(small_run: Path, tmp_path: Path) -> None:
    base = artifact.load(small_run / "model.safetensors")
    config = finetune_config(base.config, "sample").override({"pretraining": {"epochs": 1}})
    with pytest.raises(ConfigError, match=r"pretraining\.epochs: 1 can't work in finetuning"):
        finetune(base, config, device=CPU, folder=tmp_path)


def test_the_learning_rate_is_constant(finetuned: Path) -> None:
    lines = [json.loads(line) for line in (finetuned / "metrics.jsonl").read_text().splitlines()]
    assert {line["lr"] for line in lines if "lr" in line} == {1e-3}


def test_the_configuration_keeps_the_model_that_was_trained(small_run: Path) -> None:
    base = artifact.load(small_run / "model.safetensors").config
    config = finetune_config(base, "db-pedia")
    dropped = ("dropout", "score_dropout", "token_dropout")
    assert (
        replace(config.transformer, **{name: getattr(base.transformer, name) for name in dropped}) == base.transformer
    )
    assert {getattr(config.transformer, name) for name in dropped} == {0.0}
    assert config.tokenizer == base.tokenizer
    assert config.batch.max_length == base.batch.max_length
    assert (config.schedule.name, config.schedule.lr) == ("constant", 1e-3)
    assert config.data == recipe("db-pedia").data
    assert (config.training.averaging, config.training.label_smoothing, config.pretraining.epochs) == (0.998, 0, 0)
    assert replace(config.training, averaging=0.0, label_smoothing=0.1) == recipe("db-pedia").training
    check_same_model(base, config)


@pytest.mark.parametrize(
    "change",
    [{"transformer": {"d_model": 64}}, {"tokenizer": {"source": "bert-base-cased"}}, {"batch": {"max_length": 64}}],
)
def test_other_dimensions_are_refused_by_their_key(small_run: Path, change: dict[str, Any]) -> None:
    base = artifact.load(small_run / "model.safetensors").config
    ((section, values),) = change.items()
    with pytest.raises(
        ConfigError, match=f"{section}.{next(iter(values))}: .* can't be finetuned from a model that has"
    ):
        check_same_model(base, finetune_config(base, "sample").override(change))


@pytest.mark.hub
@pytest.mark.slow
def test_from_and_to_other_numbers_of_classes(small_run: Path, tmp_path: Path) -> None:
    """4 classes to 14, and the result of that back to 4, on the benchmarks' rows."""
    fewer = {"training": {"epochs": 1}, "data": {"rows_per_epoch": 640, "valid_rows": 100}}
    first = artifact.load(small_run / "model.safetensors")
    finetune(first, finetune_config(first.config, "db-pedia").override(fewer), device=CPU, folder=tmp_path / "a")
    second = artifact.load(tmp_path / "a/model.safetensors")
    assert len(second.class_names) == 14
    finetune(second, finetune_config(second.config, "ag-news").override(fewer), device=CPU, folder=tmp_path / "b")
    assert artifact.load(tmp_path / "b/model.safetensors").class_names[3] == "Technology"
