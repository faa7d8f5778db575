"""Every hyper-parameter of a run: frozen dataclasses, read from TOML, overridden with --set, written as JSON.

A run's configuration is its data set's recipe (`recipe`), then the keys of a TOML file, then `--set` overrides, each
over the one before. Whatever comes in is checked here, once; an error names the key, and the nearest one that exists.
"""

import dataclasses
import difflib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args, get_origin, get_type_hints

from textcls.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which rows a run sees."""

    rows_per_epoch: int = 25_000
    """Rows drawn each epoch, of pretraining too; 0 takes every training row."""
    valid_rows: int = 2_500
    """Rows carved from the train split, seeded, to choose the best epoch; the test split is never used for it."""
    labels_per_class: int = 0
    """Training rows of each class that keep their label, seeded; the others are for pretraining alone. 0: all rows."""
    with_replacement: bool = False
    """Draw training rows independently, as the original does, rather than walk through reshuffled passes."""
    text_columns: tuple[str, ...] = ()
    """Own data, as all keys from here on: the columns that hold the text, joined by line ends; none: found by name."""
    label_column: str = ""
    """The column that holds the label; "": found by name. A column without a name goes by its number, from 1."""
    encoding: str = "auto"
    """Of text files; "auto" detects it."""
    separator: str = "auto"
    """What parts the columns of a CSV or TSV file: a character, or "tab"; "auto" finds it."""
    quote: str = "auto"
    """What a cell of such a file is put into: a character, or "none"; "auto" finds it."""
    drop_duplicates: bool = False
    """Keep the first row of each text in a split, and in train none that valid or test has, in valid none of test."""
    split_seed: int = 0
    """Chooses the rows that are carved for a test split where there is none; apart from training.seed, which varies."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How texts become tokens."""

    source: str = "bert-base-cased"
    """"bert-base-cased" (from the Hub), "corpus" (trained on the training rows), or the path of a tokenizer.json."""
    vocab_size: int = 8_192
    """Tokens of a vocabulary trained on the corpus; ignored otherwise."""


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """How rows become batches."""

    size: int = 32
    """Rows."""
    max_length: int = 256
    """Tokens of a row at most, [CLS] and [SEP] included; the rest is cut. Also the number of learnt positions."""
    padding: Literal["longest", "fixed"] = "longest"
    """"longest": rows of similar length share a batch, padded to its longest; "fixed": every row to max_length."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The encoder's dimensions and its mathematics."""

    d_model: int = 128
    n_heads: int = 4
    d_ff: int = 512
    n_layers: int = 4
    dropout: float = 0.1
    """Probability that an element of a sublayer's output, or of the feed-forward's hidden layer, is zeroed."""
    score_dropout: float = 0.0
    """Probability that an attention score is zeroed before the softmax; the original has 0.1."""
    token_dropout: float = 0.0
    """Probability that a token is hidden in training: its embedding is 0, its position stays."""
    quiet_softmax: bool = True
    """Attention weights exp(x_i) / (1 + sum_j exp(x_j)), which lets a head attend to nothing."""
    embedding_std: float = 0.05
    """Standard deviation of the token and position embeddings at the start; the original has 1."""
    embedding_init: Literal["random", "lsa"] = "random"
    """Token embeddings at the start: drawn, or the directions of a latent semantic analysis of the training rows, by
    which tokens that occur in the same rows begin alike."""
    lsa_std: float = 0.05
    """Standard deviation of token embeddings that start so; longer ones learn more slowly, but behind the first layers
    more is left of them, which helps what is finetuned."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The update rule."""

    name: Literal["adamw", "adam"] = "adamw"
    """"adamw": decoupled decay, on matrices only; "adam": the decay is added to the gradient (L2), everywhere."""
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    """Largest L2 norm of the whole gradient; 0 leaves it as it is."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate at each step."""

    name: Literal["linear", "noam", "constant"] = "linear"
    """"linear": up over the warm-up, down to 0 at the last step; "noam": Vaswani et al. 2017; or "constant"."""
    lr: float = 1e-3
    """The peak of "linear", the factor of "noam", the rate of "constant"."""
    warmup_steps: int = 300


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The loop."""

    epochs: int = 5
    steps: int = 0
    """Stop after this many updates instead, be it within an epoch; 0 goes by `epochs`."""
    patience: int = 0
    """Stop after this many epochs in a row that were none of them the best; 0 never does."""
    keep: Literal["best", "last"] = "best"
    """The epoch that is saved: the best on the validation rows, or the last, which needs few of them."""
    seed: int = 0
    dtype: Literal["f32", "f16", "bf16"] = "f32"
    """Of the forward pass's matrix products (autocast); weights are f32 always."""
    accumulate: int = 1
    """Batches whose gradients make one update: as if a batch were that much larger, in the memory of one."""
    label_smoothing: float = 0.0
    """Share of each label that is spread evenly over all classes."""
    averaging: float = 0.0
    """Decay of an exponential moving average of the weights, which is then what is evaluated and saved, such as 0.998;
    0 takes the weights themselves."""
    class_weights: str = "none"
    """How much a row counts by its class: "none", "balanced", or as in "spam=3, ham=0.5"; one not named counts 1."""
    calibrate: bool = False
    """Scale the trained model's logits by a temperature that fits its probabilities to the validation rows."""
    log_every: int = 50
    """Steps between two lines of metrics.jsonl."""
    checkpoint_every: str = "10m"
    """Between two checkpoints within an epoch: steps, as in "500", or time, as in "90s", "10m", "2h"; each epoch's end
    has one as well."""


