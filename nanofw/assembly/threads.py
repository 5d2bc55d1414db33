"""How threads of PyTorch's CPU kernels wait for each other."""

from __future__ import annotations

import os
import sys

SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def let_idle_threads_sleep() -> None:
    """Make OpenMP threads that wait for work sleep instead of spinning.

    A thread that spins holds its core; when anything else wants that core, each of the many
    small parallel regions of a step lasts a time slice, and a run can be fifty times slower.
    The OpenMP library reads this when PyTorch loads it, so it is set before; a variable that
    the user has set stays as it is.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in SPIN_VARIABLES):
        os.environ["GOMP_SPINCOUNT"] = "0"
