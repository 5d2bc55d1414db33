"""Text around an engine: prompts in, results and pieces of text out, one step at a time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from nanofw.core.engine import Engine
from nanofw.core.metrics import exposition
from nanofw.core.types import (
    FinishReason,
    Request,
    RequestOutput,
    SamplingParams,
    StepOutput,
    StepReport,
    TokenDelta,
)
from nanofw.errors import RequestError
from nanofw.llm.metrics import RequestMetrics
from nanofw.llm.prompts import Prompt
from nanofw.llm.results import Completion, RequestResult, make_timings, refused
from nanofw.text.chat import ChatTemplate
from nanofw.text.stop import StopStrings
from nanofw.text.stream import TextStream
from nanofw.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Encoded: TypeAlias = tuple[str | None, Sequence[int]]
"""The text of a prompt, None when it came as ids, and its token ids."""

MAX_STOP_SETS = 1024
"""Automata of stop strings that are kept for the next request that has the same ones."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New tokens of a streamed request and the text that they make certain; may be empty.

    Attributes:
        ticket: what `Session.add` returned.
        time: seconds on the engine's clock.
    """

    ticket: int
    request_id: str
    text: str
    token_ids: tuple[int, ...]
    time: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that ended."""

    ticket: int
    result: RequestResult


@dataclass(slots=True)
class SessionStep:
    """What one step brought. A streamed request's last delta comes before its end."""

    deltas: list[TextDelta] = field(default_factory=list[TextDelta])
    finished: list[Finished] = field(default_factory=list[Finished])
    report: StepReport | None = None


@dataclass(slots=True)
class _Live:
    """A request that the engine has."""

    ticket: int
    prompt_text: str | None
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    show: bool
    text: TextStream | None
    times: list[float] = field(default_factory=list[float])


