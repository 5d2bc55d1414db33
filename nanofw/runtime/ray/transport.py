"""Messages to ranks that are actors, by actor calls; Ray says when one is gone."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from nanofw.errors import ExecutorError
from nanofw.runtime.parallel.transport import LOOPBACK, News, Place
from nanofw.runtime.ray import cluster
from nanofw.runtime.ray.actor import RankLocation, RemoteRank
from nanofw.runtime.ray.options import RayOptions
from nanofw.runtime.ray.placement_group import (
    InheritedPlacementGroup,
    ReservedPlacementGroup,
    bundle_of,
)

_STACK_WAIT_S = 1.0
_END_WAIT_S = 5.0


class RayTransport:
    """One actor per rank, placed by Ray.

    Args:
        size: ranks.
        device: `cpu` or `cuda`; which GPUs, Ray decides.

    Raises:
        ConfigError: no cluster, or it does not have the resources.
        ExecutorError: a rank did not start.
    """

    def __init__(self, size: int, options: RayOptions, device: str, path: list[str]) -> None:
        bundle = bundle_of(options.cpus_per_rank, device)
        self.size = size
        self._group: ReservedPlacementGroup | InheritedPlacementGroup | None = None
        self._actors: list[Any] = []
        self._numbers = [0] * size
        self._polls: dict[Any, int] = {}
        self._ends: dict[int, str] = {}
        self._is_open = True
        cluster.join(options.address)
        try:
            self._group = InheritedPlacementGroup.of_this_process(bundle) or ReservedPlacementGroup(
                "ranks", size, bundle, options.placement, options.placement_timeout_s
            )
            for rank in range(size):
                bundle_options = self._group.bundle_options(rank)
                self._actors.append(RemoteRank.options(**bundle_options).remote(path))
            self._begin(device, options.start_timeout_s)
        except BaseException:
            self.end_ranks()
            raise

    def _begin(self, kind: str, timeout_s: float) -> None:
        """Learn where the ranks are, and let them start."""
        try:
            found = ray.get([actor.location.remote() for actor in self._actors], timeout=timeout_s)
            self.pids: list[int] = [location.pid for location in found]
            self._addresses = [location.address for location in found]
            where, visible = places(kind, found)
            self.places: list[Place] = where
            pairs = zip(self._actors, visible, strict=True)
            ray.get([actor.begin.remote(gpus) for actor, gpus in pairs], timeout=timeout_s)
        except GetTimeoutError:
            message = (
                f"Ray did not start the ranks within {timeout_s:g} s (executor.start_timeout_s)"
            )
            raise ExecutorError(message) from None
        except RayError as error:
            raise ExecutorError(f"Ray could not start the ranks: {error}") from error
        for rank in range(self.size):
            self._ask(rank)

    def send(self, rank: int, content: bytes) -> None:
        number = self._numbers[rank]
        self._numbers[rank] += 1
        self._actors[rank].deliver.remote(number, content)

    def poll(self, timeout_s: float) -> News:
        waiting = list(self._polls)
        if not waiting:
            return {}
        ready, _ = ray.wait(waiting, num_returns=1, timeout=max(0.0, timeout_s))
        if ready and len(waiting) > 1:
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        news: dict[int, list[bytes] | None] = {}
        for poll in ready:
            rank = self._polls.pop(poll)
            try:
                contents = ray.get(poll)
            except RayError as error:
                self._ends[rank] = cluster.cause(error)
                news[rank] = None
                continue
            if contents is not None:
                news[rank] = contents
                self._ask(rank)
        return news

    def end_text(self, rank: int) -> str:
        where = f"rank {rank} (process {self.pids[rank]} on {self._addresses[rank]})"
        return f"{where} is gone: {self._ends.get(rank, 'Ray does not say why')}"

    def stack(self, rank: int) -> str:
        with contextlib.suppress(RayError):
            return ray.get(self._actors[rank].stack.remote(), timeout=_STACK_WAIT_S)
        return ""

    def wait_for_exit(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._polls and time.monotonic() < deadline:
            self.poll(deadline - time.monotonic())

    def end_ranks(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
            self._wait_for_ends()
            if self._group is not None:
                self._group.release()
        self._actors = []
        cluster.leave()

    def _wait_for_ends(self) -> None:
        """A killed actor's pending calls fail when Ray knows that it is dead."""
        deadline = time.monotonic() + _END_WAIT_S
        for poll in self._polls:
            with contextlib.suppress(RayError):
                ray.get(poll, timeout=max(0.0, deadline - time.monotonic()))
        self._polls = {}

    def _ask(self, rank: int) -> None:
        self._polls[self._actors[rank].replies.remote()] = rank


def places(kind: str, found: list[RankLocation]) -> tuple[list[Place], list[list[str]]]:
    """Each rank's place, and the GPUs that it must see: those of all ranks on its node.

    Args:
        kind: of device.
        found: where Ray put each rank.
    """
    by_node: dict[str, list[str]] = {}
    for location in found:
        by_node.setdefault(location.node_id, []).extend(location.gpus)
    result: list[Place] = []
    for location in found:
        gpus = by_node[location.node_id]
        device = f"{kind}:{gpus.index(location.gpus[0])}" if kind == "cuda" else kind
        host = LOOPBACK if len(by_node) == 1 else location.address
        result.append(Place(device=device, host=host, shares_cores=False))
    return result, [by_node[location.node_id] for location in found]
