import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import conftest
import pytest

from textcls.config import DataConfig
from textcls.data import sources
from textcls.errors import ConfigError, DataError

AG_NEWS = ("World", "Sports", "Business", "Technology")


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(DataError, match=r"agnews: there is no such data set; did you mean ag-news\? Or use one of"):
        sources.load("agnews")
    with pytest.raises(DataError, match="zzz: there is no such data set; use one of ag-news, db-pedia, sample, a file"):
        sources.load("zzz")


def test_a_path_that_is_not_there_names_the_nearest(in_tmp: Path) -> None:
    Path("tickets.csv").write_text("text,label\n")
    with pytest.raises(DataError, match=r"ticket\.csv: there is no such file or folder; did you mean tickets\.csv\?"):
        sources.load("ticket.csv")
    with pytest.raises(DataError, match=r"no/where\.csv: there is no such file or folder; check the path"):
        sources.load("no/where.csv")


@pytest.mark.parametrize("name", ["hf:", "hf:owner", "hf:a/b/c", "hf:../x/y"])
def test_a_name_that_cannot_be_the_hub_s_is_a_sentence(name: str) -> None:
    with pytest.raises(DataError, match="is no data set of the Hub; give hf:owner/name"):
        sources.load(name)


@pytest.mark.parametrize("key", sources.READING_KEYS)
def test_how_own_data_is_read_cannot_be_set_for_a_named_data_set(key: str) -> None:
    default = getattr(DataConfig(), key)
    other: Any = {bool: True, int: 1, str: "x", tuple: ("x",)}[type(default)]
    with pytest.raises(
        ConfigError, match=rf"^data\.{key}: is for own data; the columns and splits of sample are fixed"
    ):
        sources.load("sample", replace(DataConfig(), **{key: other}))


def test_a_run_is_called_after_its_data(in_tmp: Path) -> None:
    Path("a/b.tickets").mkdir(parents=True)
    Path("a/tickets.csv").touch()
    names = {
        "ag-news": "ag-news",
        "a/tickets.csv": "tickets",
        "a/b.tickets/": "b.tickets",
        ".": in_tmp.name,
        "hf:owner/name": "name",
        "hf:owner/name:part": "name--part",
    }
    assert {name: sources.run_name(name) for name in names} == names


class TestOwnData:
    @pytest.fixture
    def path(self, own_cache: Path, tmp_path: Path) -> Path:
        path = tmp_path / "tickets.csv"
        path.write_text("text,label,kind\n" + "".join(f"text {i},{'ab'[i % 2]},{'xy'[i % 2]}\n" for i in range(100)))
        return path

    def test_the_cache_is_keyed_by_content_and_reading(self, path: Path, own_cache: Path) -> None:
        first = sources.load(str(path))
        copy = path.rename(path.with_name("copy.csv"))
        again = sources.load(str(copy))
        assert again.digest == first.digest
        kinds = sources.load(str(copy), DataConfig(label_column="kind"))
        assert kinds.class_names == ("x", "y")
        copy.write_text(copy.read_text().replace("text 7,", "text seven,"))
        edited = sources.load(str(copy))
        assert "text seven" in {item.text for split in edited.splits.values() for item in split}
        assert len(list((own_cache / "data").glob("*.sqlite"))) == 4

    def test_what_was_read_is_read_once(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = sources.load(str(path))
        monkeypatch.setattr("textcls.data.sources.read_table", None)
        assert sources.load(str(path)).digest == first.digest

    def test_its_size_is_measured(self, path: Path) -> None:
        assert sources.measure("sample", DataConfig()) is None
        size = sources.measure(str(path), DataConfig())
        assert size is not None
        assert (size.rows, size.tokens) == (80, 4)
        path.write_text("text,label\n" + "".join(f"{'日本' * 50} {i},{'ab'[i % 2]}\n" for i in range(100)))
        size = sources.measure(str(path), DataConfig())
        assert size is not None
        assert 100 <= size.tokens <= 105

    def test_examples_are_rows_of_test(self, path: Path) -> None:
        stored = sources.load(str(path))
        assert sources.examples(str(path), DataConfig()) == tuple(item.text for item in stored.splits["test"][:3])
        assert sources.examples("sample", DataConfig())[0].startswith("The striker")


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

    def test_a_data_set_of_the_hub_is_read_as_own_data_is(self, own_cache: Path) -> None:
        stored = sources.load("hf:fancyzhx/ag_news")
        named = sources.load("ag-news")
        assert stored.class_names == ("Business", "Sci/Tech", "Sports", "World")
        for split in ("train", "test"):
            own, published = stored.splits[split], named.splits[split]
            assert len(own) == len(published)
            assert [item.text for item in own[:500]] == [item.text for item in published[:500]]
            names = [own.class_name(item.label).replace("Sci/Tech", "Technology") for item in own[:500]]
            assert names == [published.class_name(item.label) for item in published[:500]]
        assert stored.notes[0].endswith("text from column text, label from column label")
        joined = sources.load("hf:fancyzhx/dbpedia_14")
        assert joined.notes[0].endswith("text from column title + column content, label from column label")

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
