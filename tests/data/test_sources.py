import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import conftest
import pytest

from textcls.data import sources
from textcls.errors import DataError

AG_NEWS = ("World", "Sports", "Business", "Technology")


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(DataError, match="agnews: there is no such data set; use one of ag-news, db-pedia, sample"):
        sources.load("agnews")


class TestSample:
    def test_it_is_large_and_balanced(self) -> None:
        stored = sources.load("sample")
        assert stored.class_names == AG_NEWS
        assert Counter(stored.splits["train"].labels()) == dict.fromkeys(range(4), 320)
        assert Counter(stored.splits["test"].labels()) == dict.fromkeys(range(4), 80)

    def test_the_splits_share_no_sentence(self) -> None:
        stored = sources.load("sample")
        train, test = (
            {s for item in stored.splits[split] for s in sentences(item.text)} for split in ("train", "test")
        )
        assert len(test) > 320
        assert train & test == set()

    def test_no_text_comes_twice(self) -> None:
        stored = sources.load("sample")
        texts = [item.text for split in stored.splits.values() for item in split]
        assert len({fold(text) for text in texts}) == len(texts) == 1_600

    @pytest.mark.parametrize("part", ["first word", "last word", "length"])
    def test_no_surface_gives_the_class_away(self, part: str) -> None:
        """Guessing the class from the first word, the last or the length stays near chance, 0.25."""

        def take(words: list[str]) -> str:
            return {"first word": words[0], "last word": words[-1], "length": str(len(words) // 3)}[part]

        stored = sources.load("sample")
        by_part: dict[str, Counter[int]] = {}
        for item in stored.splits["train"]:
            by_part.setdefault(take(item.text.split()), Counter())[item.label] += 1
        empty: Counter[int] = Counter({0: 1})
        hits = [
            by_part.get(take(item.text.split()), empty).most_common(1)[0][0] == item.label
            for item in stored.splits["test"]
        ]
        assert sum(hits) / len(hits) < 0.40


def fold(text: str) -> str:
    return re.sub(r"\W+", " ", text.lower()).strip()


def sentences(text: str) -> list[str]:
    """Sentences up to case and punctuation; those of up to three words, such as an initial, are no sentences."""
    parts = map(fold, re.split(r"(?<=[.!?])\s+|  +", text))
    return [part for part in parts if len(part.split()) > 3]


@pytest.mark.hub
class TestHub:
    def test_ag_news(self) -> None:
        stored = sources.load("ag-news")
        assert stored.class_names == AG_NEWS
        assert (len(stored.splits["train"]), len(stored.splits["test"])) == (73_217, 7_600)
        assert Counter(stored.splits["test"].labels()) == dict.fromkeys(range(4), 1_900)
        assert re.fullmatch(r"fancyzhx/ag_news@[0-9a-f]{40}", stored.origin)

    def test_db_pedia(self) -> None:
        stored = sources.load("db-pedia")
        assert stored.splits["train"].num_classes == 14
        assert (stored.class_names[0], stored.class_names[-1]) == ("Company", "WrittenWork")
        assert (len(stored.splits["train"]), len(stored.splits["test"])) == (30_000, 11_273)
        first = stored.splits["train"][0]
        assert first.text.startswith("Title: Brazoswood High School - Content:  Brazoswood High School is a secondary")
        assert stored.splits["train"].class_name(first.label) == "EducationalInstitution"

    def test_once_fetched_the_network_is_not_needed(self) -> None:
        sources.load("ag-news")
        environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "/nonexistent"}
        code = "from textcls.data.sources import load; print(len(load('ag-news').splits['test']))"
        assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True) == "7600\n"

    @pytest.mark.slow
    @pytest.mark.parametrize("fault", ["drop", "truncate", "error", "down"])
    def test_a_fault_is_a_sentence_within_a_minute(self, fault: str, tmp_path: Path) -> None:
        result, seconds = fetch_through(fault, tmp_path)
        assert result.returncode == 1, result.stderr
        assert seconds < 60
        sentence = result.stderr.splitlines()[-1]
        assert sentence.startswith("textcls: fancyzhx/ag_news: could not be fetched from http://127.0.0.1:")
        assert "HF_ENDPOINT" in sentence
        assert "textcls train sample" in sentence
        assert "Traceback" not in result.stderr
        assert [p.suffix for p in (tmp_path / "cache" / "data").iterdir()] == [".lock"]

    @pytest.mark.slow
    def test_a_slow_hub_still_serves(self, tmp_path: Path) -> None:
        result, _ = fetch_through("slow", tmp_path)
        assert result.returncode == 0, result.stderr


def fetch_through(fault: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run `textcls data ag-news` with nothing cached, through a faulty Hub."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment["TEXTCLS_CACHE"] = str(folder / "cache")
    command = [
        sys.executable,
        str(conftest.HUB),
        "--fault",
        fault,
        "--",
        sys.executable,
        "-m",
        "textcls",
        "data",
        "ag-news",
    ]
    started = time.monotonic()
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
    return result, time.monotonic() - started


@pytest.mark.hub
def test_class_names_are_the_published_ones_in_order() -> None:
    from datasets import load_dataset_builder

    names = load_dataset_builder("fancyzhx/dbpedia_14").info.features["label"].names
    assert sources.find("db-pedia").read().class_names == tuple(names)
    published = load_dataset_builder("fancyzhx/ag_news").info.features["label"].names
    assert [*published[:3], "Technology"] == [*AG_NEWS]
    assert published[3] == "Sci/Tech"


def test_an_unreachable_hub_is_a_sentence(own_cache: Path) -> None:
    code = "from textcls.data.sources import load; load('ag-news')"
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(own_cache)}
    started = time.monotonic()
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert time.monotonic() - started < 60
    assert "textcls.errors.DataError: fancyzhx/ag_news: could not be fetched from http://127.0.0.1:9" in result.stderr
