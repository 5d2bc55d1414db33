"""Whether the calling thread runs a piece of work only to see which kernels it launches.

Such work runs on tensors of the device `meta`, which have shapes and strides and no content;
what it launches is compiled and not run (`nanofw.kernels.aot.compile_ahead`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_thread = threading.local()


def current() -> Any:
    """What the calling thread rehearses for; None: it does not."""
    return getattr(_thread, "reason", None)


@contextmanager
def rehearsing(reason: object) -> Iterator[None]:
    """Inside, `current` is `reason`, in this thread alone."""
    before, _thread.reason = current(), reason
    try:
        yield
    finally:
        _thread.reason = before