@dataclass(frozen=True, kw_only=True)
class PretrainingConfig:
    """Masked language modelling on the training texts, before the training with their labels."""

    epochs: int = 0
    """Of `data.rows_per_epoch` rows, with or without a label; 0 leaves it out."""
    hidden: float = 0.3
    """Share of the tokens that are hidden, and guessed."""
    lr: float = 2e-3
    """The peak of its own linear schedule."""
    warmup_steps: int = 1_000


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """The adapters of `textcls finetune` (Hu et al. 2021, arXiv:2106.09685)."""

    rank: int = 8
    alpha: int = 16


@dataclass(frozen=True, kw_only=True)
class Config:
    """A run's whole configuration."""

    dataset: str = "ag-news"
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    transformer: TransformerConfig = field(default_factory=TransformerConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    pretraining: PretrainingConfig = field(default_factory=PretrainingConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)

    def __post_init__(self) -> None:
        _check_ranges(self)

    def override(self, values: Mapping[str, Any], *, origin: str = "") -> Self:
        """This configuration with the keys of a nested mapping put over it.

        Args:
            values: sections and keys as in a TOML file, such as {"transformer": {"d_model": 256}}.
            origin: what an error says the values came from, such as a file's name.

        Raises:
            ConfigError: an unknown key, a wrong type, or a value that can't work.
        """
        try:
            return cast(Self, _merged(self, values, prefix=""))
        except ConfigError as error:
            raise ConfigError(f"{origin}: {error}" if origin else str(error)) from None

    def to_dict(self) -> dict[str, Any]:
        """Sections and keys, every default written out."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """`to_dict` as indented JSON with a final newline."""
        return json.dumps(self.to_dict(), indent=2) + "\n"


# What a data set's recipe changes of the defaults above, which are the original's model for AG News, and its budget.
_RECIPES: dict[str, dict[str, Any]] = {
    # Half as deep as the original's model: in the time of its 5 epochs this one learns the language of the texts first.
    "ag-news": {
        "tokenizer": {"source": "corpus"},
        "transformer": {"n_layers": 2, "dropout": 0.0, "token_dropout": 0.3, "embedding_init": "lsa"},
        "pretraining": {"epochs": 6},
        "training": {"label_smoothing": 0.1},
    },
    # Half as wide as the original's model, in whose time this one learns the language of the texts first: 0.982 of the
    # test rows are right rather than 0.976.
    "db-pedia": {
        "data": {"rows_per_epoch": 27_500},
        "tokenizer": {"source": "corpus", "vocab_size": 16_384},
        "transformer": {"dropout": 0.0, "token_dropout": 0.3, "quiet_softmax": False, "embedding_init": "lsa"},
        "pretraining": {"epochs": 12},
        "training": {"epochs": 4, "label_smoothing": 0.1},
        "schedule": {"lr": 5e-4},
    },
    "sample": {
        "data": {"rows_per_epoch": 0, "valid_rows": 160},
        "tokenizer": {"source": "corpus", "vocab_size": 4_096},
        "batch": {"max_length": 128},
        # Few rows live on what the analysis knows of words: 95 of 100 validation rows are right rather than 88.
        "transformer": {"token_dropout": 0.1, "embedding_init": "lsa"},
        "training": {"epochs": 15},
        "schedule": {"warmup_steps": 100},
    },
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """What the recipe for own data follows from."""

    rows: int
    """Of the train split."""
    tokens: int
    """Of its rows, all but one in a hundred have no more, by a rough estimate."""


def recipe(dataset: str, size: Size | None = None) -> Config:
    """The configuration that `textcls train DATASET` uses unless told otherwise; own data's follows from its size."""
    return Config(dataset=dataset).override(_RECIPES.get(dataset, {}) if size is None else _own_recipe(size))


def _own_recipe(size: Size) -> dict[str, Any]:
    """About 150,000 rows seen in training, however many there are, in 5 to 15 epochs of 30,000 rows at most.

    The vocabulary and the token dropout were chosen on validation rows of banking77 (10,000 short texts, 77 classes).
    """
    epochs = min(15, max(5, round(150_000 / size.rows)))
    rows_per_epoch = min(size.rows, 30_000)
    steps = epochs * math.ceil(rows_per_epoch / BatchConfig().size)
    return {
        "data": {
            "rows_per_epoch": 0 if rows_per_epoch == size.rows else rows_per_epoch,
            "valid_rows": min(2_500, max(1, size.rows // 10)),
        },
        "tokenizer": {"source": "corpus", "vocab_size": 4_096 if size.rows < 30_000 else 8_192},
        "transformer": {"token_dropout": 0.2},
        "batch": {"max_length": min(256, max(32, 16 * math.ceil(size.tokens / 16)))},
        "training": {"epochs": epochs},
        "schedule": {"warmup_steps": min(300, max(1, steps // 10))},
    }


def first_difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first key whose value differs between two `Config.to_dict()`s, as (dotted key, then, now)."""
    for key in _keys():
        old, new = (reduce(lambda values, part: values.get(part, {}), key.split("."), v) for v in (then, now))
        if old != new:
            return key, old, new
    return None


def checkpoint_interval(text: str) -> tuple[int, float]:
    """A `training.checkpoint_every` as (steps, seconds), of which the other is 0.

    Raises:
        ConfigError: it is neither.
    """
    match = re.fullmatch(r"([1-9]\d{0,8})([smh]?)", text)
    if match is None:
        raise ConfigError(
            f"training.checkpoint_every: {text!r} can't work; give steps, as in 500, or a time, as in 90s, 10m or 2h."
        )
    number, unit = int(match[1]), match[2]
    return (0, number * {"s": 1.0, "m": 60.0, "h": 3600.0}[unit]) if unit else (number, 0.0)


def read_toml(path: Path) -> dict[str, Any]:
    """The keys of a TOML file.

    Raises:
        ConfigError: the file can't be read, or isn't TOML; the message names it.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"--config {path}: there is no such file; configs/ in the source has some.") from None
    except OSError as error:
        raise ConfigError(f"--config {path}: can't be read ({error.strerror}); give a TOML file.") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--config {path}: is not TOML ({error}); mend it there.") from None


def parse_override(text: str) -> dict[str, Any]:
    """`transformer.d_model=256` as {"transformer": {"d_model": 256}}; the value is TOML, or else a plain string.

    Raises:
        ConfigError: there is no `=`, or no key before it.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}: expected KEY=VALUE, such as transformer.d_model=256.")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    return cast(dict[str, Any], parsed)


def _merged(section: Any, values: Mapping[str, Any], *, prefix: str) -> Any:
    """A copy of a dataclass with `values` put over it, section by section."""
    types_by_name = get_type_hints(type(section))
    changes: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in types_by_name:
            inside = next(iter(value), "") if isinstance(value, Mapping) else ""
            unknown = f"{key}.{inside}" if inside else key
            raise ConfigError(f"{unknown}: there is no such key; {_nearest(unknown)}")
        old = getattr(section, name)
        if not dataclasses.is_dataclass(old):
            changes[name] = _checked_type(key, value, types_by_name[name])
        elif isinstance(value, Mapping):
            changes[name] = _merged(old, value, prefix=f"{key}.")
        else:
            raise ConfigError(f"{key}: a section, not a value; set a key in it, such as {_keys(f'{key}.')[0]}.")
    return dataclasses.replace(section, **changes)


def _checked_type(key: str, value: Any, expected: Any) -> Any:
    """`value` as the field's type; a whole number is taken where a float is meant, nothing else is bent."""
    if get_origin(expected) is tuple:
        values = [value] if isinstance(value, str) else value
        if isinstance(values, (list, tuple)) and all(isinstance(item, str) for item in values):
            return tuple(values)
        raise ConfigError(f"{key}: {value!r} is of the wrong type; give a list of texts.")
    if get_origin(expected) is Literal:
        if value in get_args(expected):
            return value
        raise ConfigError(f"{key}: {value!r} isn't known; use one of {', '.join(get_args(expected))}.")
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise ConfigError(f"{key}: {value!r} is of the wrong type; give {names[expected]}.")
    return value


def _keys(prefix: str = "") -> list[str]:
    """Every dotted key that begins with `prefix`."""

    def walk(section: Any, stem: str) -> list[str]:
        found: list[str] = []
        for name, kind in get_type_hints(section).items():
            found += walk(kind, f"{stem}{name}.") if dataclasses.is_dataclass(kind) else [f"{stem}{name}"]
        return found

    return [key for key in walk(Config, "") if key.startswith(prefix)]


def _nearest(key: str) -> str:
    """What to say of a key that doesn't exist: that it is a section, or the nearest that does exist."""
    keys, last = _keys(), key.rsplit(".", 1)[-1]
    if last in _sections():
        return f"{last} is a section; set a key in it, such as {_keys(f'{last}.')[0]}."
    same = [k for k in keys if k.rsplit(".", 1)[-1] == last]
    close = difflib.get_close_matches(key, same or keys, n=1, cutoff=0 if same else 0.6)
    return f"did you mean {close[0]}?" if close else f"the sections are {', '.join(_sections())}."


def _sections() -> list[str]:
    return [name for name, kind in get_type_hints(Config).items() if dataclasses.is_dataclass(kind)]


_MAX_INT = 2**31 - 1
# Least and greatest value of each number. The upper bounds only keep out sizes that no machine could hold.
_RANGES: dict[str, tuple[float, float]] = {
    "data.rows_per_epoch": (0, _MAX_INT),
    "data.valid_rows": (1, _MAX_INT),
    "data.labels_per_class": (0, _MAX_INT),
    "data.split_seed": (0, _MAX_INT),
    "tokenizer.vocab_size": (100, 1_000_000),
    "batch.size": (1, 65_536),
    "batch.max_length": (3, 65_536),
    "transformer.d_model": (1, 16_384),
    "transformer.n_heads": (1, 1_024),
    "transformer.d_ff": (1, 65_536),
    "transformer.n_layers": (1, 256),
    "transformer.dropout": (0, 0.99),
    "transformer.score_dropout": (0, 0.99),
    "transformer.token_dropout": (0, 0.99),
    "transformer.embedding_std": (0, 100),
    "transformer.lsa_std": (1e-6, 100),
    "optimizer.beta1": (0, 0.999999),
    "optimizer.beta2": (0, 0.999999),
    "optimizer.eps": (1e-20, 1),
    "optimizer.weight_decay": (0, 100),
    "optimizer.clip_norm": (0, 1e9),
    "schedule.lr": (1e-12, 100),
    "schedule.warmup_steps": (1, _MAX_INT),
    "pretraining.epochs": (0, 1_000_000),
    "pretraining.hidden": (0.01, 0.99),
    "pretraining.lr": (1e-12, 100),
    "pretraining.warmup_steps": (1, _MAX_INT),
    "training.epochs": (1, 1_000_000),
    "training.steps": (0, _MAX_INT),
    "training.patience": (0, 1_000_000),
    "training.seed": (0, _MAX_INT),
    "training.accumulate": (1, 65_536),
    "training.label_smoothing": (0, 0.99),
    "training.averaging": (0, 0.99999),
    "training.log_every": (1, _MAX_INT),
    "lora.rank": (1, 4_096),
    "lora.alpha": (1, 1_000_000),
}


def _check_ranges(config: Config) -> None:
    """Refuse values that can't work, each by its key."""
    if config.batch.max_length == 0:
        raise ConfigError(
            "batch.max_length: there must be a maximum, since each position has a learnt vector; 256 is usual."
        )
    for key, (least, most) in _RANGES.items():
        section, name = key.split(".")
        value = getattr(getattr(config, section), name)
        if not least <= value <= most or not math.isfinite(value):
            raise ConfigError(f"{key}: {value} can't work; give a value from {least:g} to {most:g}.")
    checkpoint_interval(config.training.checkpoint_every)
    d_model, n_heads = config.transformer.d_model, config.transformer.n_heads
    if d_model % n_heads:
        fitting = max(n for n in range(1, n_heads + 1) if d_model % n == 0)
        raise ConfigError(
            f"transformer.d_model: {d_model} is not divisible by transformer.n_heads = {n_heads}; "
            f"try n_heads = {fitting}, or d_model = {n_heads * math.ceil(d_model / n_heads)}."
        )
