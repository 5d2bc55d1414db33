"""`AsyncLLM`: many callers of one engine, in asyncio."""

# What users give is looked at although it has a type.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from nanofw.config.layers import PYTHON
from nanofw.config.load import LoadedConfig, load_config
from nanofw.contracts.requests import SamplingParams
from nanofw.errors import RequestError
from nanofw.llm.engine_thread import EngineThread
from nanofw.llm.llm import FIELD_NAMES, check_fields, load
from nanofw.llm.opening import open_session
from nanofw.llm.prompts import Prompt, PromptLike, parse_prompt, with_fields
from nanofw.llm.refusals import id_of, refused_alone
from nanofw.llm.results import StreamEvent, refused

INLINE_CHARACTERS = 2_000
"""Texts up to this length are encoded at once; longer ones in a thread, to keep the loop free."""


class AsyncLLM:
    """Serves prompts of many callers from one engine, which runs in a thread of its own.

        async with AsyncLLM("Qwen/Qwen3-0.6B") as llm:
            async for event in llm.generate("Once upon a time"):
                print(event.text, end="")

    For one event loop; making one blocks until the model is loaded. Leaving an iterator, or
    cancelling its task, aborts the request. A simulated machine answers in real time.

    Args:
        model, keywords: as for `LLM`.
        max_requests: requests that may be in the engine, waiting ones included. Further
            callers wait until one ends.
        admission_timeout_s: how long they wait before they are refused; None: without a limit.
    """

    def __init__(
        self,
        model: str | Path | LoadedConfig | None = None,
        *,
        max_requests: int = 4096,
        admission_timeout_s: float | None = None,
        **keywords: object,
    ) -> None:
        if not isinstance(max_requests, int) or max_requests < 1:
            raise ValueError(f"max_requests is {max_requests!r}; it must be at least 1")
        if admission_timeout_s is not None and not admission_timeout_s >= 0:
            raise ValueError(
                f"admission_timeout_s is {admission_timeout_s!r}; it must be at least 0, or None"
            )
        self.loaded = load(model, keywords)
        self._timeout_s, self._max_requests = admission_timeout_s, max_requests
        self._permits = asyncio.Semaphore(max_requests)
        self._thread = EngineThread(lambda: open_session(self.loaded, real_time=True))

    @classmethod
    def from_config(
        cls, config: str | Path | None = None, *overrides: str, **options: Any
    ) -> AsyncLLM:
        """From a YAML file or preset and `key=value` strings; `options` as for the class."""
        return cls(load_config(config, overrides, named_by=PYTHON), **options)

    @property
    def failure(self) -> BaseException | None:
        """What ended the engine; None while it can serve."""
        return self._thread.failure

    async def generate(
        self,
        prompt: PromptLike,
        sampling_params: SamplingParams | None = None,
        *,
        arguments: Mapping[str, object] | None = None,
        **fields: object,
    ) -> AsyncIterator[StreamEvent]:
        """Continue a prompt, text as it comes; the last event holds the result.

        A prompt that cannot be served gives a single event whose result is refused.

        Args:
            arguments: of plugins, by their name.

        Raises:
            ValueError: a keyword that there is not.
            RequestError: no request ended in time.
            ExecutorError: the engine failed before, or was closed.
        """
        check_fields(fields, FIELD_NAMES, 1)
        given = with_fields(prompt, fields)
        try:
            with refused_alone(id_of(given)):
                params = sampling_params or self._thread.default_sampling
                encoded = await self._encode(parse_prompt(given, params, arguments))
        except RequestError as error:
            yield StreamEvent(result=refused(error.request_id, error.reason))
            return
        await self._take_permit(encoded)
        stream = _Stream(asyncio.get_running_loop(), self._permits)
        try:
            self._thread.add_prompt(stream, encoded)
        except BaseException:
            self._permits.release()
            raise
        try:
            async for event in stream:
                yield event
        finally:
            if not stream.ended:
                self._thread.abort(stream)

    async def metrics(self) -> str:
        """Counters and latencies in the Prometheus text format."""
        return await asyncio.wrap_future(self._thread.call(lambda session: session.metrics()))

    async def stats(self) -> Mapping[str, object]:
        """`Engine.stats()`, read between two steps."""
        return await asyncio.wrap_future(self._thread.call(lambda s: s.engine.stats()))

    async def close(self) -> None:
        """End the engine; open requests end with an error. Idempotent."""
        await asyncio.to_thread(self._thread.stop)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _encode(self, prompt: Prompt) -> Prompt:
        if prompt.messages is None and len(prompt.text or "") <= INLINE_CHARACTERS:
            return self._thread.encoder.encode(prompt)
        return await asyncio.to_thread(self._thread.encoder.encode, prompt)

    async def _take_permit(self, prompt: Prompt) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._permits.acquire()
        except TimeoutError:
            raise RequestError(
                prompt.id or "",
                f"{self._max_requests} requests are being served and none of them ended within "
                f"{self._timeout_s} s; try again later",
            ) from None


class _Stream:
    """One request's way from the engine's thread to its caller's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, permits: asyncio.Semaphore) -> None:
        self._loop, self._permits = loop, permits
        self._events: asyncio.Queue[StreamEvent] = asyncio.Queue()
        self.ended = False

    def receive(self, events: list[StreamEvent]) -> None:
        """Called in the engine's thread."""
        with contextlib.suppress(RuntimeError):  # a closed loop: there is no receiver any more
            self._loop.call_soon_threadsafe(self._accept, events)

    def _accept(self, events: list[StreamEvent]) -> None:
        for event in events:
            self._events.put_nowait(event)
            if event.result is not None:
                self.ended = True
                self._permits.release()

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        while True:
            event = await self._events.get()
            yield event
            if event.result is not None:
                return
