"""From a request to its answer: the way of every endpoint that the engine serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from nanofw.contracts.requests import Pooling, SamplingParams
from nanofw.errors import RequestError
from nanofw.llm.async_llm import AsyncLLM
from nanofw.llm.async_streams import Sink
from nanofw.llm.prompts import Prompt
from nanofw.llm.results import RequestResult, StreamEvent
from nanofw.narrowing import JsonObject
from nanofw.server.bodies import parsed, received
from nanofw.server.door import Client, OpenPrompts
from nanofw.server.errors import ApiError, error_of, json_response, refusal
from nanofw.server.event_stream import DONE, EventStream, event_of
from nanofw.server.formats import Format, RunningUsage, WholeFormat
from nanofw.server.protocol import EXTENSION, BodyWriter
from nanofw.server.request_log import log_request
from nanofw.server.schemas import EngineRequest, Generation
from nanofw.server.service import Service
from nanofw.server.streams import ClientWatch, Events, numbered
from nanofw.server.traces import RequestTimes

G = TypeVar("G", bound=EngineRequest)
CLOSED_REQUEST = 499
"""The status in logs of a request whose client went away; it gets no answer."""


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """What a request asks for.

    Attributes:
        records: a prompt for `AsyncLLM` each.
        sampling: where they do not say otherwise.
        format: of the answer.
        pooling: of the hidden states that are wanted; None: they are not.
        continuations: whose scores are wanted, one for each record; None: none are.
    """

    records: list[JsonObject]
    sampling: SamplingParams
    format: WholeFormat
    pooling: Pooling | None = None
    continuations: Sequence[object] | None = None


@dataclass(slots=True, kw_only=True)
class Call:
    """A request on its way.

    Attributes:
        results: by prompt, of those that ended.
        status: of the answer; of a stream what became of it.
        arrival: when its body was there, on the machine's monotonic clock.
    """

    service: Service
    request: Request
    owner: Client | None = None
    client: str = ""
    plan: AnswerPlan | None = None
    entry: OpenPrompts | None = None
    is_stream: bool = False
    params: frozenset[str] = frozenset()
    results: dict[int, RequestResult] = field(default_factory=dict[int, RequestResult])
    status: int = 200
    arrival: float | None = None
    user: str | None = None
    error: str | None = None
    watch: ClientWatch = field(default_factory=ClientWatch)
    _begin: float = field(default_factory=time.monotonic)
    _times: dict[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])

    def end(self) -> None:
        """Count and log it."""
        results = self.in_order()
        if self.entry is not None:
            self.entry.leave(results)
        path = self.request.url.path
        self.service.metrics.answered(path, self.status)
        facts: JsonObject = {
            "request_id": self.request.state.request_id,
            "id": None if self.plan is None else self.plan.format.id,
            "client": self.client,
            "user": self.user,
            "path": path,
            "status": self.status,
            "stream": self.is_stream,
            "prompts": 0 if self.plan is None else len(self.plan.records),
            "error": self.error,
        }
        log_request(facts, results, time.monotonic() - self._begin)
        if self.service.traces is not None:
            times = RequestTimes(self._begin, self.arrival)
            self.service.traces.record(facts, results, self.request.headers, times)

    def fail(self, error: ApiError) -> None:
        """It ends with an error."""
        self.status, self.error = error.status, error.message

    def note(self, number: int, event: StreamEvent, now: float) -> None:
        """A piece of text came."""
        place = number, event.index
        if (before := self._times.get(place)) is not None:
            self.service.metrics.inter_token.observe(now - before)
        self._times[place] = now

    def in_order(self) -> list[RequestResult]:
        """All results; for a request that was served."""
        return [self.results[number] for number in sorted(self.results)]

    def take(self, number: int, result: RequestResult) -> None:
        """A prompt ended. Raises `ApiError` when it was not served."""
        if number not in self.results:
            self.results[number] = result
            self.service.metrics.ended(self.client, result)
        if (error := error_of(result, self.params)) is not None:
            raise error


async def serve_text(
    request: Request, model: type[G], make_plan: Callable[[Service, G, str], AnswerPlan]
) -> Response:
    """Answer a request that the engine serves.

    Args:
        model: of its body.
        make_plan: from the body, and the client that it is for.
    """
    service: Service = request.app.state.service
    call = Call(service=service, request=request, params=frozenset(model.model_fields))
    try:
        response = await _answer(call, model, make_plan)
    except ApiError as error:
        call.fail(error)
        if error.status == 429 and call.entry is None:
            service.overview.turned_away(call.client, error.message)
        response = error.to_response()
    except ClientDisconnect:
        call.status = CLOSED_REQUEST
        response = Response(status_code=CLOSED_REQUEST)
    except BaseException:
        call.status = 500
        call.end()
        raise
    if not isinstance(response, EventStream):
        call.watch.stop()
        call.end()
    return response


async def _answer(
    call: Call, model: type[G], make_plan: Callable[[Service, G, str], AnswerPlan]
) -> Response:
    service = call.service
    call.owner = service.door.identify(call.request.headers.get("authorization"))
    _ = service.llm  # who cannot be served need not send a body
    data = await received(call.request, service.limits)
    writer = _writer_of(call)
    arrival = call.arrival = time.monotonic() if writer is None else writer.received
    body = parsed(data, model)
    call.client = service.door.client_named(call.owner, body.client)
    call.is_stream, call.user = body.is_stream, body.user
    if isinstance(body, Generation) and body.stream_options is not None and not call.is_stream:
        raise ApiError(400, "stream_options needs stream: true", param="stream_options")
    plan = call.plan = make_plan(service, body, call.client)
    call.entry = service.door.enter(call.owner, call.client, len(plan.records))
    call.watch.start(call.request.receive)
    try:
        prompts = await _encoded(call, plan)
        plan.format.begin(prompts)
        if body.wants_running_usage and isinstance(plan.format, Format):
            plan.format.running_usage = RunningUsage.of(prompts)
        sink = _sink_of(call) if call.is_stream and len(prompts) == 1 else None
        events = numbered([service.generate(prompt, arrival, sink) for prompt in prompts])
        if not call.is_stream:
            return json_response(await _whole(call, events))
        first = await _first(call, events)
    except asyncio.CancelledError:
        if not call.watch.is_gone:
            raise
        _forget_cancelling()
        raise ClientDisconnect from None
    usage = body.wants_usage
    chunks = _chunks(call, first, events, include_usage=usage)
    return EventStream(chunks, call.watch, lambda: _end_stream(call, events), writer)


def _forget_cancelling() -> None:
    """The running task was cancelled to end its request, which ends in order."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


