"""Where rows come from: a table of the data sets on the Hub, the sample that is part of the package, and own data."""

import csv
import difflib
import hashlib
import importlib.resources
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from textcls.config import DataConfig, Size
from textcls.data.dataset import TextClassificationItem
from textcls.data.formats import SPLITS, files_of, read_table, split_paths
from textcls.data.labelled import labelled
from textcls.data.store import Content, StoredData, cache_folder, open_or_build
from textcls.data.table import Row, Table
from textcls.errors import ConfigError, DataError

log = logging.getLogger(__name__)

HUB_TIMEOUT_S = 10
HUB_PREFIX = "hf:"
READING = "1"
"""Changes when the same file would be read otherwise than before, so that no older cache file is taken for it."""


class Source(Protocol):
    """A data set that can be had by name."""

    def cache_name(self) -> str:
        """The cache file's name, without its ending: one a data set and revision, or content and way of reading."""
        ...

    def read(self) -> Content:
        """Fetch or read every row.

        Raises:
            DataError: it can't be had; the message says what to do.
        """
        ...


@dataclass(kw_only=True)
class HubSource:
    """A data set on the Hugging Face Hub with the splits train and test, read through `datasets`."""

    repo: str
    text: str
    """Format of a row's text; its fields are columns."""
    class_names: tuple[str, ...]
    examples: tuple[str, ...]
    label: str = "label"
    revision: str = "main"

    def cache_name(self) -> str:
        return _slug(f"{self.repo}@{self.revision}")

    def read(self) -> Content:
        log.info("fetching %s from the Hugging Face Hub", self.repo)
        revision, table = _download(self.repo, self.revision)
        published = table["train"].features[self.label].names
        if len(published) != len(self.class_names):
            raise DataError(f"{self.repo}: has {len(published)} classes, not the expected {len(self.class_names)}.")
        return Content(
            origin=f"{self.repo}@{revision}",
            class_names=self.class_names,
            splits={split: self._items(table[split]) for split in ("train", "test")},
        )

    def _items(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[TextClassificationItem]:
        for row in rows:
            yield TextClassificationItem(self.text.format_map(row), int(row[self.label]))


def _download(repo: str, revision: str, subset: str | None = None) -> tuple[str, Mapping[str, Any]]:
    """The revision's commit, and every split as `datasets` gives it: columns by memory map, rows one by one."""
    from datasets import disable_progress_bars, load_dataset
    from datasets.exceptions import DatasetsError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of whichever client the Hub's library uses

    disable_progress_bars()  # of the conversion; a download still shows its own on a terminal
    try:
        # Asked first, since it fails at once where load_dataset would try again for up to a minute.
        commit = HfApi().dataset_info(repo, revision=revision, timeout=HUB_TIMEOUT_S).sha
        return str(commit), load_dataset(repo, subset, revision=commit)
    except (OSError, HTTPError, DatasetsError) as error:
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
        raise DataError(
            f"{repo}: could not be fetched from {endpoint} ({type(error).__name__}); nothing was kept: check "
            "the connection or set HF_ENDPOINT to a mirror and try again, or use the built-in data: "
            "textcls train sample."
        ) from error


@dataclass(kw_only=True)
class SampleSource:
    """The corpus in this package: 1,600 news texts, written for it, in the four classes of AG News."""

    class_names: tuple[str, ...]
    examples: tuple[str, ...]

    def cache_name(self) -> str:
        digest = hashlib.sha256("".join(self._csv(split) for split in ("train", "test")).encode()).hexdigest()
        return f"sample@{digest[:12]}"

    def read(self) -> Content:
        return Content(
            origin="the sample that comes with textcls",
            class_names=self.class_names,
            splits={split: self._items(split) for split in ("train", "test")},
        )

    def _items(self, split: str) -> Iterator[TextClassificationItem]:
        for row in csv.DictReader(self._csv(split).splitlines()):
            yield TextClassificationItem(row["text"], self.class_names.index(row["label"]))

    def _csv(self, split: str) -> str:
        return (importlib.resources.files("textcls.data") / "sample" / f"{split}.csv").read_text(encoding="utf-8")


@dataclass(kw_only=True)
class FileSource:
    """A file or folder of the user's own."""

    path: Path
    config: DataConfig
    whole: bool = False
    """Take a single file's rows for the test split, all of them."""

    def cache_name(self) -> str:
        digest = hashlib.sha256(f"{_reading_key(self.config)} {self.whole}".encode())
        for split, path in split_paths(self.path).items():
            for file in files_of(path):
                digest.update(f"{split} {file.relative_to(self.path)} {_file_digest(file)} ".encode())
        return f"{_slug(self.path.resolve().stem)}@{digest.hexdigest()[:32]}"

    def read(self) -> Content:
        log.info("reading %s", self.path)
        tables = {split: read_table(path, self.config) for split, path in split_paths(self.path).items()}
        if self.whole and tables.keys() == {"train"}:
            tables = {"test": tables["train"]}
        return labelled(str(self.path), tables, self.config)


@dataclass(kw_only=True)
class HubTables:
    """A data set on the Hub that has no entry below: `hf:owner/name` or `hf:owner/name:config`, read as own data is."""

    repo: str
    subset: str | None
    config: DataConfig

    def cache_name(self) -> str:
        key = hashlib.sha256(_reading_key(self.config).encode()).hexdigest()[:12]
        return _slug(f"hf--{self.repo}--{self.subset or 'default'}@{key}")

    def read(self) -> Content:
        log.info("fetching %s from the Hugging Face Hub", self.repo)
        commit, splits = _download(self.repo, "main", self.subset)
        tables = {
            split: _hub_table(f"{HUB_PREFIX}{self.repo} {name}", splits[name])
            for split, names in SPLITS.items()
            for name in [next((name for name in names if name in splits), None)]
            if name is not None
        }
        if "train" not in tables:
            raise DataError(f"{HUB_PREFIX}{self.repo}: has no train split, but {', '.join(splits)}; give another.")
        return labelled(f"{self.repo}@{commit}", tables, self.config)


def _hub_table(name: str, rows: Any) -> Table:
    """A split of `datasets` as a table; the numbers of classes that have names are read as these."""
    columns = tuple(rows.features)
    names = [getattr(feature, "names", None) for feature in rows.features.values()]

    def read() -> Iterator[Row]:
        for number, row in enumerate(rows, 1):
            cells = [row[column] for column in columns]
            for i, classes in enumerate(names):
                if classes is not None and cells[i] is not None:
                    cells[i] = classes[cells[i]] if cells[i] >= 0 else None  # -1 stands for no label
            yield f"row {number}", cells

    return Table(name=name, columns=columns, rows=read, note="the Hugging Face Hub")


def _reading_key(config: DataConfig) -> str:
    """What, beside the content, decides which rows are stored."""
    return json.dumps([READING, {key: asdict(config)[key] for key in READING_KEYS}])


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _slug(name: str) -> str:
    return re.sub(r"[^\w.@-]+", "--", name)


NEWS_CLASSES = ("World", "Sports", "Business", "Technology")

READING_KEYS = (*("text_columns", "label_column", "encoding", "separator", "quote", "drop_duplicates", "split_seed"),)
"""The keys of the data section that say how own data is read."""

SOURCES: dict[str, HubSource | SampleSource] = {
    "ag-news": HubSource(
        repo="fancyzhx/ag_news",
        text="{text}",
        class_names=NEWS_CLASSES,  # the Hub's own names but for the last, "Sci/Tech"
        examples=(
            "Jays power up to take finale",
            "Yemen Sentences 15 Militants on Terror Charges",
            "IBM puts grids to work at U.S. Open",
        ),
    ),
    "db-pedia": HubSource(
        repo="fancyzhx/dbpedia_14",
        text="Title: {title} - Content: {content}",
        class_names=(
            *("Company", "EducationalInstitution", "Artist", "Athlete", "OfficeHolder", "MeanOfTransportation"),
            *("Building", "NaturalPlace", "Village", "Animal", "Plant", "Album", "Film", "WrittenWork"),
        ),
        examples=(
            "Title: Marta Lindqvist - Content: Marta Lindqvist (born 3 May 1986) is a Swedish long-distance runner who"
            " won the silver medal in the 10000 metres at the 2012 European Championships.",
            "Title: Harrow Bay Instruments - Content: Harrow Bay Instruments Ltd. is a manufacturer of marine sensors"
            " headquartered in Halifax Nova Scotia. It was founded in 1974 and employs 300 people.",
            "Title: The Salt Orchard - Content: The Salt Orchard is a 1998 novel by the Irish writer Niamh Brennan. It"
            " tells the story of three sisters who return to the island where they grew up.",
        ),
    ),
    "sample": SampleSource(
        class_names=NEWS_CLASSES,
        examples=(
            "The striker scored twice in the second half as the visitors won the cup final after extra time.",
            "Shares in the airline fell 6 percent after it warned that fuel costs would cut its annual profit.",
            "Engineers released a software update that closes a security hole in millions of home routers.",
        ),
    ),
}


def find(name: str, config: DataConfig | None = None, *, whole: bool = False) -> Source:
    """The source of a data set's name: one of the table's, a path, or hf:owner/name.

    Args:
        name: of the data set.
        config: how own data is read.
        whole: take a single file's rows for the test split, all of them, rather than carve it: for evaluation.

    Raises:
        DataError: there is none of that name; the message names the nearest.
        ConfigError: a key is set that says how own data is read, and this isn't own data.
    """
    config = config or DataConfig()
    if name in SOURCES:
        for key in READING_KEYS:
            if getattr(config, key) != getattr(DataConfig(), key):
                raise ConfigError(f"data.{key}: is for own data; the columns and splits of {name} are fixed.")
        return SOURCES[name]
    if name.startswith(HUB_PREFIX):
        repo, _, subset = name.removeprefix(HUB_PREFIX).partition(":")
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
            raise DataError(f"{name}: is no data set of the Hub; give hf:owner/name, or hf:owner/name:config.")
        return HubTables(repo=repo, subset=subset or None, config=config)
    if Path(name).exists():
        return FileSource(path=Path(name), config=config, whole=whole)
    raise DataError(_no_such(name))


def _no_such(name: str) -> str:
    """What to say of a name that is neither a data set nor a path: the nearest of those there are."""
    path = Path(name)
    beside = [str(path.with_name(entry.name)) for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    is_path = path.suffix != "" or len(path.parts) > 1
    close = difflib.get_close_matches(name, beside if is_path else [*SOURCES, *beside], n=1)
    if is_path:
        return f"{name}: there is no such file or folder; {f'did you mean {close[0]}?' if close else 'check the path.'}"
    advice = f"did you mean {close[0]}? Or use" if close else "use"
    return (
        f"{name}: there is no such data set; {advice} one of {', '.join(SOURCES)}, a file or folder of your own, or "
        "hf:owner/name."
    )


def is_own(name: str) -> bool:
    """Whether a data set's rows are read as own data is, by its columns, rather than named in the table."""
    return name not in SOURCES


def run_name(name: str) -> str:
    """What the run of a data set is called: its own name, or that of its file, folder or repository."""
    if name in SOURCES:
        return name
    if name.startswith(HUB_PREFIX):
        return _slug(name.removeprefix(HUB_PREFIX).partition("/")[2])
    path = Path(name).resolve()
    return path.stem if path.is_file() else path.name


def load(name: str, config: DataConfig | None = None, *, whole: bool = False) -> StoredData:
    """A data set by name, from the cache, which is filled first where need be; the arguments are those of `find`.

    Raises:
        DataError: it can't be had; the message says what to do.
    """
    stored = _stored(find(name, config, whole=whole))
    for note in stored.notes:
        log.info("%s", note)
    return stored


def measure(name: str, config: DataConfig) -> Size | None:
    """The size of own data, for its recipe; None for a data set of the table, which has a recipe of its own.

    Raises:
        DataError: it can't be had; the message says what to do.
    """
    if name in SOURCES:
        return None
    train = _stored(find(name, config)).splits["train"]
    sizes = np.fromiter(train.sizes(), dtype=np.int64)
    # A token has 3 bytes or more: a word's piece of a European language 4 to 5, a Chinese character just 3.
    return Size(rows=len(train), tokens=2 + int(np.percentile(sizes, 99)) // 3)


def examples(name: str, config: DataConfig) -> tuple[str, ...]:
    """Three texts to classify when the user gives none; of own data the first of the test split."""
    source = find(name, config)
    if isinstance(source, HubSource | SampleSource):
        return source.examples
    return tuple(item.text for item in _stored(source).splits["test"][:3])


def _stored(source: Source) -> StoredData:
    return open_or_build(cache_folder() / "data" / f"{source.cache_name()}.sqlite", source.read)