class Session:
    """Requests of one engine, in text.

    A request that cannot be served is refused alone: its result comes with the next step.

    Args:
        engine: who computes; the session is its only user while it lasts.
        tokenizer: None for a model that is used with token ids only; texts are then empty.
        chat: the model's chat templates.
        token_times: record when each token came, for `Timings.itl_s`.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer | None,
        chat: ChatTemplate,
        *,
        token_times: bool = False,
    ) -> None:
        self.engine, self.tokenizer, self.chat = engine, tokenizer, chat
        self._token_times = token_times
        self._live: dict[str, _Live] = {}
        self._ids: dict[int, str] = {}
        """Ticket to id of the live requests."""
        self._refused: list[Finished] = []
        self._num_tickets = 0
        self._failed = False
        self._metrics = RequestMetrics()
        self._stops: dict[tuple[str, ...], StopStrings] = {}

    @property
    def has_unfinished(self) -> bool:
        """Whether `step` still has something to do or to say."""
        waits = bool(self._live or self._refused)
        return waits or (self.engine.has_unfinished and not self._failed)

    def add(self, prompt: Prompt, *, stream: bool = False, encoded: Encoded | None = None) -> int:
        """Queue a prompt; returns the ticket under which its result will come.

        Args:
            stream: report its text as it comes.
            encoded: what `encode` made of it, when that was done before.
        """
        ticket, request_id = self._new_ticket(prompt.id)
        try:
            text, token_ids = encoded or self.encode(prompt)
            stops = self._stop_strings(prompt.sampling)
            self._add(ticket, request_id, prompt, text, token_ids, stops, stream)
        except RequestError as error:
            self._refuse(ticket, request_id, error.reason, prompt.text)
        except (ValueError, TypeError) as error:
            self._refuse(ticket, request_id, str(error), prompt.text)
        return ticket

    def encode(self, prompt: Prompt) -> Encoded:
        """Text and token ids of a prompt; the only method that any thread may call.

        Raises:
            ValueError: it has no tokens that could be made here.
        """
        if prompt.token_ids is not None:
            return None, prompt.token_ids
        if self.tokenizer is None:
            raise ValueError("this model has no tokenizer: give prompt_token_ids")
        if prompt.messages is not None:
            text = self.chat.render(prompt.messages, **prompt.chat)
            return text, self.tokenizer.encode(text, add_special_tokens=False)
        text = prompt.text or ""
        return text, self.tokenizer.encode(text)

    def refuse(self, reason: str, request_id: str | None = None) -> int:
        """Count a request that could not even be read; returns its ticket."""
        ticket, request_id = self._new_ticket(request_id)
        self._refuse(ticket, request_id, reason, None)
        return ticket

    def abort(self, ticket: int) -> bool:
        """End a request; its result comes with a later step. Returns whether it was live."""
        request_id = self._ids.get(ticket)
        return request_id is not None and self.engine.abort(request_id)

    def abort_all(self) -> None:
        """End every request that is live."""
        for request_id in list(self._live):
            self.engine.abort(request_id)

    def step(self) -> SessionStep:
        """One step of the engine, in text.

        Raises:
            NanofwError: the run cannot go on; `fail` gives the results of those left.
        """
        output = self.engine.step() if self.engine.has_unfinished else StepOutput()
        step = SessionStep(finished=self._refused, report=output.report)
        self._refused = []
        ends = {finished.id: finished for finished in output.finished}
        for delta in output.deltas:
            self._take_delta(delta, ends.get(delta.id), step)
        for finished in output.finished:
            self._take_end(finished, step)
        for item in step.finished:
            self._metrics.observe(item.result)
        if logger.isEnabledFor(logging.DEBUG):
            _log(step)
        return step

    def fail(self, reason: str) -> list[Finished]:
        """Results of all that is unfinished, after the engine failed."""
        self._failed = True
        failed = self._refused
        for request_id, live in self._live.items():
            result = RequestResult(
                request_id=request_id,
                prompt=live.prompt_text,
                prompt_token_ids=live.prompt_token_ids,
                outputs=[Completion(finish_reason=FinishReason.ERROR)],
                error=reason,
            )
            failed.append(Finished(live.ticket, result))
        self._live, self._ids, self._refused = {}, {}, []
        for item in failed:
            self._metrics.observe(item.result)
        return failed

    def metrics(self) -> str:
        """Counters of engine and requests in the Prometheus text format."""
        return exposition(self.engine.stats()) + self._metrics.exposition()

    # -- the way in -----------------------------------------------------------------------

    def _new_ticket(self, request_id: str | None) -> tuple[int, str]:
        ticket = self._num_tickets
        self._num_tickets += 1
        if request_id is None:
            request_id = f"request-{ticket}"
            while request_id in self._live:
                request_id += "'"
        return ticket, request_id

    def _refuse(self, ticket: int, request_id: str, reason: str, prompt: str | None) -> None:
        self._refused.append(Finished(ticket, refused(request_id, reason, prompt)))

    def _stop_strings(self, sampling: SamplingParams) -> StopStrings | None:
        strings = (sampling.stop,) if isinstance(sampling.stop, str) else tuple(sampling.stop)
        if not strings:
            return None
        if self.tokenizer is None:
            raise ValueError("this model has no tokenizer: use stop_token_ids instead of stop")
        if strings not in self._stops:
            if len(self._stops) >= MAX_STOP_SETS:
                self._stops.clear()
            self._stops[strings] = StopStrings(strings)
        return self._stops[strings]

    def _add(
        self,
        ticket: int,
        request_id: str,
        prompt: Prompt,
        text: str | None,
        token_ids: Sequence[int],
        stops: StopStrings | None,
        stream: bool,
    ) -> None:
        now = self.engine.clock.now()
        self.engine.add(
            Request(
                id=request_id,
                prompt_token_ids=token_ids,
                sampling=prompt.sampling,
                arrival=now,
                client=prompt.client,
                priority=prompt.priority,
                deadline=None if prompt.deadline is None else now + prompt.deadline,
                expected_output_tokens=prompt.expected_output_tokens,
                stream=stream or stops is not None or self._token_times,
                arguments=prompt.arguments,
            )
        )
        follows = stream or stops is not None
        self._ids[ticket] = request_id
        self._live[request_id] = _Live(
            ticket=ticket,
            prompt_text=text,
            prompt_token_ids=tuple(map(int, token_ids)),
            sampling=prompt.sampling,
            show=stream,
            text=self._text_stream(prompt.sampling, stops) if follows else None,
        )

    def _text_stream(
        self, sampling: SamplingParams, stops: StopStrings | None
    ) -> TextStream | None:
        if self.tokenizer is None:
            return None
        return TextStream(
            self.tokenizer,
            stop=stops,
            include_stop=sampling.include_stop_str_in_output,
            min_tokens=getattr(sampling, "min_tokens", 0),
            skip_special_tokens=sampling.skip_special_tokens,
        )

    # -- the way out ----------------------------------------------------------------------

    def _take_delta(self, delta: TokenDelta, end: RequestOutput | None, step: SessionStep) -> None:
        live = self._live.get(delta.id)
        if live is None:
            return
        now = step.report.committed if step.report is not None else self.engine.clock.now()
        token_ids = delta.token_ids.tolist()
        shown = ""
        if live.text is not None:
            if live.text.match is not None:
                return
            num_before = len(live.text.token_ids)
            silent = end is not None and end.finish_reason is FinishReason.STOP
            shown = live.text.push(token_ids[:-1] if silent else token_ids)
            if live.text.match is not None:
                token_ids = token_ids[: max(0, len(live.text.token_ids) - num_before)]
                if end is None:
                    self.engine.finish(delta.id, len(live.text.token_ids), FinishReason.STOP)
        if self._token_times:
            live.times.extend([now] * len(token_ids))
        if live.show:
            step.deltas.append(TextDelta(live.ticket, delta.id, shown, tuple(token_ids), now))

    def _take_end(self, output: RequestOutput, step: SessionStep) -> None:
        live = self._live.pop(output.id, None)
        if live is None:
            return
        del self._ids[live.ticket]
        rest = live.text.finish() if live.text is not None else ""
        if rest and live.show:
            step.deltas.append(TextDelta(live.ticket, output.id, rest, (), output.finished))
        completion = self._completion(live, output)
        result = RequestResult(
            request_id=output.id,
            prompt=live.prompt_text,
            prompt_token_ids=live.prompt_token_ids,
            outputs=[completion],
            error=output.error,
            timings=make_timings(output, len(completion.token_ids), live.times),
            num_cached_tokens=output.num_cached_tokens,
            num_preemptions=output.num_preemptions,
        )
        step.finished.append(Finished(live.ticket, result))

    def _completion(self, live: _Live, output: RequestOutput) -> Completion:
        token_ids = tuple(output.token_ids.tolist())
        ended_well = output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        if live.text is not None and live.text.match is not None and ended_well:
            return Completion(
                text=live.text.text,
                token_ids=token_ids[: len(live.text.token_ids)],
                finish_reason=FinishReason.STOP,
                stop_reason=live.text.match,
            )
        stopped = output.finish_reason is FinishReason.STOP
        ending = token_ids[-1] if stopped and token_ids else None
        return Completion(
            text=self._text(live, token_ids[:-1] if stopped else token_ids),
            token_ids=token_ids,
            finish_reason=output.finish_reason,
            stop_reason=ending if ending in live.sampling.stop_token_ids else None,
        )

    def _text(self, live: _Live, token_ids: Sequence[int]) -> str:
        if live.text is not None:
            return live.text.text
        if self.tokenizer is None:
            return ""
        skip = live.sampling.skip_special_tokens
        return self.tokenizer.decode(token_ids, skip_special_tokens=skip)


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
            report.preemptions,
            (report.committed - report.planned) * 1e3,
        )
    for item in step.finished:
        completion = item.result.outputs[0]
        logger.debug(
            "request %s: %s after %d tokens%s",
            item.result.request_id,
            completion.finish_reason,
            len(completion.token_ids),
            f": {item.result.error}" if item.result.error else "",
        )
