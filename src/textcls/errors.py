"""Errors that are the user's to mend: one sentence that says what is wrong, where, and what to do.

The command line prints the sentence and exits with code 1. Every other exception is a bug and keeps its traceback.
"""


class UserError(Exception):
    """A mistake in what the user gave: its message is one sentence for the terminal."""


class ConfigError(UserError):
    """A configuration key, type or value that can't be used; the message names the key."""


class DataError(UserError):
    """A data set that can't be had or read; the message names the data set or the file."""


class ArtifactError(UserError):
    """A run folder or weights file that can't be used; the message names the file."""


class DeviceError(UserError):
    """A device that isn't there; the message lists those that are."""


class StorageError(UserError):
    """A file that can't be written: a full, read-only or failing disk; the message names the file."""


class TrainingError(UserError):
    """A training that can't go on (a loss that isn't finite); the message names the step."""


class Interrupted(KeyboardInterrupt):
    """A training that a signal asked to stop, and that has saved its state; not a mistake, so no `UserError`."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number  # as shells have it: 130 for SIGINT, 143 for SIGTERM
