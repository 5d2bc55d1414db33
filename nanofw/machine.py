"""What this machine gives the process."""

from __future__ import annotations

import os
import platform


def num_usable_cores() -> int:
    """Cores that this process may use, where the system says it; else those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
