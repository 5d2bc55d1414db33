"""`/v1/chat/completions`: a conversation continued through the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from nanofw.contracts.reply_format import ReasoningFormat, ToolCall, ToolFormat
from nanofw.llm.prompts import Prompt
from nanofw.llm.results import Completion, RequestResult, StreamEvent
from nanofw.narrowing import JsonObject
from nanofw.server.answers import AnswerPlan, serve_text
from nanofw.server.errors import ApiError
from nanofw.server.formats import Format
from nanofw.server.identifiers import new_identifier
from nanofw.server.logprobs import for_chat
from nanofw.server.parameters import STRUCTURED, chat_record
from nanofw.server.reading import Reader
from nanofw.server.schemas import ChatRequest
from nanofw.server.tool_choice import apply_tools
from nanofw.text.replies import ReplyPart, ReplyReader


@dataclass(slots=True, kw_only=True)
class ChatFormat(Format):
    """Answers of `/v1/chat/completions`.

    Attributes:
        tools: how calls are written; None: the request may not get any.
        reasoning: how reasoning is written with which replies may begin; None: they do not.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    in_reasoning: bool = field(default=False, init=False)
    """The prompt ends within the reasoning."""
    readers: dict[int, ReplyReader] = field(default_factory=dict[int, ReplyReader], init=False)
    """Of a stream, by sample."""

    def _id_prefix(self) -> str:
        return "chatcmpl"

    def _object(self, *, is_chunk: bool) -> str:
        return "chat.completion.chunk" if is_chunk else "chat.completion"

    def begin(self, prompts: Sequence[Prompt]) -> None:
        text = (prompts[0].text or "").rstrip()
        self.in_reasoning = self.reasoning is not None and text.endswith(self.reasoning.begin)

    def _reader(self) -> ReplyReader:
        return ReplyReader(self.tools, reasoning=self.reasoning, in_reasoning=self.in_reasoning)

    def opening(self, number: int) -> list[JsonObject]:
        self.readers = {index: self._reader() for index in range(self.num_samples)}
        delta = {"role": "assistant", "content": ""}
        return [self._delta(index, delta) for index in range(self.num_samples)]

    def _delta(self, index: int, delta: JsonObject, logprobs: Any = None) -> JsonObject:
        return self.event(
            {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        )

    def piece(self, number: int, event: StreamEvent) -> list[JsonObject]:
        reader = self.readers[event.index]
        num_before = reader.num_calls
        deltas = _deltas(reader.push(event.text), num_before)
        if not event.logprobs:
            return [self._delta(event.index, delta) for delta in deltas]
        first, *others = deltas or [{"content": ""}]
        return [
            self._delta(event.index, first, for_chat(event.logprobs)),
            *(self._delta(event.index, delta) for delta in others),
        ]

    def ending(self, number: int, result: RequestResult) -> list[JsonObject]:
        return [event for output in result.outputs for event in self._end_sample(output, result)]

    def _end_sample(self, output: Completion, result: RequestResult) -> list[JsonObject]:
        reader = self.readers[output.index]
        num_before = reader.num_calls
        deltas = _deltas(reader.finish(), num_before)
        choice: JsonObject = {
            "index": output.index,
            "delta": {},
            "logprobs": None,
            **self.reasons(output),
            **self.ids(output, result),
        }
        if reader.num_calls and choice["finish_reason"] == "stop":
            choice["finish_reason"] = "tool_calls"
        return [*(self._delta(output.index, delta) for delta in deltas), self.event(choice)]

    def choices(self, number: int, result: RequestResult) -> list[JsonObject]:
        return [self._choice(output, result) for output in result.outputs]

    def _choice(self, output: Completion, result: RequestResult) -> JsonObject:
        reply = self._reader().read(output.text)
        message: JsonObject = {
            "role": "assistant",
            "content": reply.content if reply.content or not reply.tool_calls else None,
            "refusal": None,
        }
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        reasons = self.reasons(output)
        if reply.tool_calls:
            message["tool_calls"] = [_call_record(call) for call in reply.tool_calls]
            if reasons["finish_reason"] == "stop":
                reasons["finish_reason"] = "tool_calls"
        return {
            "index": output.index,
            "message": message,
            "logprobs": None if output.logprobs is None else for_chat(output.logprobs),
            **reasons,
            **self.ids(output, result),
        }


def _deltas(parts: Sequence[ReplyPart], num_calls: int) -> list[JsonObject]:
    """What a stream says of parts of a reply.

    Args:
        num_calls: calls that came before them.
    """
    deltas: list[JsonObject] = []
    for part in parts:
        if part.call is not None:
            call = {"index": num_calls, **_call_record(part.call)}
            deltas.append({"tool_calls": [call]})
            num_calls += 1
        elif part.reasoning:
            deltas.append({"reasoning_content": part.reasoning})
        else:
            deltas.append({"content": part.content})
    return deltas


def _call_record(call: ToolCall) -> JsonObject:
    return {
        "id": f"call_{new_identifier()}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def chat_plan(reader: Reader, body: ChatRequest, client: str) -> AnswerPlan:
    """What a chat asks for. Raises `ApiError`."""
    record = chat_record(body, reader.limits, client, reader.defaults)
    _check_variables(record, body, reader)
    tools = apply_tools(record, body, reader)
    answer = ChatFormat(
        model=reader.check_model(body.model),
        num_samples=body.n or 1,
        token_ids=bool(body.return_token_ids),
        tools=tools,
        reasoning=None if STRUCTURED in record.get("arguments", ()) else reader.reasoning,
    )
    return AnswerPlan([record], reader.defaults.chat, answer)


def _check_variables(record: JsonObject, body: ChatRequest, reader: Reader) -> None:
    """Hand variables to the chat template, and refuse those that it does not read."""
    given: JsonObject = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        given["reasoning_effort"] = body.reasoning_effort
    for name in given:
        if name not in reader.llm.template_variables:
            param = name if name == "reasoning_effort" else "chat_template_kwargs"
            reason = f"the chat template of this model does not read {name[:128]!r}"
            raise ApiError(400, reason, param=param)
    if given:
        record["chat_template_kwargs"] = given


async def chat_completions(request: Request) -> Response:
    """The endpoint."""
    return await serve_text(request, ChatRequest, chat_plan)
