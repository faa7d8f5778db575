import hashlib
import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import file_size_limit

from textcls import checkpoint
from textcls.errors import ArtifactError, StorageError

STATE: dict[str, Any] = {"tensor": torch.arange(1_000.0), "nested": {"step": 3, "name": "x", "parts": [1.5, None]}}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_read_is_what_was_saved(tmp_path: Path) -> None:
    checkpoint.save(STATE, tmp_path, 3)
    state = checkpoint.load(tmp_path)
    assert torch.equal(state.pop("tensor"), STATE["tensor"])
    assert state == {"nested": STATE["nested"]}


def test_the_digest_is_of_all_bytes_before_it(tmp_path: Path) -> None:
    checkpoint.save(STATE, tmp_path, 3)
    content = (tmp_path / "step-0000000003.pt").read_bytes()
    assert content[-32:] == hashlib.sha256(content[:-32]).digest()
    plain = io.BytesIO()
    torch.save(STATE, plain)
    assert len(content) == len(plain.getvalue()) + 32


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (0, 5, 90, 100, 99_999_999, 100_000_000):
        checkpoint.save({"step": step}, tmp_path, step)
        assert checkpoint.load(tmp_path) == {"step": step}
    assert names(tmp_path) == ["step-0099999999.pt", "step-0100000000.pt"]


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with the states of steps 1 and 2."""
    for step in (1, 2):
        checkpoint.save({"step": step, **STATE}, tmp_path, step)
    return tmp_path


@pytest.mark.parametrize("damage", ["cut", "empty", "changed", "swapped"])
def test_a_damaged_newest_one_falls_back_to_the_one_before_and_says_so(
    two: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    newest = two / "step-0000000002.pt"
    content = bytearray(newest.read_bytes())
    if damage == "changed":
        content[len(content) // 2] ^= 1
    elif damage == "swapped":
        content[100:200], content[200:300] = content[200:300], content[100:200]
    else:
        content = content[: 0 if damage == "empty" else 500]
    newest.write_bytes(content)
    assert checkpoint.load(two)["step"] == 1
    assert f"{newest}: this checkpoint is damaged (its digest does not fit). Going back to the one" in caplog.text
    assert names(two) == ["step-0000000001.pt"]  # so that the next two aren't pruned in favour of it


def test_where_all_are_damaged_nothing_is_deleted(two: Path) -> None:
    for path in two.iterdir():
        path.write_bytes(b"x" * 100)
    with pytest.raises(ArtifactError, match=r"every checkpoint there was damaged; train anew with --overwrite\.$"):
        checkpoint.load(two)
    assert len(names(two)) == 2


def test_no_checkpoint_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="there is no checkpoint to resume from; train without --resume"):
        checkpoint.load(tmp_path / "none")


def test_a_pickle_that_runs_code_is_refused_whatever_its_digest(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    checkpoint.save({"model": Evil()}, tmp_path, 1)
    with pytest.raises(ArtifactError, match=r"step-0000000001\.pt: this checkpoint is damaged \(UnpicklingError\)"):
        checkpoint.read(tmp_path / "step-0000000001.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("room", [0, 100, 3_000, 5_000])
def test_a_full_disk_keeps_the_states_there_are(two: Path, room: int) -> None:
    with file_size_limit(room), pytest.raises(StorageError) as caught:
        checkpoint.save({**STATE, "more": torch.zeros(2_000)}, two, 3)
    assert str(caught.value).startswith(f"{two}/step-0000000003.pt: can't be written (File too large); what was")
    assert names(two) == ["step-0000000001.pt", "step-0000000002.pt"]
    assert checkpoint.load(two)["step"] == 2


def test_what_a_killed_process_left_half_written_is_swept(two: Path) -> None:
    (two / ".step-0000000003.pt.abc.tmp").write_bytes(b"half")
    assert checkpoint.load(two)["step"] == 2
    assert names(two) == ["step-0000000001.pt", "step-0000000002.pt"]


def test_too_little_space_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(bytes(1_000_000))
    free = shutil.disk_usage(tmp_path).free
    checkpoint.require_space(tmp_path, free // 2)
    with pytest.raises(StorageError, match=r"the run needs about [\d,]+ MiB there, and [\d,]+ MiB are free"):
        checkpoint.require_space(tmp_path, 2 * free + 2**30)
