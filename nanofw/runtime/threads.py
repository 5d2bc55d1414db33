"""How many threads an operation on a CPU takes. The one place that sets it."""

from __future__ import annotations

import logging
import os

import torch

from nanofw.machine import num_free_cores, set_numpy_threads

logger: logging.Logger = logging.getLogger(__name__)

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Those with which a user says how many threads there are."""


def settle_threads(wanted: int | None) -> int:
    """Set the threads of PyTorch's operations to what is wanted, or to what fits this machine.

    Threads of one operation wait for each other: with one more than there are free cores, each
    operation takes as long as the slowest, and a run can be several times slower. So there are
    no more than free cores, unless the user says how many.

    NumPy's own threads would wait by spinning beside those of PyTorch: they are switched off.
    """
    if wanted is None and not any(os.environ.get(name) for name in VARIABLES):
        free = num_free_cores()
        if free < torch.get_num_threads():
            logger.info(
                "%d threads for an operation, as many as cores are free; "
                "executor.num_threads says another number", free,
            )  # fmt: skip
            wanted = free
    if wanted is not None:
        torch.set_num_threads(wanted)
    set_numpy_threads(1)
    return torch.get_num_threads()
