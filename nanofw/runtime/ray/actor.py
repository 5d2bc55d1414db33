"""A rank as an actor: the worker of executor `torch`, with a mailbox in place of its socket."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import traceback
from typing import Any

import ray

from nanofw.runtime.workers.main import Rank, report


class Mailbox:
    """The worker's end of the actor calls; looks like its `Channel`.

    Calls of one driver may be carried out in another order than they were made in, so messages
    bear numbers and are handed on in their order.
    """

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._early: dict[int, bytes] = {}
        self._next = 0

    def send(self, content: bytes) -> None:
        """A message for the driver."""
        self._outbox.put(content)

    def receive(self) -> bytes:
        """Wait for the driver's next message."""
        return self._inbox.get()

    def close(self) -> None:
        """No more messages for the driver."""
        self._outbox.put(None)

    def deliver(self, number: int, content: bytes) -> None:
        """A message of the driver."""
        self._early[number] = content
        while self._next in self._early:
            self._inbox.put(self._early.pop(self._next))
            self._next += 1

    def take(self) -> list[bytes] | None:
        """Wait for messages for the driver; None after the last one."""
        first = self._outbox.get()
        if first is None:
            return None
        taken = [first]
        while not self._outbox.empty():
            content = self._outbox.get()
            if content is None:
                self.close()
                break
            taken.append(content)
        return taken


class RankActor:
    """One rank. The driver calls `replies` all the time, one call after the other.

    Args:
        path: `sys.path` of the driver; what is not there is added.
    """

    def __init__(self, path: list[str]) -> None:
        sys.path += [entry for entry in path if entry not in sys.path]
        os.environ.setdefault("GOMP_SPINCOUNT", "0")  # idle threads sleep
        self._mailbox = Mailbox()

    @ray.method(concurrency_group="watch")
    def whereabouts(self) -> tuple[int, str, str, list[str]]:
        """Process, node, the node's address, and the GPUs that Ray gave to this rank."""
        context = ray.get_runtime_context()
        gpus = [str(index) for index in ray.get_gpu_ids()]
        return os.getpid(), context.get_node_id(), ray.util.get_node_ip_address(), gpus

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
    """After a failure: the driver reads what was said of it, and ends the actor."""
    while True:
        time.sleep(3600)
