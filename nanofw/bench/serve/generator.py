"""Sends the requests of a workload to an endpoint, each at its time, and notes what comes back."""

from __future__ import annotations

import asyncio
import math
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nanofw.bench.serve.endpoint import Chunk, Endpoint
from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import FinishReason, Request
from nanofw.contracts.workload import Workload
from nanofw.errors import ExecutorError, NanofwError, RequestError
from nanofw.measure.drive import Arrivals

HEARTBEAT_S = 0.02
"""Seconds between two looks at how late the generator itself is."""


@dataclass(slots=True)
class SentRequest:
    """A request on the client's side. Times are those of the client's clock, in seconds.

    Attributes:
        arrival: when it was to be sent; latencies count from here.
        sent, first_token, finished: NaN where it never got so far.
        num_events: events that brought a token, or several.
        num_tokens: as the endpoint says, or the number of these events.
        num_wanted: tokens that the workload asked for.
        reason: how it ended; `abort`: the measurement did.
    """

    client: str
    arrival: float
    sent: float = math.nan
    first_token: float = math.nan
    finished: float = math.nan
    num_events: int = 0
    num_tokens: int = 0
    num_wanted: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    reason: FinishReason = FinishReason.ABORT
    error: str | None = None
    id: str = ""


class LoadGenerator:
    """An open or closed loop of one workload.

    A request is due at its time, whatever became of those before it: an endpoint that stalls gets
    no pause, and what waits meanwhile counts from the time at which it was due.

    Args:
        make_body: the body of a request.
        read_answer: the token ids of a text, for workloads that go on with the answer.
        max_open: connections at once; requests beyond wait, which counts as latency.
        note: called with the number of requests that ended.

    Attributes:
        sent: all requests that became due, in this order.
    """

    def __init__(
        self,
        workload: Workload,
        endpoint: Endpoint,
        make_body: Callable[[Request], bytes],
        read_answer: Callable[[str], list[int]],
        *,
        max_open: int,
        note: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._arrivals = Arrivals(workload)
        self._endpoint, self._make_body, self._read_answer = endpoint, make_body, read_answer
        self._places, self._note = asyncio.Semaphore(max_open), note
        self._num_open = self._num_ended = 0
        self._woken = asyncio.Event()
        self._gaps, self._gap_ends = array("d"), array("d")
        self._event_times, self._late = array("d"), array("d")
        self.sent: list[SentRequest] = []

    async def run(self) -> None:
        """Send everything; returns when the last answer has ended.

        Raises:
            NanofwError: the workload failed.
        """
        heartbeat = asyncio.create_task(self._watch_itself())
        try:
            async with asyncio.TaskGroup() as group:
                while self._num_open or math.isfinite(self._arrivals.next_arrival):
                    for request in self._arrivals.due(time.monotonic()):
                        self._num_open += 1
                        group.create_task(self._send(request))
                    await self._until_next()
        except* NanofwError as group:
            raise _first(group) from None
        finally:
            heartbeat.cancel()

    def gaps(self, start: float, end: float) -> FloatArray:
        """Gaps between events of one request that ended in [start, end]."""
        ends = np.array(self._gap_ends)
        return np.array(self._gaps)[(ends >= start) & (ends <= end)]

    def num_events(self, start: float, end: float) -> int:
        """Events with tokens in [start, end]."""
        times = np.array(self._event_times)
        return int(np.count_nonzero((times >= start) & (times <= end)))

    @property
    def loop_lateness(self) -> FloatArray:
        """How late the generator saw what it waited for, sampled at regular times."""
        return np.array(self._late)

    async def _watch_itself(self) -> None:
        while True:
            due = time.monotonic() + HEARTBEAT_S
            await asyncio.sleep(HEARTBEAT_S)
            self._late.append(max(0.0, time.monotonic() - due))

    async def _until_next(self) -> None:
        """Wait for the next request to become due; an answer may bring an earlier one."""
        at, timer = self._arrivals.next_arrival, None
        if math.isfinite(at):
            timer = asyncio.get_running_loop().call_later(
                max(0.0, at - time.monotonic()), self._woken.set
            )
        await self._woken.wait()
        self._woken.clear()
        if timer is not None:
            timer.cancel()

    async def _send(self, request: Request) -> None:
        assert request.arrival is not None
        sent = SentRequest(request.client, request.arrival, id=request.id)
        sent.num_prompt_tokens = len(request.prompt_token_ids)
        sent.num_wanted = request.sampling.max_tokens or 0
        self.sent.append(sent)
        text: list[str] = []
        try:
            body = self._make_body(request)
            async with self._places:
                sent.sent = time.monotonic()
                await self._receive(request.id, body, sent, text)
            sent.reason = FinishReason.LENGTH
        except RequestError as error:
            sent.reason, sent.error = FinishReason.of_refusal(error), error.reason
        except ExecutorError as error:
            sent.reason, sent.error = FinishReason.ERROR, str(error)
        sent.finished = sent.finished if sent.reason.is_served else time.monotonic()
        sent.num_tokens = sent.num_tokens or sent.num_events
        self._num_open -= 1
        self._num_ended += 1
        self._arrivals.finished(self._output(request, sent, "".join(text)))
        self._note(self._num_ended)
        self._woken.set()

    async def _receive(
        self, request_id: str, body: bytes, sent: SentRequest, text: list[str]
    ) -> None:
        last = math.nan
        async for chunk in self._endpoint.stream(request_id, body):
            now = time.monotonic()
            if chunk.has_token:
                self._event_times.append(now)
                if sent.num_events:
                    self._gaps.append(now - last)
                    self._gap_ends.append(now)
                else:
                    sent.first_token = now
                last = sent.finished = now
                sent.num_events += 1
                text.append(chunk.text)
            _note_end(chunk, now, sent)

    def _output(self, request: Request, sent: SentRequest, text: str) -> RequestOutput:
        """What the workload is told of a request that ended."""
        token_ids = self._read_answer(text) if text else [0] * sent.num_tokens
        return RequestOutput(
            id=request.id,
            token_ids=np.array(token_ids, np.int32),
            finish_reason=sent.reason,
            num_prompt_tokens=sent.num_prompt_tokens,
            error=sent.error,
            arrival=sent.arrival,
            finished=sent.finished,
        )


def _first(group: BaseExceptionGroup[NanofwError]) -> NanofwError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _note_end(chunk: Chunk, now: float, sent: SentRequest) -> None:
    if chunk.finish_reason is not None:
        sent.finished = now
    if (usage := chunk.usage) is not None:
        sent.num_tokens = usage.completion_tokens
        sent.num_cached_tokens = usage.cached_tokens
        sent.num_prompt_tokens = usage.prompt_tokens or sent.num_prompt_tokens