async def _first(call: Call, events: Events) -> tuple[int, list[StreamEvent]]:
    """What a stream begins with. Raises `ApiError` where the request was not served."""
    try:
        number, some = await anext(events)
        if some[0].result is not None:
            call.take(number, some[0].result)
    except BaseException:
        await events.aclose()
        raise
    return number, some


async def _end_stream(call: Call, events: Events) -> None:
    """A stream has ended, however it did."""
    assert call.plan is not None
    if call.status == 200 and len(call.results) < len(call.plan.records):
        call.status = CLOSED_REQUEST
    try:
        await events.aclose()
    finally:
        call.end()


def _sink_of(call: Call) -> Sink | None:
    """Writes pieces of the only prompt's text where they come, once the stream has begun.

    The task that answers sends what it refuses, and wakes for nothing else until the end.
    """
    writer = _writer_of(call)
    if writer is None:
        return None

    def write(some: list[StreamEvent]) -> bool:
        if not writer.is_free:
            return False
        try:
            chunk = _pieces(call, 0, some)
        except Exception:  # raised again in the task that answers
            return False
        if chunk:
            writer.write(b"".join(chunk))
        return True

    return write


def _writer_of(call: Call) -> BodyWriter | None:
    """Of the connection, if it is one of ours and takes chunks."""
    extension = call.request.scope.get("extensions", {}).get(EXTENSION)
    return None if extension is None else extension["writer"]


def _pieces(call: Call, number: int, some: list[StreamEvent]) -> list[bytes]:
    """The events of pieces of text."""
    assert call.plan is not None
    answer, now = call.plan.format, time.monotonic()
    assert isinstance(answer, Format)
    chunk: list[bytes] = []
    for event in some:
        if answer.running_usage is not None:
            answer.running_usage.num_output_tokens += len(event.token_ids)
        call.note(number, event, now)
        chunk += map(event_of, answer.piece(number, event))
    return chunk


async def _encoded(call: Call, plan: AnswerPlan) -> list[Prompt]:
    """The prompts of a request, each with an id of its own."""
    llm, prompts = call.service.llm, list[Prompt]()
    for number, record in enumerate(plan.records):
        record["id"] = f"{plan.format.id}-{number}"
        try:
            prompts.append(await _encode(llm, plan, number))
        except RequestError as error:
            raise refusal(error.reason, call.params) from None
    return prompts


async def _encode(llm: AsyncLLM, plan: AnswerPlan, number: int) -> Prompt:
    """The prompt of a record. Raises `RequestError`."""
    record = plan.records[number]
    if plan.continuations is None:
        prompt = await llm.encode(record, plan.sampling)
        return prompt if plan.pooling is None else replace(prompt, pooling=plan.pooling)
    prompt = await llm.encode_pair(record, plan.continuations[number])
    if prompt.refusal is not None:
        raise prompt.refusal
    return prompt


async def _whole(call: Call, events: Events) -> JsonObject:
    """The answer that is not streamed."""
    assert call.plan is not None
    async with aclosing(events):
        async for number, some in events:
            now = time.monotonic()
            for event in some:
                if event.result is None:
                    call.note(number, event, now)
                else:
                    call.take(number, event.result)
    return call.plan.format.whole(call.in_order())


async def _chunks(
    call: Call, first: tuple[int, list[StreamEvent]], events: Events, *, include_usage: bool
) -> AsyncGenerator[tuple[bytes, bool]]:
    """The events of a stream, and whether they are the last: all that came at once is one chunk."""
    assert call.plan is not None
    answer, num_prompts = call.plan.format, len(call.plan.records)
    assert isinstance(answer, Format)
    has_opened: set[int] = set()
    chunk: list[bytes] = []
    item: tuple[int, list[StreamEvent]] | None = first
    try:
        while item is not None:
            number, some = item
            if number not in has_opened:
                has_opened.add(number)
                chunk += map(event_of, answer.opening(number))
            result = some[-1].result
            chunk += _pieces(call, number, some if result is None else some[:-1])
            if result is not None:
                call.take(number, result)
                chunk += map(event_of, answer.ending(number, result))
            if chunk and len(call.results) < num_prompts:
                yield b"".join(chunk), False
                chunk.clear()
            item = await anext(events, None)
    except ApiError as error:
        call.fail(error)
        chunk.append(event_of(error.to_record()))
    else:
        if include_usage:
            chunk.append(event_of(answer.usage_event(call.in_order())))
    call.watch.stop()
    yield b"".join((*chunk, DONE)), True
