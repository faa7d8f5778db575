"""Files that are whole or absent: written under a temporary name in the same folder, flushed, then renamed."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from textcls.errors import StorageError

_FAULTS = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "EIO")
    if hasattr(errno, name)  # Windows has no EDQUOT
}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make a disk's fault a sentence that names `path`; every other error passes as it is.

    Raises:
        StorageError: the disk is full, read-only or failing.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FAULTS:
            raise
        raise StorageError(
            f"{path}: can't be written ({error.strerror}); what was complete before is kept: make room or give another "
            "folder, and run the command again (a training that had begun: with --resume)."
        ) from error


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success flush it to disk and rename it to `path`, else delete it.

    A reader sees the old file or the new one, never a part (POSIX rename(2); os.replace on Windows).

    Raises:
        StorageError: the disk is full, read-only or failing.
    """
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        except (FileNotFoundError, FileExistsError, NotADirectoryError) as error:  # such as below /proc, or a file
            raise StorageError(f"{path}: can't be written ({error.strerror}); give another place.") from error
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner can read
            os.replace(temporary, path)
            _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` in UTF-8, whole or not at all."""
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sweep(folder: Path) -> None:
    """Delete the temporaries that killed processes left in a folder; nobody else may be writing there."""
    for temporary in folder.glob(".*.tmp"):
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename in a folder last through a power cut; Windows has no such call, and needs none."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
