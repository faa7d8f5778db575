"""Where rows come from: a table of the data sets on the Hub, and the sample that is part of the package."""

import csv
import hashlib
import importlib.resources
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from textcls.data.dataset import TextClassificationItem
from textcls.data.store import Content, StoredData, cache_folder, open_or_build
from textcls.errors import DataError

log = logging.getLogger(__name__)

HUB_TIMEOUT_S = 10


class Source(Protocol):
    """A data set that can be had by name."""

    examples: tuple[str, ...]
    """Texts to classify when the user gives none."""

    def cache_name(self) -> str:
        """The cache file's name, without its ending: one a data set and revision."""
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
        return re.sub(r"[^\w.@-]+", "--", f"{self.repo}@{self.revision}")

    def read(self) -> Content:
        log.info("fetching %s from the Hugging Face Hub", self.repo)
        revision, table = self._download()
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

    def _download(self) -> tuple[str, Mapping[str, Any]]:
        """The revision's commit, and every split as `datasets` gives it."""
        from datasets import disable_progress_bars, load_dataset
        from datasets.exceptions import DatasetsError
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of whichever client the Hub's library uses

        disable_progress_bars()  # of the conversion; a download still shows its own on a terminal
        try:
            # Asked first, since it fails at once where load_dataset would try again for up to a minute.
            commit = HfApi().dataset_info(self.repo, revision=self.revision, timeout=HUB_TIMEOUT_S).sha
            return str(commit), load_dataset(self.repo, revision=commit)
        except (OSError, HTTPError, DatasetsError) as error:
            endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
            raise DataError(
                f"{self.repo}: could not be fetched from {endpoint} ({type(error).__name__}); nothing was kept: check "
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


NEWS_CLASSES = ("World", "Sports", "Business", "Technology")

SOURCES: dict[str, Source] = {
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


def find(name: str) -> Source:
    """The source of a data set's name.

    Raises:
        DataError: there is none of that name; the message lists those there are.
    """
    if name not in SOURCES:
        raise DataError(f"{name}: there is no such data set; use one of {', '.join(SOURCES)}.")
    return SOURCES[name]


def load(name: str) -> StoredData:
    """A data set by name, from the cache, which is filled first where need be.

    Raises:
        DataError: it can't be had; the message says what to do.
    """
    source = find(name)
    return open_or_build(cache_folder() / "data" / f"{source.cache_name()}.sqlite", source.read)
