"""All-reduce of small tensors in one kernel: each rank reads what the others hold and adds.

A ring, which moves least, takes several rounds of messages. A decode step sums a few KB after
every attention and every feed-forward part, where rounds cost all the time; there it pays that
each rank reads everything at once over the links between the GPUs. PyTorch's symmetric memory
has the kernel; it is used without multicast.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import distributed

from nanofw.errors import ConfigError
from nanofw.runtime.communicator import GroupCommunicator

LIMIT_BYTES = 512 * 1024
"""Larger tensors go the usual way."""

_ALIGNMENT = 16
_TESTED_ELEMENTS = (8, 4096, 32 * 4096)


class OneShotCommunicator(GroupCommunicator):
    """The communicator of a run on NVIDIA GPUs that reach each other's memory.

    Args:
        dtype: of the tensors that are summed in one kernel; others go the usual way.

    Raises:
        ConfigError: it does not work between these devices.
    """

    def __init__(self, rank: int, size: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(rank, size)
        self._dtype = dtype
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        world: Any = distributed.group.WORLD
        self._group_name: str = world.group_name
        try:
            from torch.distributed import _symmetric_memory as symmetric_memory

            self._buffer = symmetric_memory.empty(
                LIMIT_BYTES // dtype.itemsize, dtype=dtype, device=device
            )
            symmetric_memory.rendezvous(self._buffer, world)
            self._sum = torch.ops.symm_mem.one_shot_all_reduce_copy
        except (ImportError, AttributeError, RuntimeError) as error:
            raise _impossible(str(error)) from error
        self._try(device)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over ranks; the result is a tensor of its own when it was made in one kernel."""
        if tensor.dtype != self._dtype or not 0 < tensor.nbytes <= LIMIT_BYTES:
            return super().all_reduce(tensor)
        if tensor.nbytes % _ALIGNMENT or tensor.data_ptr() % _ALIGNMENT:
            return super().all_reduce(tensor)
        tensor = tensor.contiguous()
        place = self._buffer[: tensor.numel()].view(tensor.shape)
        return self._sum(place, tensor, "sum", self._group_name)

    def _try(self, device: torch.device) -> None:
        """Hold a few sums to those of the usual way."""
        generator = torch.Generator(device).manual_seed(1 + self.rank)
        for count in _TESTED_ELEMENTS:
            mine = torch.randn(count, generator=generator, device=device).to(self._dtype)
            usual = super().all_reduce(mine.clone())
            ours = self.all_reduce(mine)
            if not torch.allclose(ours.float(), usual.float(), rtol=2e-2, atol=2e-2):
                raise _impossible(f"a sum of {count} numbers came out wrong")


def _impossible(reason: str) -> ConfigError:
    return ConfigError(
        f"one_shot does not work between these devices ({reason}); choose collective",
        key="executor.all_reduce",
    )
