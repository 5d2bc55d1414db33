"""What the engines of a run do: of one engine, or of all its replicas together."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

import numpy as np

from nanofw.compare.client_service import ClientService
from nanofw.compare.host_time import AddedHostTime, HostTime
from nanofw.contracts.arrays import FloatArray
from nanofw.engine.engine import Engine
from nanofw.measure.token_times import TokenTimes


class RunWatch(Protocol):
    """What is seen of a run while it goes on."""

    @property
    def num_steps(self) -> int: ...

    @property
    def host_seconds(self) -> float: ...

    @property
    def fewest_available(self) -> float: ...

    def gaps(self, start: float, end: float) -> tuple[FloatArray, FloatArray]: ...

    def num_tokens(self, start: float, end: float) -> float: ...


class EngineWatch:
    """The observers of a run.

    Args:
        engines: all of them; time is that of the clock that they share or are kept in step with.
        service: takes what each client is served.
        host_time: let the engines' virtual clocks take the scheduler's own time, too.
    """

    def __init__(
        self, engines: Sequence[Engine], service: ClientService, *, host_time: bool
    ) -> None:
        self._engines, self._service = engines, service
        self._times = [TokenTimes() for _ in engines]
        self._hosts = [AddedHostTime(each) if host_time else HostTime(each) for each in engines]

    @contextmanager
    def watching(self) -> Generator[None]:
        """Watch the steps within the block.

        Raises:
            ObserverError: at the end, when an observer has failed and saw only a part.
        """
        with ExitStack() as stack:
            for engine, times, host in zip(self._engines, self._times, self._hosts, strict=True):
                service = self._service
                own = service if len(self._engines) == 1 else service.of_replica()
                stack.enter_context(engine.observed_by(times, own, host))
            yield

    @property
    def num_steps(self) -> int:
        """Steps that were collected."""
        return sum(times.num_steps for times in self._times)

    @property
    def host_seconds(self) -> float:
        """Real seconds in which schedulers accepted, planned and committed."""
        return sum(host.seconds for host in self._hosts)

    @property
    def fewest_available(self) -> float:
        """The smallest share of an engine's KV pool that was available after a plan."""
        return min(host.fewest_available for host in self._hosts)

    def gaps(self, start: float, end: float) -> tuple[FloatArray, FloatArray]:
        """As `TokenTimes.gaps`."""
        found = [times.gaps(start, end) for times in self._times]
        if len(found) == 1:
            return found[0]
        return (
            np.concatenate([values for values, _ in found]),
            np.concatenate([weights for _, weights in found]),
        )

    def num_tokens(self, start: float, end: float) -> int:
        """Tokens that came in [start, end]."""
        return sum(times.num_tokens(start, end) for times in self._times)
