"""The ranks of a run on one host, over NCCL or gloo."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.distributed import (
    FileStore,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from nanofw.runtime.parallel.messages import RankLost
from nanofw.runtime.parallel.transport import LOOPBACK

_SIOCGIFADDR = 0x8915
_TIMEOUT = timedelta(days=1)  # the engine's process watches over the ranks, and knows more

T = TypeVar("T")


class GroupCommunicator:
    """The `Communicator` contract over the process group of this process."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._gather = getattr(distributed, "all_gather_single", None) or (
            distributed.all_gather_into_tensor
        )

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in place when the tensor is contiguous."""
        if not tensor.numel():
            return tensor
        tensor = tensor.contiguous()
        _guarded(lambda: distributed.all_reduce(tensor))
        return tensor

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Concatenate the ranks' tensors along `dim`, in rank order."""
        parts = tensor.new_empty((self.size * tensor.shape[0], *tensor.shape[1:]))
        _guarded(lambda: self._gather(parts, tensor.contiguous()))
        if dim % tensor.dim() == 0:
            return parts
        return torch.cat(parts.split(tensor.shape[0]), dim=dim)


def open_store(size: int, device: torch.device, host: str = LOOPBACK) -> tuple[object, str]:
    """Where rank 0 waits for the others: a store, and its address for them.

    Ranks of one host that compute on its CPU meet in a file, in a folder that only their user can
    open and that `leave_store` removes: nothing listens. Others meet at a port, which is bound
    before anybody hears of it, so that no other run can take it.
    """
    if host == LOOPBACK and device.type == "cpu":
        path = os.path.join(tempfile.mkdtemp(prefix="nanofw-ranks-"), "store")
        return FileStore(path, size), path
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    store = TCPStore(
        host, port, size,
        is_master=True, wait_for_workers=False, timeout=_TIMEOUT,
        master_listen_fd=listener.detach(), use_libuv=True,
    )  # fmt: skip
    return store, str(port)


def join_store(address: str, size: int, host: str = LOOPBACK) -> object:
    """The store of rank 0, as another rank sees it."""
    if os.path.isabs(address):
        return FileStore(address, size)
    port = int(address)
    return TCPStore(host, port, size, is_master=False, wait_for_workers=False, timeout=_TIMEOUT)


def leave_store(address: str) -> None:
    """Remove what rank 0 made for the meeting, after it: `join` has returned."""
    if os.path.isabs(address):
        shutil.rmtree(os.path.dirname(address), ignore_errors=True)


def join(
    rank: int, size: int, device: torch.device, store: Any, host: str = LOOPBACK
) -> GroupCommunicator:
    """Meet the other ranks; returns when all are there.

    Args:
        host: this rank's address for the others.
    """
    _use_interface_of(host)
    is_cuda = device.type == "cuda"
    distributed.init_process_group(
        "nccl" if is_cuda else "gloo", store=store, rank=rank, world_size=size, timeout=_TIMEOUT,
        device_id=device if is_cuda else None,
    )  # fmt: skip
    communicator = GroupCommunicator(rank, size)
    communicator.all_reduce(torch.zeros(1, device=device))
    return communicator


def _use_interface_of(host: str) -> None:
    """Gloo otherwise asks for the host's name, which not every container can resolve."""
    names = [name for _, name in socket.if_nameindex()]
    if host == LOOPBACK:
        names = [name for name in names if name.startswith("lo")]
    else:
        names = [name for name in names if _address_of(name) == host]
    if names:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])


def _address_of(interface: str) -> str:
    """Its IPv4 address, or nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, name)
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def _guarded(collective: Callable[[], T]) -> T:
    try:
        return collective()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RankLost(f"a collective failed, another rank is gone: {reason}") from error
