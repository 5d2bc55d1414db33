"""`/v1/completions`: a prompt, or several, continued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from starlette.requests import Request
from starlette.responses import Response

from nanofw.llm.logprobs import PositionLogprobs
from nanofw.llm.prompts import Prompt
from nanofw.llm.results import Completion, RequestResult, StreamEvent
from nanofw.narrowing import JsonObject
from nanofw.server.answers import AnswerPlan, serve_text
from nanofw.server.formats import Format
from nanofw.server.logprobs import for_completion
from nanofw.server.parameters import completion_records
from nanofw.server.reading import Reader
from nanofw.server.schemas import CompletionRequest
from nanofw.text.tokenizer import Tokenizer


@dataclass(slots=True, kw_only=True)
class CompletionFormat(Format):
    """Answers of `/v1/completions`.

    Attributes:
        echo: the answers begin with their prompts.
        no_output: the answers are their prompts alone (`max_tokens: 0`).
        tokenizer: for the texts of prompts that came as token ids.
    """

    echo: bool = False
    no_output: bool = False
    tokenizer: Tokenizer | None = None
    echoed: list[str] = field(default_factory=list[str], init=False)
    """The texts of the prompts, for `echo`."""
    offsets: dict[int, int] = field(default_factory=dict[int, int], init=False)
    """Characters of each choice that were sent."""

    def _id_prefix(self) -> str:
        return "cmpl"

    def _object(self, *, is_chunk: bool) -> str:
        return "text_completion"

    def begin(self, prompts: Sequence[Prompt]) -> None:
        if self.echo:
            self.echoed = [self._text(prompt) for prompt in prompts]

    def _text(self, prompt: Prompt) -> str:
        if prompt.text is not None or self.tokenizer is None:
            return prompt.text or ""
        known = [int(i) for i in prompt.token_ids or () if 0 <= i < self.tokenizer.vocab_size]
        return self.tokenizer.decode(known)

    def opening(self, number: int) -> list[dict[str, object]]:
        if not self.echo:
            return []
        text = self.echoed[number]
        return [self._text_event(self.index(number, i), text) for i in range(self.num_samples)]

    def _text_event(self, index: int, text: str, logprobs: object = None) -> dict[str, object]:
        return self.event(
            {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}
        )

    def piece(self, number: int, event: StreamEvent) -> list[JsonObject]:
        ids = {"token_ids": event.token_ids} if self.token_ids and event.token_ids else {}
        if not event.text and not event.logprobs and not ids:
            return []
        index, logprobs = self.index(number, event.index), None
        if event.logprobs is not None:
            offset = self.offsets.get(index, 0)
            logprobs = for_completion(event.logprobs, offset=offset)
            self.offsets[index] = offset + sum(map(len, logprobs["tokens"]))
        piece = {"index": index, "text": event.text, "logprobs": logprobs, "finish_reason": None}
        return [self.event({**piece, **ids})]

    def ending(self, number: int, result: RequestResult) -> list[dict[str, object]]:
        return [
            self.event(
                {
                    "index": self.index(number, output.index),
                    "text": "",
                    "logprobs": None,
                    **self.reasons(output),
                    **self.ids(output, result),
                }
            )
            for output in result.outputs
        ]

    def choices(self, number: int, result: RequestResult) -> list[dict[str, object]]:
        return [self._choice(number, result, output) for output in result.outputs]

    def _choice(self, number: int, result: RequestResult, output: Completion) -> dict[str, object]:
        if self.no_output:
            nothing: list[PositionLogprobs] | None = None if output.logprobs is None else []
            output = replace(output, text="", token_ids=(), logprobs=nothing)
        echoed = self.echoed[number] if self.echo else ""
        return {
            "index": self.index(number, output.index),
            "text": echoed + output.text,
            "logprobs": self._logprobs(result, output),
            **self.reasons(output),
            **self.ids(output, result),
        }

    def _logprobs(self, result: RequestResult, output: Completion) -> dict[str, object] | None:
        if output.logprobs is None:
            return None
        positions = [*(result.prompt_logprobs or ()), *output.logprobs]
        first = ""
        if result.prompt_logprobs and self.tokenizer is not None:
            first = self.tokenizer.decode(result.prompt_token_ids[:1], skip_special_tokens=False)
        return for_completion(positions, first)

    def reasons(self, output: Completion) -> dict[str, object]:
        if self.no_output:
            return {"finish_reason": "length", "stop_reason": None}
        return Format.reasons(self, output)

    def num_dropped(self, results: Sequence[RequestResult]) -> int:
        return sum(result.num_output_tokens for result in results) if self.no_output else 0


def completion_plan(reader: Reader, body: CompletionRequest, client: str) -> AnswerPlan:
    """What a completion asks for. Raises `ApiError`."""
    answer = CompletionFormat(
        model=reader.check_model(body.model),
        num_samples=body.n or 1,
        token_ids=bool(body.return_token_ids),
        echo=bool(body.echo),
        no_output=body.max_tokens == 0,
        tokenizer=reader.llm.tokenizer,
    )
    records = completion_records(body, reader.limits, client)
    return AnswerPlan(records, reader.defaults.completion, answer)


async def completions(request: Request) -> Response:
    """The endpoint."""
    return await serve_text(request, CompletionRequest, completion_plan)
