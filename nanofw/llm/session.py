"""Text around an engine: prompts in, results and pieces of text out, one step at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from nanofw.contracts.outputs import RequestOutput, StepOutput, StepReport, TokenDelta
from nanofw.contracts.requests import FinishReason, Request, SamplingParams
from nanofw.engine.base import BaseEngine
from nanofw.errors import NanofwError, RequestError, RequestShed, refusal_reason
from nanofw.llm.encoding import Encoder, engine_request
from nanofw.llm.live import LiveRequest
from nanofw.llm.logprobs import readable
from nanofw.llm.prometheus import RequestMetrics, prometheus_text
from nanofw.llm.prompts import Prompt
from nanofw.llm.refusals import encode_prompt
from nanofw.llm.results import RequestResult, StreamEvent, refused
from nanofw.text.chat import ChatTemplate
from nanofw.text.tokenizer import Tokenizer

logger: logging.Logger = logging.getLogger(__name__)

LONGEST_WAIT_S = 0.02
"""At most so long a step waits for the time that a policy named: new requests come between."""


@dataclass(slots=True)
class SessionStep:
    """What one step brought.

    Attributes:
        events: tickets, as `Session.add_prompt` returned them, with a piece of a streamed
            request's text or, after the last one, with the result of any request.
        outputs: by ticket, the engine's output of a finished request's first sample; nothing
            for a request that the engine never had.
    """

    events: list[tuple[int, StreamEvent]] = field(default_factory=list[tuple[int, StreamEvent]])
    outputs: dict[int, RequestOutput] = field(default_factory=dict[int, RequestOutput])
    report: StepReport | None = None

    @property
    def results(self) -> list[tuple[int, RequestResult]]:
        """Tickets of the requests that ended, and their results."""
        return [(ticket, event.result) for ticket, event in self.events if event.result is not None]


class Session:
    """Requests of one engine, in text.

    A request that cannot be served is refused alone: its result comes with the next step.

    Args:
        engine: who computes; the session is its only user while it lasts.
        tokenizer: None for a model that is used with token ids only; texts are then empty.
        chat: the model's chat templates.
        token_times: record when each token came, for `Timings.itl_s`.

    Attributes:
        default_sampling: of prompts that bring none; `open_session` sets the configuration's.
    """

    def __init__(
        self,
        engine: BaseEngine,
        tokenizer: Tokenizer | None,
        chat: ChatTemplate,
        *,
        token_times: bool = False,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.default_sampling: SamplingParams = SamplingParams()
        self.encoder: Encoder = Encoder(tokenizer, chat, engine.max_model_len)
        self._token_times = token_times
        self._live: dict[str, LiveRequest] = {}
        self._ids: dict[int, str] = {}
        """Ticket to id of the live requests."""
        self._refused: list[tuple[int, StreamEvent]] = []
        self._lost: list[tuple[int, str, str | None]] = []
        """Ticket, id and text of requests on which the engine failed before it had them."""
        self._failure: Exception | None = None
        """What the next step raises: the engine failed while a request was added."""
        self._num_tickets = 0
        self._reserved: set[str] = set()
        """Ids that users chose for requests that are still to come."""
        self._failed = False
        self._metrics = RequestMetrics()

    @property
    def has_unfinished(self) -> bool:
        """Whether `step` still has something to do or to say."""
        waits = bool(self._live or self._refused or self._lost)
        return waits or (self.engine.has_unfinished and not self._failed)

    @property
    def num_unfinished_tokens(self) -> int:
        """Tokens generated so far for requests whose result has not come."""
        samples = (sample for live in self._live.values() for sample in live.samples)
        ended = sum(len(item.completion.token_ids) for item in samples if item.completion)
        return ended + int(self.engine.stats()["num_unfinished_tokens"])

    def add_prompt(
        self, prompt: Prompt, *, stream: bool = False, arrival: float | None = None
    ) -> int:
        """Queue a prompt; returns the ticket under which its result will come.

        Args:
            prompt: encoded by `encoder` or not yet.
            stream: report its text as it comes.
            arrival: when it came, on the engine's clock; None: now.
        """
        ticket, request_id = self._new_ticket(prompt.id)
        prompt = encode_prompt(self.encoder, prompt)
        if prompt.refusal is not None:
            self._refuse(ticket, request_id, prompt.refusal, prompt.text)
            return ticket
        self._add(ticket, self._request(request_id, prompt, stream, arrival), prompt, stream)
        return ticket

    def reserve(self, ids: Iterable[str]) -> None:
        """Keep ids for requests that will bring them: no other request is given one of these."""
        self._reserved.update(ids)

    def add_request(self, request: Request) -> int:
        """Queue a request of token ids with an arrival of its own; returns its ticket."""
        ticket, _ = self._new_ticket(request.id)
        prompt = Prompt(token_ids=request.prompt_token_ids, sampling=request.sampling)
        self._add(ticket, replace(request, stream=self._token_times), prompt, stream=False)
        return ticket

    def _add(self, ticket: int, request: Request, prompt: Prompt, stream: bool) -> None:
        """Hand a request to the engine; its sender is told of whatever becomes of it."""
        try:
            self.engine.add_request(request)
        except RequestError as error:
            self._refuse(ticket, request.id, error, prompt.text)
        except Exception as error:
            self._lose(ticket, request.id, error, prompt.text)
        else:
            self._accepted(ticket, request.id, prompt, stream)

    def refuse(
        self,
        reason: str,
        request_id: str | None = None,
        finish_reason: FinishReason = FinishReason.REFUSED,
    ) -> int:
        """Count a request that the engine will never have; returns its ticket."""
        ticket, request_id = self._new_ticket(request_id)
        result = refused(request_id, reason, None, finish_reason)
        self._refused.append((ticket, StreamEvent(result=result)))
        return ticket

    def abort(self, ticket: int) -> bool:
        """End a request; its result comes with a later step. Returns whether it was live."""
        request_id = self._ids.get(ticket)
        return request_id is not None and self.engine.abort_request(request_id)

    def shed(self, ticket: int, reason: str) -> bool:
        """End a request that no step has run yet; its result, `shed`, comes with a later step.

        Returns whether there was one.
        """
        live = self._live.get(self._ids.get(ticket, ""))
        if live is None or live.has_started:
            return False
        live.shed_reason = reason
        return self.engine.abort_request(live.request_id)

    def step(self) -> SessionStep:
        """One step of the engine, in text.

        Raises:
            NanofwError: the run cannot go on; `fail` gives the results of those left.
        """
        if self._failure is not None:
            raise self._failure
        output = self.engine.step() if self.engine.has_unfinished else StepOutput()
        if output.wake_at is not None:
            clock = self.engine.clock
            clock.wait_until(min(output.wake_at, clock.now() + LONGEST_WAIT_S))
        step = SessionStep(events=self._refused, outputs={}, report=output.report)
        self._refused = []
        if output.report is not None:
            for admitted in output.report.admitted:
                if (live := self._live.get(admitted.id)) is not None:
                    live.has_started = True
        ends = {(end.id, end.sample_index): end for end in output.finished}
        for delta in output.deltas:
            self._take_delta(delta, ends.get((delta.id, delta.sample_index)), step)
        for end in output.finished:
            self._take_end(end, step)
        self._count(step)
        if logger.isEnabledFor(logging.DEBUG):
            _log(step)
        return step

    def fail(self, reason: str) -> SessionStep:
        """Results of all that is unfinished, after the engine failed."""
        self._failed = True
        step = SessionStep(events=self._refused)
        for end in self.engine.take_finished():
            self._take_end(end, step)
        for live in self._live.values():
            step.events.append((live.ticket, StreamEvent(result=live.failed(reason))))
        for ticket, request_id, text in self._lost:
            result = refused(request_id, reason, text, FinishReason.ERROR)
            step.events.append((ticket, StreamEvent(result=result)))
        self._live, self._ids, self._refused, self._lost = {}, {}, [], []
        self._count(step)
        return step

    def metrics(self) -> str:
        """Counters of engine and requests in the Prometheus text format."""
        return prometheus_text(self.engine.stats(), self._metrics)

    # -- the way in -----------------------------------------------------------------------

    def _new_ticket(self, request_id: str | None) -> tuple[int, str]:
        ticket = self._num_tickets
        self._num_tickets += 1
        if request_id is None:
            request_id = f"request-{ticket}"
            while request_id in self._live or request_id in self._reserved:
                request_id += "'"
        self._reserved.discard(request_id)
        return ticket, request_id

    def _accepted(self, ticket: int, request_id: str, prompt: Prompt, stream: bool) -> None:
        self._ids[ticket] = request_id
        self._live[request_id] = LiveRequest(
            ticket,
            request_id,
            prompt,
            self.tokenizer,
            show=stream,
            token_times=self._token_times,
        )

    def _refuse(
        self, ticket: int, request_id: str, error: RequestError, prompt: str | None
    ) -> None:
        after = error.retry_after_s if isinstance(error, RequestShed) else None
        result = refused(request_id, error.reason, prompt, FinishReason.of_refusal(error), after)
        self._refused.append((ticket, StreamEvent(result=result)))

    def _lose(self, ticket: int, request_id: str, error: Exception, prompt: str | None) -> None:
        """The engine failed on a request: the next step says so, and `fail` tells its sender."""
        self._lost.append((ticket, request_id, prompt))
        self._failure = error

    def _request(
        self, request_id: str, prompt: Prompt, stream: bool, arrival: float | None
    ) -> Request:
        is_watched = prompt.stop_strings is not None or prompt.stop_when is not None
        needs_deltas = stream or is_watched or self._token_times
        arrival = self.engine.clock.now() if arrival is None else arrival
        return engine_request(prompt, request_id, arrival=arrival, stream=needs_deltas)

    # -- the way out ----------------------------------------------------------------------

    def _take_delta(self, delta: TokenDelta, end: RequestOutput | None, step: SessionStep) -> None:
        live = self._live.get(delta.id)
        if live is None:
            return  # its text could not be made; the engine was told to end it
        try:
            self._show_delta(live, delta, end, step)
        except NanofwError:
            raise
        except Exception as error:
            self._give_up(live, error, step)

    def _show_delta(
        self, live: LiveRequest, delta: TokenDelta, end: RequestOutput | None, step: SessionStep
    ) -> None:
        now = step.report.committed if step.report is not None else self.engine.clock.now()
        text, token_ids = live.take_delta(delta, end, now)
        num_kept = live.stopped_at(delta.sample_index)
        if num_kept is not None and end is None:
            self.engine.finish_request(delta.id, num_kept, FinishReason.STOP, delta.sample_index)
        if not live.show or not (text or token_ids):
            return
        logprobs = None
        if delta.logprobs is not None:
            logprobs = readable(delta.logprobs, token_ids, self.tokenizer)
        event = StreamEvent(text, tuple(token_ids), delta.sample_index, logprobs)
        step.events.append((live.ticket, event))

    def _take_end(self, output: RequestOutput, step: SessionStep) -> None:
        live = self._live.get(output.id)
        if live is None:
            return
        try:
            rest = live.finish_sample(output)
            result = live.result() if live.is_finished else None
        except Exception as error:
            self._give_up(live, error, step)
            return
        if rest and live.show:
            step.events.append((live.ticket, StreamEvent(rest, index=output.sample_index)))
        if result is not None:
            del self._live[output.id], self._ids[live.ticket]
            step.events.append((live.ticket, StreamEvent(result=result)))
            step.outputs[live.ticket] = live.first_output

    def _give_up(self, live: LiveRequest, error: Exception, step: SessionStep) -> None:
        """End a request whose text cannot be made; the others go on."""
        logger.warning("request %s: %s", live.request_id, error, exc_info=error)
        del self._live[live.request_id], self._ids[live.ticket]
        reason = f"its text cannot be made: {refusal_reason(error)}"
        step.events.append((live.ticket, StreamEvent(result=live.failed(reason))))
        self.engine.abort_request(live.request_id)
        for end in self.engine.take_finished():  # its id is free from here on
            self._take_end(end, step)

    def _count(self, step: SessionStep) -> None:
        for _, result in step.results:
            self._metrics.observe(result)


def _log(step: SessionStep) -> None:
    if (report := step.report) is not None:
        logger.debug(
            "step %d: %d prefill and %d decode tokens of %d requests, %d running, %d waiting, "
            "%d blocks used, %d preemptions, %.3f ms",
            report.step,
            report.num_prefill_tokens,
            report.num_decode_tokens,
            report.num_rows,
            report.num_running,
            report.num_waiting,
            report.num_used_blocks,
            report.num_preemptions,
            (report.committed - report.planned) * 1e3,
        )
    for _, result in step.results:
        logger.debug(
            "request %s: %s after %d tokens%s",
            result.request_id,
            result.finish_reason,
            result.num_output_tokens,
            f": {result.error}" if result.error else "",
        )
