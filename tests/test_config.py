import json
from dataclasses import replace
from pathlib import Path

import pytest

from textcls.config import _RANGES, Config, Size, _keys, checkpoint_interval, parse_override, read_toml, recipe
from textcls.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.toml"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("transformer.d_modle=256", "transformer.d_modle: there is no such key; did you mean transformer.d_model?"),
        ("transfromer.d_model=256", "transfromer.d_model: there is no such key; did you mean transformer.d_model?"),
        ("zzz=1", "zzz: there is no such key; the sections are data, tokenizer, batch,"),
        ("d_model=256", "d_model: there is no such key; did you mean transformer.d_model?"),
        ("trainig.epochs=2", "did you mean training.epochs?"),
        ("transformer.d_model=wide", "transformer.d_model: 'wide' is of the wrong type; give a whole number."),
        ("transformer.d_model=256.0", "transformer.d_model: 256.0 is of the wrong type"),
        ("transformer.d_model=true", "transformer.d_model: True is of the wrong type"),
        ("transformer.quiet_softmax=1", "transformer.quiet_softmax: 1 is of the wrong type; give true or false."),
        ("data.text_columns=[1]", "data.text_columns: [1] is of the wrong type; give a list of texts."),
        ("transformer=3", "transformer: a section, not a value; set a key in it, such as transformer.d_model."),
        (
            "transformer.d_model=130",
            "130 is not divisible by transformer.n_heads = 4; try n_heads = 2, or d_model = 132",
        ),
        ("schedule.warmup_steps=0", "schedule.warmup_steps: 0 can't work; give a value from 1"),
        ("schedule.lr=nan", "schedule.lr: nan can't work"),
        ("schedule.name=cosine", "schedule.name: 'cosine' isn't known; use one of linear, noam, constant."),
        ("batch.max_length=0", "batch.max_length: there must be a maximum, since each position has a learnt vector"),
        ("batch.max_length=2", "batch.max_length: 2 can't work"),
        (
            "training.checkpoint_every=0m",
            "training.checkpoint_every: '0m' can't work; give steps, as in 500, or a time",
        ),
        ("training.patience=-1", "training.patience: -1 can't work"),
        ("training.label_smoothing=1", "training.label_smoothing: 1.0 can't work"),
        ("training.epochs=-1", "training.epochs: -1 can't work"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_key(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^--set: ") as caught:
        Config().override(parse_override(override), origin="--set")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["transformer.d_model", "=3", ""])
def test_an_override_without_a_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        parse_override(text)


def test_overrides_reach_every_key() -> None:
    for key in _keys():
        section = json.loads(json.dumps(Config().to_dict()))
        for part in key.split("."):
            section = section[part]
        value = json.dumps(section)
        assert Config().override(parse_override(f"{key}={value}")) == Config(), key


def test_every_number_has_a_range_and_its_bounds_hold() -> None:
    numbers = {k for k in _keys() if k.count(".") and isinstance(_value(Config(), k), (int, float))}
    assert set(_RANGES) == {k for k in numbers if not isinstance(_value(Config(), k), bool)}


def _value(config: Config, key: str) -> object:
    section, name = key.split(".") if "." in key else ("", key)
    return getattr(getattr(config, section), name) if section else getattr(config, name)


def test_a_whole_number_is_taken_where_a_float_is_meant() -> None:
    config = Config().override(parse_override("schedule.lr=1"))
    assert config.schedule.lr == 1.0
    assert isinstance(config.schedule.lr, float)


@pytest.mark.parametrize(
    ("text", "expected"), [("500", (500, 0)), ("90s", (0, 90)), ("10m", (0, 600)), ("2h", (0, 7_200))]
)
def test_a_checkpoint_interval_is_steps_or_seconds(text: str, expected: tuple[int, float]) -> None:
    assert checkpoint_interval(text) == expected


def test_a_config_survives_json() -> None:
    config = recipe("db-pedia").override(parse_override("training.seed=7"))
    assert Config().override(json.loads(config.to_json())) == config


def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: there is no such"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("[transformer\nd_model = 3")
    with pytest.raises(ConfigError, match=r"broken\.toml: is not TOML .*line 1"):
        read_toml(tmp_path / "broken.toml")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_loads_and_opens_with_its_command(path: Path) -> None:
    command = path.read_text().splitlines()[0].removeprefix("# ").split()
    assert command[:2] == ["textcls", "train"]
    assert command[3:] == ["--config", f"configs/{path.name}"]
    recipe(command[2]).override(read_toml(path))


def test_there_are_configs() -> None:
    assert {"ag-news", "db-pedia", "burn-ag-news", "burn-db-pedia"} <= {path.stem for path in CONFIGS}


@pytest.mark.parametrize("dataset", ["ag-news", "db-pedia"])
def test_the_default_recipes_are_written_out_in_full(dataset: str) -> None:
    values = read_toml(Path(__file__).parents[1] / "configs" / f"{dataset}.toml")
    assert recipe(dataset).override(values) == recipe(dataset)
    written = {f"{section}.{key}" for section, keys in values.items() for key in keys}
    assert written == {key for key in _keys() if key.split(".")[0] not in ("dataset", "lora")}


@pytest.mark.parametrize("rows", [1, 2, 7, 80, 4_458, 10_003, 29_999, 30_001, 10_000_000])
def test_the_recipe_of_own_data_follows_from_its_size(rows: int) -> None:
    config = recipe("tickets.csv", Size(rows=rows, tokens=37))
    assert config.tokenizer.source == "corpus"
    assert config.batch.max_length == 48
    assert config.data.valid_rows == min(2_500, max(1, rows // 10))
    seen = config.training.epochs * (config.data.rows_per_epoch or rows)
    assert 5 <= config.training.epochs <= 15
    assert seen == 15 * rows if rows < 10_000 else 135_000 < seen < 165_000
    assert recipe("x", Size(rows=rows, tokens=100_000)).batch.max_length == 256
    assert recipe("x", Size(rows=rows, tokens=3)).batch.max_length == 32


@pytest.mark.parametrize(("value", "expected"), [('["a", "b"]', ("a", "b")), ("a", ("a",)), ("[]", ())])
def test_a_list_of_texts(value: str, expected: tuple[str, ...]) -> None:
    assert Config().override(parse_override(f"data.text_columns={value}")).data.text_columns == expected


@pytest.mark.parametrize(("dataset", "d_model", "quiet"), [("ag-news", 128, True), ("db-pedia", 256, False)])
def test_the_original_is_reproduced(dataset: str, d_model: int, quiet: bool) -> None:
    config = recipe(dataset).override(read_toml(Path(__file__).parents[1] / "configs" / f"burn-{dataset}.toml"))
    model, optimizer, schedule = config.transformer, config.optimizer, config.schedule
    assert (model.d_model, model.d_ff, model.n_layers, model.quiet_softmax) == (d_model, 4 * d_model, 4, quiet)
    assert (model.dropout, model.score_dropout, model.embedding_std) == (0.1, 0.1, 1.0)
    assert model.embedding_init == "random"
    assert (optimizer.name, optimizer.beta1, optimizer.beta2) == ("adam", 0.9, 0.999)
    assert (optimizer.eps, optimizer.weight_decay, optimizer.clip_norm) == (1e-5, 5e-5, 0)
    assert (schedule.name, schedule.lr, schedule.warmup_steps) == ("noam", 1e-2, 1000)
    assert (config.data.rows_per_epoch, config.data.valid_rows, config.data.with_replacement) == (25_000, 2_500, True)
    assert (config.batch.size, config.batch.max_length, config.batch.padding) == (32, 256, "fixed")
    assert (config.training.epochs, config.tokenizer.source) == (5, "bert-base-cased")
    assert (config.pretraining.epochs, config.training.label_smoothing, model.token_dropout) == (0, 0, 0)


def test_impossible_values_are_refused_however_a_config_is_made() -> None:
    with pytest.raises(ConfigError, match=r"batch\.size"):
        replace(Config(), batch=replace(Config().batch, size=0))


@pytest.mark.parametrize("text", ["data=1", "training.data=1"])
def test_a_section_in_the_place_of_a_key_is_shown_a_key_of_its_own(text: str) -> None:
    with pytest.raises(ConfigError, match=r"set a key in it, such as data\.rows_per_epoch\.$"):
        Config().override(parse_override(text))
