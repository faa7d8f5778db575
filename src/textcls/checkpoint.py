"""The state of a training on disk, to go on from: the newest two, each whole, and verified when read.

    checkpoints/step-0000000420.pt   torch.save's bytes, then their SHA-256

A state is named after the step it was taken after, and holds everything: nothing else has to fit to it.
"""

import hashlib
import io
import logging
import shutil
from pathlib import Path
from typing import IO, Any, cast

import torch

from textcls.errors import ArtifactError, StorageError
from textcls.files import replaced, sweep

log = logging.getLogger(__name__)

KEPT = 2
_DIGEST_BYTES = hashlib.sha256().digest_size


def save(state: dict[str, Any], folder: Path, step: int) -> None:
    """Write the state after a step, and delete all but the newest.

    Raises:
        StorageError: the disk is full, read-only or failing; the states before are still there.
    """
    with replaced(folder / f"step-{step:010}.pt") as temporary, temporary.open("wb") as file:
        digest = _Digesting(file)
        torch.save(state, digest)  # type: ignore[arg-type]  # all it needs is a write()
        digest.finish()
    for old in found(folder)[KEPT:]:
        old.unlink()


def found(folder: Path) -> list[Path]:
    """The states in a folder, newest first, whether whole or not."""
    return sorted(folder.glob("step-*.pt"), reverse=True)


def load(folder: Path) -> dict[str, Any]:
    """The newest state that is whole; damaged ones after it are deleted, so that none passes for newer later.

    Raises:
        ArtifactError: there is none.
    """
    sweep(folder)
    damaged: list[Path] = []
    for path in found(folder):
        try:
            state = read(path)
        except ArtifactError as error:
            log.warning("%s Going back to the one before.", error)
            damaged.append(path)
            continue
        for other in damaged:
            other.unlink()
        return state
    if damaged:
        raise ArtifactError(f"{folder}: every checkpoint there was damaged; train anew with --overwrite.")
    raise ArtifactError(f"{folder}: there is no checkpoint to resume from; train without --resume.")


def read(path: Path) -> dict[str, Any]:
    """The state in a file.

    Raises:
        ArtifactError: it is damaged: its bytes aren't those that were written.
    """
    content = memoryview(path.read_bytes())
    payload, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if hashlib.sha256(payload).digest() != digest:
        raise ArtifactError(f"{path}: this checkpoint is damaged (its digest does not fit).")
    try:
        return cast(dict[str, Any], torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True))
    except Exception as error:  # torch.load raises many kinds for what is no state, or would run code
        raise ArtifactError(f"{path}: this checkpoint is damaged ({type(error).__name__}).") from error


def require_space(folder: Path, n_bytes: int) -> None:
    """Refuse to begin what the disk has no room for; `n_bytes` counts what is in the folder already, too.

    Raises:
        StorageError: there is too little; the message says how much.
    """
    present = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(folder).free + present
    if free < n_bytes:
        raise StorageError(
            f"{folder}: the run needs about {n_bytes / 2**20:,.0f} MiB there, and {free / 2**20:,.0f} MiB are free; "
            "make room, or give another folder with --out."
        )


class _Digesting:
    """Writes to a file, with a digest of it all at the end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._fault: OSError | None = None

    def write(self, data: bytes) -> int:
        # torch.save puts an error of its own, which says nothing of the disk, over one that is raised here.
        if self._fault is None:
            try:
                self._file.write(data)
            except OSError as error:
                self._fault = error
        self._sha256.update(data)
        return len(data)

    def flush(self) -> None:
        """What torch.save calls at its end; `finish` writes more."""

    def finish(self) -> None:
        """Append the digest; raises what a write before has met."""
        if self._fault is not None:
            raise self._fault
        self._file.write(self._sha256.digest())
