"""Where the requests of a run come from: prompts that are all there, or generated traffic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from nanofw.cli.inputs import InputPrompt
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import FinishReason, Request
from nanofw.contracts.workload import Workload
from nanofw.llm.prompts import Prompt
from nanofw.llm.refusals import chosen_ids, id_of, or_refused, unread
from nanofw.llm.results import RequestResult
from nanofw.llm.session import Session
from nanofw.measure.drive import Arrivals
from nanofw.text.messages import check_messages


class RequestSource(Protocol):
    """Hands requests to a session, in the order of their tickets, from 0."""

    @property
    def num_requests(self) -> int:
        """How many there will be in all."""
        ...

    @property
    def next_arrival(self) -> float | None:
        """When the next one comes, on the engine's clock; None: none that is known of."""
        ...

    def feed(self, session: Session) -> None:
        """Hand over those that have come by now."""
        ...

    def give_up(self, session: Session, reason: str) -> None:
        """The run has failed: end those that are known and were not handed over."""
        ...

    def finished(
        self, ticket: int, result: RequestResult, output: RequestOutput | None, now: float
    ) -> None:
        """A request finished; others may come because of it.

        Args:
            output: of the engine, for its first sample; None when the engine never had it.
        """
        ...

    def place(self, ticket: int) -> str:
        """Where a request comes from, for messages: `prompts.jsonl:3`."""
        ...


class PromptSource:
    """Prompts that are all there at the beginning.

    Args:
        read: from what was found to a prompt; raises ValueError where it cannot be served.
        stream: report texts as they come.
        add_prompt: told of each prompt that can be read, with its ticket and its text for readers.
        interrupted: asked before each prompt whether to stop.
    """

    def __init__(
        self,
        prompts: Sequence[InputPrompt],
        read: Callable[[InputPrompt], Prompt],
        *,
        stream: bool,
        add_prompt: Callable[[int, str], None],
        interrupted: Callable[[], bool],
    ) -> None:
        self._prompts, self._read = prompts, read
        self._stream, self._add_prompt, self._interrupted = stream, add_prompt, interrupted
        self._num_fed = 0

    @property
    def num_requests(self) -> int:
        return len(self._prompts)

    @property
    def next_arrival(self) -> float | None:
        return None

    def feed(self, session: Session) -> None:
        """Queue all prompts; those that cannot be served are refused alone."""
        if not self._num_fed:
            session.reserve(chosen_ids(item.value for item in self._prompts))
        for item in self._prompts[self._num_fed :]:
            if self._interrupted():
                return
            self._num_fed += 1
            if item.error is not None:
                session.refuse(item.error, id_of(item.value))
                continue
            prompt = or_refused(unread(item.value), partial(self._read, item))
            ticket = session.add_prompt(prompt, stream=self._stream and prompt.sampling.n == 1)
            if prompt.refusal is None:
                self._add_prompt(ticket, prompt_text(prompt))

    def give_up(self, session: Session, reason: str) -> None:
        """End the prompts that were not handed over."""
        for item in self._prompts[self._num_fed :]:
            session.refuse(reason, id_of(item.value), FinishReason.ERROR)
        self._num_fed = len(self._prompts)

    def finished(
        self, ticket: int, result: RequestResult, output: RequestOutput | None, now: float
    ) -> None:
        """Nothing follows."""

    def place(self, ticket: int) -> str:
        return self._prompts[ticket].place


class WorkloadSource:
    """Generated traffic, each request at its time."""

    def __init__(self, workload: Workload, logprobs: int | None) -> None:
        self._workload, self._arrivals = workload, Arrivals(workload)
        self._logprobs = logprobs
        self._requests: dict[int, Request] = {}

    @property
    def num_requests(self) -> int:
        return self._workload.num_requests

    @property
    def next_arrival(self) -> float | None:
        at = self._arrivals.next_arrival
        return at if math.isfinite(at) else None

    def feed(self, session: Session) -> None:
        for request in self._arrivals.due(session.engine.clock.now()):
            if self._logprobs is not None:
                sampling = replace(request.sampling, logprobs=self._logprobs)
                request = replace(request, sampling=sampling)
            self._requests[session.add_request(request)] = request

    def give_up(self, session: Session, reason: str) -> None:
        """Requests that have not come yet never will."""

    def finished(
        self, ticket: int, result: RequestResult, output: RequestOutput | None, now: float
    ) -> None:
        request = self._requests.pop(ticket)
        self._arrivals.finished(
            output
            or RequestOutput.of_unserved(request, result.finish_reason, now, error=result.error)
        )

    def place(self, ticket: int) -> str:
        return f"input.workload, request {ticket}"


def prompt_text(prompt: Prompt) -> str:
    """The prompt for readers: its text, the last message of a chat, or how many ids it has."""
    if prompt.text is not None:
        return prompt.text
    if prompt.token_ids is not None:
        return f"({len(prompt.token_ids)} token ids) "
    try:
        return f"{check_messages(prompt.messages)[-1].get('content')}\n"
    except ValueError:
        return ""
