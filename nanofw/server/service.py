"""The state of a server: its engine, from loading to the end, and what all endpoints share."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from enum import StrEnum
from typing import TypeVar

from nanofw.config.load import LoadedConfig
from nanofw.config.schema import ServerLimits, ServerSection
from nanofw.contracts.reply_format import ReasoningFormat, ToolFormat
from nanofw.errors import ExecutorError, RequestShed
from nanofw.llm.async_llm import AsyncLLM
from nanofw.llm.async_streams import Sink
from nanofw.llm.prompts import Prompt
from nanofw.llm.results import RequestResult, StreamEvent
from nanofw.server.door import Door
from nanofw.server.errors import ApiError
from nanofw.server.metrics import ServerMetrics
from nanofw.server.overview import Overview
from nanofw.server.parameters import Defaults
from nanofw.server.reading import known_model, model_names
from nanofw.server.traces import Traces
from nanofw.text.reply_formats import (
    AUTO,
    find_reasoning_format,
    find_tool_format,
    formats_of,
)

T = TypeVar("T")
WATCH_INTERVAL_S = 0.25


class State(StrEnum):
    """What a server is doing."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Service:
    """One engine behind the endpoints.

    Args:
        make_llm: loads the model; called in a thread of its own.
        stop: asks the process to end.
        say: tells the user who started the server.
        traces: takes the spans of requests; it is closed with the service.

    Attributes:
        failure: why it cannot serve any more; None while it can.
        tools: how the model writes calls of tools; None: that is not known.
        reasoning: how it writes reasoning; None: its replies have none.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        make_llm: Callable[[], AsyncLLM],
        *,
        stop: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda line: None,
        traces: Traces | None = None,
    ) -> None:
        self.loaded = loaded
        self.section: ServerSection = loaded.config.server
        self.limits: ServerLimits = self.section.limits
        self.model_names: tuple[str, ...] = model_names(loaded)
        self.door: Door = Door(self.section)
        if self.section.tool_format != AUTO:  # what is wrong is said at once
            find_tool_format(self.section.tool_format)
        if self.section.reasoning != AUTO:
            find_reasoning_format(self.section.reasoning)
        self.metrics: ServerMetrics = ServerMetrics(
            self.model_names[0],
            loaded.config.scheduler.name,
            loaded.config.router.name if loaded.config.engine.replicas > 1 else "",
        )
        self.overview: Overview = Overview()
        self.traces: Traces | None = traces
        self.created: int = int(time.time())
        self.failure: BaseException | None = None
        self._make_llm, self._stop, self._say = make_llm, stop, say
        self._llm: AsyncLLM | None = None
        self._defaults: Defaults | None = None
        self._is_draining = False
        self.tools: ToolFormat | None = None
        self.reasoning: ReasoningFormat | None = None
        self._task: asyncio.Task[None] | None = None

    # -- from start to end ----------------------------------------------------------------

    def start(self) -> None:
        """Begin to load. For the running event loop."""
        self._task = asyncio.create_task(self._load_and_watch())

    async def _load_and_watch(self) -> None:
        begin = time.monotonic()
        try:
            llm = await _in_thread(self._make_llm)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.failure = error
            self._stop()
            return
        self._defaults = Defaults.of(self.loaded, llm.sampling)
        writes = formats_of(self.section.tool_format, self.section.reasoning, llm.template_has)
        self.tools, self.reasoning = writes.tools, writes.reasoning
        self._llm = llm
        self._say(f"ready after {time.monotonic() - begin:.1f} s")
        while llm.failure is None:
            await asyncio.sleep(WATCH_INTERVAL_S)
        self.failure = llm.failure
        exit_s = self.section.failure_exit_s
        self._say(f"the engine failed: {self.failure}")
        if exit_s is not None:
            await asyncio.sleep(exit_s)
            self._stop()

    async def drain(self) -> None:
        """Take no more requests, and give the open ones their time; then they end with an error."""
        self._is_draining = True
        end = time.monotonic() + self.limits.drain_s
        while self.door.num_open and time.monotonic() < end and self.state is not State.FAILED:
            await asyncio.sleep(min(0.02, self.limits.drain_s))
        if self._llm is not None:
            await self._llm.close()

    async def close(self) -> None:
        """End the engine. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._llm is not None:
            await self._llm.close()
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)

    # -- for the endpoints ----------------------------------------------------------------

    @property
    def state(self) -> State:
        if self.failure is not None or (self._llm is not None and self._llm.failure is not None):
            return State.FAILED
        if self._is_draining:
            return State.DRAINING
        return State.LOADING if self._llm is None else State.READY

    @property
    def llm(self) -> AsyncLLM:
        """The engine.

        Raises:
            ApiError: it cannot serve now.
        """
        state, llm = self.state, self._llm
        if state is State.READY and llm is not None:
            return llm
        raise self.unavailable()

    def unavailable(self) -> ApiError:
        """Why nothing is served now."""
        match self.state:
            case State.LOADING:
                return ApiError(503, "the model is being loaded", code="loading", retry_after_s=2.0)
            case State.DRAINING:
                return ApiError(503, "the server is about to end", code="draining")
            case _:
                failure = self.failure or (self._llm.failure if self._llm is not None else None)
                return ApiError(503, f"the engine failed: {failure}", code="engine_failed")

    @property
    def defaults(self) -> Defaults:
        """Sampling of requests that say nothing; there once the model is loaded."""
        assert self._defaults is not None
        return self._defaults

    def check_model(self, name: str | None) -> str:
        """The name under which a model is served.

        Raises:
            ApiError: there is no such model.
        """
        return known_model(name, self.model_names)

    async def generate(
        self, prompt: Prompt, arrival: float, sink: Sink | None = None
    ) -> AsyncGenerator[list[StreamEvent]]:
        """The events of one prompt; what the engine's end does to it is an `ApiError`.

        Args:
            arrival: when its request was there, on the machine's monotonic clock.
            sink: as for `AsyncLLM.generate_lists`.
        """
        waits = (self.limits.queue_timeout_s, prompt.deadline)
        timeout_s = min((wait for wait in waits if wait is not None), default=None)
        lists = self.llm.generate_lists(
            prompt, queue_timeout_s=timeout_s, arrival=arrival, sink=sink
        )
        result: RequestResult | None = None
        self.overview.came(prompt.id or "", prompt.client)
        try:
            async with aclosing(lists):
                async for events in lists:
                    result = events[-1].result
                    if result is not None and self._is_lost(result):
                        if pieces := events[:-1]:
                            yield pieces
                        raise self.unavailable()
                    yield events
        except RequestShed as error:
            raise ApiError(429, error.reason, code="shed", retry_after_s=1.0) from None
        except ExecutorError:
            raise self.unavailable() from None
        finally:
            self.overview.left(prompt.id or "", result)

    async def metrics_text(self) -> str:
        """All metrics in the Prometheus text format; without an engine those of the server."""
        stats, engine_text = None, ""
        if self._llm is not None:
            with suppress(ExecutorError):
                stats, engine_text = await self._llm.stats(), await self._llm.metrics()
        own = self.metrics.text(stats, self.door.open_by_client(), self.door.num_turned_away)
        return own + engine_text

    def _is_lost(self, result: RequestResult) -> bool:
        """The engine ended before the request."""
        return result.error is not None and self.state is not State.READY


def _in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """What a function gives, in a thread that the end of the process does not wait for."""
    made: concurrent.futures.Future[T] = concurrent.futures.Future()

    def call() -> None:
        try:
            made.set_result(function())
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=call, name="nanofw-load", daemon=True).start()
    return asyncio.wrap_future(made)
