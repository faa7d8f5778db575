"""What a data set is like, as its configuration would read it: rows, classes, lengths, examples."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from textcls.config import Config
from textcls.data import sources
from textcls.data.encoded import encode_split
from textcls.data.tokenizer import make_tokenizer
from textcls.display import printable

PERCENTILES = (50, 90, 95, 99, 100)
UNCUT = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class SplitSurvey:
    """One split; lengths are in tokens, [CLS] and [SEP] included, before anything is cut."""

    name: str
    rows: int
    rows_per_class: dict[str, int]
    length_percentiles: dict[int, int]
    truncated_share: float
    """Share of the rows that are longer than the configured maximum."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """A whole data set."""

    origin: str
    max_length: int
    splits: list[SplitSurvey]
    examples: list[tuple[str, str]]
    """(class name, text) of the first training rows."""

    def to_dict(self) -> dict[str, Any]:
        """The survey as plain values for JSON."""
        return asdict(self)

    def table(self) -> str:
        """The survey for a terminal."""
        lines = [f"data  {self.origin}"]
        for split in self.splits:
            lines += ["", f"{split.name}: {split.rows:,} rows"]
            width = max(map(len, split.rows_per_class))
            lines += [f"  {name:<{width}}  {count:8,}" for name, count in split.rows_per_class.items()]
            shown = "  ".join(f"{percent} %: {length}" for percent, length in split.length_percentiles.items())
            lines += [f"  tokens a row  {shown}"]
            lines += [f"  cut at {self.max_length} tokens: {100 * split.truncated_share:.2f} % of the rows"]
        lines += ["", "examples"]
        lines += [f"  {printable(name)}: {printable(text)}" for name, text in self.examples]
        return "\n".join(lines)


def survey(config: Config) -> Survey:
    """Look at the data set of a configuration; it is fetched into the cache if need be."""
    stored = sources.load(config.dataset, config.data)
    train = stored.splits["train"]
    tokenizer = make_tokenizer(config.tokenizer, (item.text for item in train))
    splits = []
    for name in stored.splits:
        rows = encode_split(stored, name, tokenizer, UNCUT)
        lengths = rows.lengths
        ordered = lengths.sort().values
        assert rows.labels is not None
        counts = torch.bincount(rows.labels, minlength=len(stored.class_names)).tolist()
        splits.append(
            SplitSurvey(
                name=name,
                rows=len(rows),
                rows_per_class=dict(zip(stored.class_names, counts, strict=True)),
                length_percentiles={p: int(ordered[math.ceil(p / 100 * len(rows)) - 1]) for p in PERCENTILES},
                truncated_share=float((lengths > config.batch.max_length).double().mean()),
            )
        )
    examples = [(train.class_name(item.label), item.text) for item in train[:3]]
    return Survey(origin=stored.origin, max_length=config.batch.max_length, splits=splits, examples=examples)
