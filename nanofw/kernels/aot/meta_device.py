"""Whether the calling thread is on a dry run, where `meta` stands for a CUDA device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

WarmUp = Callable[[object, object, tuple[object, ...], dict[str, object]], None]
"""Takes a kernel, a grid, arguments and options; compiles what their launch would run."""

_thread = threading.local()


def current_warm_up() -> WarmUp | None:
    """What the calling thread does instead of a launch; None: it is not on a dry run."""
    return getattr(_thread, "warm_up", None)


@contextmanager
def dry_run(warm_up: WarmUp) -> Iterator[None]:
    """Inside, in this thread alone, kernels are not launched: `warm_up` gets the launches."""
    before, _thread.warm_up = current_warm_up(), warm_up
    try:
        yield
    finally:
        _thread.warm_up = before


def stands_for_cuda(device: torch.device) -> bool:
    """Whether the device is `meta`, and the calling thread is on a dry run."""
    return device.type == "meta" and current_warm_up() is not None


def cuda_device(device: torch.device) -> torch.device | None:
    """The GPU that kernels on `device` are for: the current one for `meta`; None: no GPU."""
    if device.type == "meta" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device if device.type == "cuda" else None
