"""What this machine gives the process."""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
from pathlib import Path
from typing import Any


def num_usable_cores() -> int:
    """Cores that this process may use, where the system says it; else those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def num_free_cores() -> int:
    """Usable cores without those that others keep busy or a quota takes away; at least one.

    By the load of the last minute, which Unix has.
    """
    free = num_usable_cores()
    quota = _quota_of_control_group()
    if quota is not None:
        free = min(free, int(quota))
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        load = 0.0
    return max(1, min(free, (os.cpu_count() or 1) - round(load)))


def _quota_of_control_group() -> float | None:
    """Cores' worth of time that Linux gives this process's container; None: as much as there is."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "amx_bf16": "AMX BF16",
    "amx_int8": "AMX INT8",
    "asimd": "NEON",
    "bf16": "BF16",
    "i8mm": "I8MM",
    "sve": "SVE",
}
"""Instructions for matrix products, by the name that Linux has for them."""


def matrix_instructions() -> list[str]:
    """Those of `INSTRUCTIONS` that this processor has; empty where the system does not say."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = (line for line in file if line.lower().startswith(("flags", "features")))
            flags = next(lines, "").partition(":")[2].split()
    except OSError:
        return []
    return [name for flag, name in INSTRUCTIONS.items() if flag in flags]


def processor_name() -> str:
    """As Linux names it, else as Python does; may be empty."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def num_numpy_threads() -> int | None:
    """Threads of NumPy's matrix products; None where NumPy's library does not say."""
    count = _numpy_library_call("get_num_threads")
    return None if count is None else int(count())


def set_numpy_threads(count: int) -> None:
    """Set the threads of NumPy's matrix products, where its library can be told."""
    setter = _numpy_library_call("set_num_threads")
    if setter is not None:
        setter(count)


def _numpy_library_call(name: str) -> Any:
    """A function of OpenBLAS, under the prefixes with which NumPy is built, or None."""
    try:
        module = importlib.import_module("numpy._core._multiarray_umath")
        library = ctypes.CDLL(module.__file__)
    except (ImportError, OSError, AttributeError):
        return None
    for prefix, suffix in (("scipy_openblas", "64_"), ("scipy_openblas", ""), ("openblas", "")):
        function = getattr(library, f"{prefix}_{name}{suffix}", None)
        if function is not None:
            return function
    return None
