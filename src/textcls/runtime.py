"""The machine a run is on: device, dtype, seed, signals, memory."""

import ctypes
import os
import signal
import sys
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Literal, Self

import torch
from torch import Tensor

from textcls.errors import DeviceError

Dtype = Literal["f32", "f16", "bf16"]
_TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def available_devices() -> list[str]:
    """The devices that torch can use here, best first."""
    found = ["cuda"] if torch.cuda.is_available() else []
    found += ["mps"] if torch.backends.mps.is_available() else []
    return [*found, "cpu"]


def resolve_device(name: str) -> torch.device:
    """The device of a name; "auto" takes the best there is.

    Raises:
        DeviceError: the device isn't available here; the message lists those that are.
    """
    available = available_devices()
    if name == "auto":
        return torch.device(available[0])
    if name.split(":")[0] not in available:
        raise DeviceError(f"--device {name}: not available here; use one of: auto, {', '.join(available)}.")
    return torch.device(name)


def seed_everything(seed: int) -> None:
    """Seed torch on every device; data order has generators of its own, derived from the same seed."""
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Where torch's random streams are: the CPU's, and that of the device."""
    state = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device).get_rng_state()
    return state


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Take up the streams where `random_state` saw them; a device it was not on keeps its own."""
    torch.set_rng_state(state["cpu"])
    if device.type in state and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(state[device.type])


class StopRequest:
    """While entered, the first SIGINT or SIGTERM is only noted; one more acts as if this weren't there.

    Only the main thread of a process can take signals; in any other this does nothing.
    """

    received: int | None = None
    """The number of the signal that came."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        self.received = number
        self.__exit__()
        with suppress(OSError):  # of a stderr that is gone
            os.write(2, b"\ntextcls: stopping after this step; once more stops at once\n")  # print isn't safe here


def autocast(device: torch.device, dtype: str) -> AbstractContextManager[object]:
    """Mixed precision for the forward pass; weights stay in f32 (Micikevicius et al. 2018, arXiv:1710.03740)."""
    if dtype == "f32":
        return nullcontext()
    return torch.autocast(device.type, _TORCH_DTYPES[dtype])


def peak_memory_mib() -> float:
    """The process's largest resident size so far, in MiB; 0 where the system doesn't tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def release_free_memory() -> None:
    """Give the heap's free pages back to the system, where the C library is glibc; elsewhere do nothing.

    glibc keeps what training leaves free, in pieces too small for the batches of an evaluation. Called before one, it
    saves what the two would take beside each other, in less time than can be measured.
    """
    if sys.platform == "linux":
        with suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def device_metrics(device: torch.device) -> dict[str, float]:
    """On CUDA the peak memory that tensors took (MiB) and the card's load (%); nothing elsewhere."""
    if device.type != "cuda":
        return {}
    metrics = {"cuda_memory_mib": torch.cuda.max_memory_allocated(device) / 2**20}
    with suppress(ModuleNotFoundError, RuntimeError):  # nvidia-ml-py isn't installed, or the driver doesn't tell
        metrics["cuda_load_percent"] = float(torch.cuda.utilization(device))
    return metrics
