import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from textcls.data.dataset import TextClassificationItem
from textcls.data.store import Content, StoredData, cache_folder, open_or_build

ITEMS = [TextClassificationItem(text, label) for text, label in [("one", 0), ("zwei", 1), ("", 1), ("🙂\nno\0t", 0)]]


def content(items: list[TextClassificationItem] = ITEMS) -> Content:
    return Content(origin="here", class_names=("no", "yes"), splits={"train": iter(items), "test": iter(items[:1])})


def never() -> Content:
    raise AssertionError("the cache should have been enough")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "data.sqlite"


def leftovers(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir() if p.suffix not in (".sqlite", ".lock"))


def test_rows_come_back_as_they_went_in(path: Path) -> None:
    open_or_build(path, content)
    stored = open_or_build(path, never)
    train = stored.splits["train"]
    assert list(train) == ITEMS
    assert [train[i] for i in range(len(train))] == ITEMS
    assert (train[-1], train[1:3], train[::2]) == (ITEMS[-1], ITEMS[1:3], ITEMS[::2])
    assert train.rows(1, 100) == ITEMS[1:]
    assert train.labels() == [0, 1, 1, 0]
    assert (len(train), train.num_classes, train.class_name(1)) == (4, 2, "yes")
    assert (stored.origin, stored.class_names, len(stored.splits["test"])) == ("here", ("no", "yes"), 1)
    with pytest.raises(IndexError):
        train[4]


def test_notes_are_asked_for_when_every_row_was_read_and_are_kept(path: Path) -> None:
    seen: list[str] = []

    def items() -> Iterator[TextClassificationItem]:
        for item in ITEMS:
            seen.append(item.text)
            yield item

    def produce() -> Content:
        return Content(
            origin="", class_names=("a", "b"), splits={"train": items()}, notes=lambda: [f"{len(seen)} rows"]
        )

    assert open_or_build(path, produce).notes == open_or_build(path, never).notes == ("4 rows",)
    assert list(open_or_build(path, never).splits["train"].sizes()) == [3, 4, 0, 9]


def test_the_digest_names_the_content(tmp_path: Path) -> None:
    first = open_or_build(tmp_path / "a.sqlite", content)
    same = open_or_build(tmp_path / "b.sqlite", content)
    other = open_or_build(tmp_path / "c.sqlite", lambda: content([*ITEMS[:3], TextClassificationItem("x", 0)]))
    assert first.digest == same.digest != other.digest


def test_a_build_that_fails_leaves_nothing(path: Path) -> None:
    def breaks() -> Iterator[TextClassificationItem]:
        yield ITEMS[0]
        raise OSError("the line went dead")

    with pytest.raises(OSError, match="the line went dead"):
        open_or_build(path, lambda: Content(origin="", class_names=("a",), splits={"train": breaks()}))
    assert not path.exists()
    assert leftovers(path) == []
    assert list(open_or_build(path, content).splits["train"]) == ITEMS


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE rows SET text = 'edited' WHERE row = 1",
        "UPDATE rows SET label = 1 - label",
        "DELETE FROM rows WHERE split = 'train' AND row = 3",
        "UPDATE about SET value = '0' WHERE key = 'format'",
        "DELETE FROM about WHERE key = 'digest'",
        "DROP TABLE rows",
    ],
)
def test_an_edited_file_is_built_again(path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "textcls")
    open_or_build(path, content)
    assert not caplog.messages
    with sqlite3.connect(path) as connection:
        connection.execute(damage)
    connection.close()
    assert list(open_or_build(path, content).splits["train"]) == ITEMS
    assert caplog.messages == [f"{path}: is damaged, or of another version; building it again"]


@pytest.mark.parametrize("size", [0, 100, 5_000])
def test_a_cut_file_is_built_again(path: Path, size: int) -> None:
    open_or_build(path, content)
    os.truncate(path, size)
    assert list(open_or_build(path, content).splits["train"]) == ITEMS


BUILDER = """
import sys, time
from pathlib import Path
from textcls.data.dataset import TextClassificationItem
from textcls.data.store import Content, open_or_build

def rows():
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    for i in range(300):
        time.sleep(float(sys.argv[3]))
        yield TextClassificationItem(f"text {i}", i % 2)

stored = open_or_build(Path(sys.argv[1]), lambda: Content(origin="", class_names=("a", "b"), splits={"train": rows()}))
print(len(stored.splits["train"]), stored.digest)
"""


def start(path: Path, log: Path, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILDER, str(path), str(log), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_start_at_once_build_it_once(path: Path, tmp_path: Path) -> None:
    running = [start(path, tmp_path / "log", 0.002) for _ in range(4)]
    outputs = {process.communicate(timeout=60)[0] for process in running}
    assert len(outputs) == 1
    assert outputs.pop().startswith("300 ")
    assert (tmp_path / "log").read_text() == "built\n"


def test_a_killed_build_passes_for_nothing_and_blocks_nobody(path: Path, tmp_path: Path) -> None:
    process = start(path, tmp_path / "log", 1)
    while not (tmp_path / "log").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not path.exists()
    again = start(path, tmp_path / "log", 0)
    assert again.communicate(timeout=60)[0].startswith("300 ")


def test_the_cache_folder_is_the_user_s_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TEXTCLS_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("TEXTCLS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert cache_folder() == tmp_path / "xdg" / "textcls"


def test_stored_data_is_readable_from_two_threads(path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    stored: StoredData = open_or_build(path, content)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda i: stored.splits["train"][i % 4], range(200))) == ITEMS * 50
