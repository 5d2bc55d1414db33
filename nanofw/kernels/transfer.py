"""Small host arrays on their way to a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """The array as a tensor on `device`, without waiting for it.

    On the CPU the tensor shares the array's memory. For an accelerator the array is copied to
    pinned memory, which PyTorch keeps until the transfer is done.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
