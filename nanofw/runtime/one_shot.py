"""All-reduce of small tensors in one kernel, through memory that the other ranks can reach.

A ring, which moves least, takes several rounds of messages. A decode step sums a few KB after
every attention and every feed-forward part, where rounds cost all the time; there it pays that
everything crosses the links between the GPUs at once. Sums that go into the residual stream, all
but the embedding's, are one kernel of ours with the norm that follows; other small ones are
PyTorch's. Both use PyTorch's symmetric memory, without multicast.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import distributed

from nanofw.errors import ConfigError
from nanofw.kernels.all_reduce import Inboxes, all_reduce_add_rms_norm, inbox_elements
from nanofw.kernels.norm import add_rms_norm
from nanofw.runtime.communicator import GroupCommunicator

LIMIT_BYTES = 512 * 1024
"""Larger tensors go the usual way, unless they go into the residual stream."""

NORM_LIMIT_BYTES = 8 << 20
"""The same for those that do, counting what a rank sends: twice the tensor to each other rank."""

_ALIGNMENT = 16
_TESTED_ELEMENTS = (8, 4096, 32 * 4096)
_TESTED_NORMS = 3


class OneShotCommunicator(GroupCommunicator):
    """The communicator of a run on NVIDIA GPUs that reach each other's memory.

    Args:
        dtype: of the tensors that are summed in one kernel; others go the usual way.
        stream: width of the residual stream, and the most rows that are summed into it at once;
            None: sums are never joined with the norm.

    Attributes:
        inboxes: of the kernel that sums and normalises; None: it is not used.

    Raises:
        ConfigError: it does not work between these devices; every rank raises.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        device: torch.device,
        dtype: torch.dtype,
        stream: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(rank, size)
        self._dtype = dtype
        self.inboxes: Inboxes | None = None
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
        problem = ""
        try:
            self._set_up(device, stream)
        except (ImportError, AttributeError, RuntimeError) as error:
            problem = str(error) or type(error).__name__
        self._agree(problem, device)
        self._agree(self._try_sums(device) or self._try_norms(device), device)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over ranks; the result is a tensor of its own when it was made in one kernel."""
        if tensor.dtype != self._dtype or not 0 < tensor.nbytes <= LIMIT_BYTES:
            return super().all_reduce(tensor)
        if tensor.nbytes % _ALIGNMENT or tensor.data_ptr() % _ALIGNMENT:
            return super().all_reduce(tensor)
        tensor = tensor.contiguous()
        place = self._buffer[: tensor.numel()].view(tensor.shape)
        return self._sum(place, tensor, "sum", self._group_name)

    def all_reduce_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `NormCommunicator`; in one kernel where the rows fit."""
        return all_reduce_add_rms_norm(self, self.inboxes, x, residual, weight, eps)

    def _set_up(self, device: torch.device, stream: tuple[int, int] | None) -> None:
        world: Any = distributed.group.WORLD
        self._group_name: str = world.group_name
        self._buffer, _ = _shared(LIMIT_BYTES // self._dtype.itemsize, self._dtype, device)
        self._sum = torch.ops.symm_mem.one_shot_all_reduce_copy
        if stream is not None and self._dtype.itemsize == 2 and stream[0] % 2 == 0:
            self.inboxes = self._make_inboxes(device, *stream)

    def _make_inboxes(self, device: torch.device, width: int, num_rows: int) -> Inboxes | None:
        num_rows = min(num_rows, NORM_LIMIT_BYTES // (4 * width * (self.size - 1)))
        if num_rows < 1:
            return None
        count = inbox_elements(self.size, num_rows, width)
        self._inbox, handle = _shared(count, torch.int64, device)
        self._inbox.zero_()
        torch.cuda.synchronize(device)  # before anybody can send: they wait in `_agree`
        bases = [
            handle.get_buffer(rank, (count,), torch.int64).data_ptr() for rank in range(self.size)
        ]
        offset = self._inbox.data_ptr() - bases[self.rank]  # where memory is handed out in parts
        addresses = [base + offset for base in bases]
        return Inboxes(
            self.rank, self.size, num_rows, width, self._dtype,
            torch.tensor(addresses, dtype=torch.int64, device=device),
            torch.zeros(num_rows, dtype=torch.int32, device=device),
        )  # fmt: skip

    def _try_sums(self, device: torch.device) -> str:
        """Hold a few sums to those of the usual way; what is wrong, if anything."""
        generator = torch.Generator(device).manual_seed(1 + self.rank)
        problem = ""
        for count in _TESTED_ELEMENTS:
            mine = torch.randn(count, generator=generator, device=device).to(self._dtype)
            usual = super().all_reduce(mine.clone())
            ours = self.all_reduce(mine)
            if not torch.allclose(ours.float(), usual.float(), rtol=2e-2, atol=2e-2):
                problem = f"a sum of {count} numbers came out wrong"
        return problem

    def _try_norms(self, device: torch.device) -> str:
        """The same for sums with the norm."""
        if self.inboxes is None:
            return ""
        generator = torch.Generator(device).manual_seed(1 + self.rank)
        width, problem = self.inboxes.width, ""
        weight = torch.ones(width, dtype=self._dtype, device=device)
        for number in range(_TESTED_NORMS):
            rows = min(1 + number * 7, self.inboxes.num_rows)
            mine = torch.randn(rows, width, generator=generator, device=device).to(self._dtype)
            total = super().all_reduce(mine.clone())
            usual, _ = add_rms_norm(total, torch.zeros_like(total), weight, 1e-6)
            ours, _ = self.all_reduce_add_rms_norm(mine, torch.zeros_like(mine), weight, 1e-6)
            if not torch.allclose(ours.float(), usual.float(), rtol=2e-2, atol=2e-2):
                problem = f"a normalised sum of {rows} rows came out wrong"
        return problem

    def _agree(self, problem: str, device: torch.device) -> None:
        """Raise on every rank when one of them has a problem."""
        count = super().all_reduce(torch.tensor([int(bool(problem))], device=device))
        if int(count.item()):
            raise _impossible(problem or "another rank found that it does not")


def _shared(count: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, Any]:
    """Memory that the other ranks reach, and its handle; all ranks call this together."""
    from torch.distributed import _symmetric_memory as symmetric_memory

    world: Any = distributed.group.WORLD
    tensor = symmetric_memory.empty(count, dtype=dtype, device=device)
    return tensor, symmetric_memory.rendezvous(tensor, world)


def _impossible(reason: str) -> ConfigError:
    return ConfigError(
        f"one_shot does not work between these devices ({reason}); choose collective",
        key="executor.all_reduce",
    )
