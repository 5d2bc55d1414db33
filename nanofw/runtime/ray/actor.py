"""A rank as an actor: the worker of executor `torch`, with a mailbox in place of its socket."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from typing import Any, NamedTuple

import ray

from nanofw.runtime.parallel.main import Rank, report
from nanofw.runtime.ray.mailbox import Mailbox


class RankLocation(NamedTuple):
    """Where Ray put a rank.

    Attributes:
        address: of the node, for other nodes.
        gpus: that Ray gave to this rank.
    """

    pid: int
    node_id: str
    address: str
    gpus: list[str]


class RankActor:
    """One rank. The driver calls `replies` all the time, one call after the other.

    Args:
        path: `sys.path` of the driver; what is not there is added.
    """

    def __init__(self, path: list[str]) -> None:
        sys.path += [entry for entry in path if entry not in sys.path]
        os.environ.setdefault("GOMP_SPINCOUNT", "0")  # idle threads sleep
        self._mailbox: Mailbox[bytes, bytes] = Mailbox()

    @ray.method(concurrency_group="watch")
    def location(self) -> RankLocation:
        """Where this rank is."""
        context = ray.get_runtime_context()
        gpus = [str(index) for index in ray.get_gpu_ids()]
        address = ray.util.get_node_ip_address()
        return RankLocation(os.getpid(), context.get_node_id(), address, gpus)

    @ray.method(concurrency_group="watch")
    def begin(self, visible_gpus: list[str]) -> None:
        """Start the worker.

        Args:
            visible_gpus: of all ranks on this node: GPUs reach only the memory of others that
                their process can see.
        """
        if visible_gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible_gpus)
        threading.Thread(target=self._serve, name="nanofw-rank", daemon=True).start()

    @ray.method(concurrency_group="inbox")
    def deliver(self, number: int, content: bytes) -> None:
        """A message, as its bytes."""
        self._mailbox.deliver(number, content)

    @ray.method(concurrency_group="outbox")
    def replies(self) -> list[bytes] | None:
        """Wait for the rank's messages; None after its last one."""
        return self._mailbox.take()

    @ray.method(concurrency_group="watch")
    def stack(self) -> str:
        """Where the threads of the worker are."""
        frames = sys._current_frames()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        return "\n".join(
            f"thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame))
            for ident, frame in frames.items()
            if names.get(ident, "").startswith("nanofw-")
        )

    def _serve(self) -> None:
        try:
            Rank(self._mailbox, _stay).serve()
        except BaseException as error:
            report(self._mailbox, error)
            _stay()
        self._mailbox.close()


_remote: Any = ray.remote
RemoteRank: Any = _remote(
    concurrency_groups={"inbox": 1, "outbox": 1, "watch": 1}, max_restarts=0
)(RankActor)  # fmt: skip
"""`RankActor` as Ray has it."""


def _stay() -> None:
    """After a failure: the driver reads the report, and ends the actor."""
    while True:
        time.sleep(3600)
