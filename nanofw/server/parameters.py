"""From a request's parameters to prompts for `AsyncLLM`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from nanofw.config.load import LoadedConfig
from nanofw.config.schema import ServerLimits
from nanofw.config.source import DEFAULT
from nanofw.contracts.requests import SamplingParams
from nanofw.engine.request_checks import is_finite
from nanofw.narrowing import JsonObject
from nanofw.server.errors import ApiError
from nanofw.server.schemas import (
    ChatRequest,
    CompletionRequest,
    EngineRequest,
    Generation,
    JsonObjectFormat,
    JsonSchemaFormat,
    TokenizeRequest,
)

SAMPLING_NAMES = (
    "n",
    "stop",
    "seed",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "bad_words",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
)
"""Parameters that are those of `SamplingParams`."""
REQUEST_NAMES = ("priority", "expected_output_tokens", "cache_salt")
TEMPLATE_NAMES = ("chat_template", "add_generation_prompt", "continue_final_message")
COMPLETION_TOKENS = 16
"""`max_tokens` of a completion that says nothing, where the configuration says nothing either."""
Texts: TypeAlias = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
MAX_TOP_LOGPROBS = 20
STRUCTURED = "structured"
"""The logits processor that constrains answers."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Sampling of requests that say nothing: the configuration's, else OpenAI's.

    Attributes:
        completion, chat: they differ in `max_tokens` alone.
        can_constrain: the run has the logits processor `structured`.
    """

    completion: SamplingParams
    chat: SamplingParams
    can_constrain: bool

    @classmethod
    def of(cls, loaded: LoadedConfig, sampling: SamplingParams) -> Defaults:
        """Those of a run.

        Args:
            sampling: the engine's, for which values that its sampler lacks were left out.
        """

        def is_set(name: str) -> bool:
            return loaded.values.source(("sampling", name)) != DEFAULT

        neutral = SamplingParams()
        names = [name for name in ("temperature", "top_p") if not is_set(name)]
        base = replace(sampling, **{name: getattr(neutral, name) for name in names})
        return cls(
            base if is_set("max_tokens") else replace(base, max_tokens=COMPLETION_TOKENS),
            base if is_set("max_tokens") else replace(base, max_tokens=None),
            any(section.name == STRUCTURED for section in loaded.config.logits_processors),
        )


def engine_record(request: EngineRequest, limits: ServerLimits, client: str) -> JsonObject:
    """The keys of a prompt that all requests share.

    Raises:
        ApiError: a value is out of bounds.
    """
    record: JsonObject = {"client": client}
    for name in REQUEST_NAMES:
        value = getattr(request, name)
        if value is not None:
            record[name] = value
    if request.deadline_s is not None:
        if not is_finite(request.deadline_s) or request.deadline_s <= 0:
            raise ApiError(400, "deadline_s must be a number above 0", param="deadline_s")
        record["deadline"] = request.deadline_s
    if request.arguments:
        _check_bytes(request.arguments, "arguments", limits)
        record["arguments"] = dict(request.arguments)
    return record


def common_record(request: Generation, limits: ServerLimits, client: str) -> JsonObject:
    """The keys of a prompt that completions and chats share. Raises as `engine_record`."""
    record = engine_record(request, limits, client)
    for name in SAMPLING_NAMES:
        value = getattr(request, name)
        if value is not None:
            record[name] = value
    stops = record.get("stop", ())
    if not isinstance(stops, str) and len(stops) > limits.max_stop_strings:
        raise ApiError(
            400,
            f"stop has {len(stops)} strings; at most {limits.max_stop_strings} are read",
            param="stop",
        )
    return record


def completion_records(
    request: CompletionRequest, limits: ServerLimits, client: str
) -> list[JsonObject]:
    """A prompt of `AsyncLLM` for each prompt of a completion."""
    common = common_record(request, limits, client)
    if request.max_tokens is not None:
        common["max_tokens"] = request.max_tokens
    if request.max_tokens == 0:
        if not request.echo or request.stream:
            reason = "max_tokens is 0; it must be at least 1, or come with echo and no stream"
            raise ApiError(400, reason, param="max_tokens")
        common["max_tokens"] = 1  # its token is left out of the answer
    if request.logprobs is not None:
        common["logprobs"] = request.logprobs
        if request.echo:
            if request.stream:
                reason = "echo with logprobs cannot be streamed: leave stream out"
                raise ApiError(400, reason, param="echo")
            common["prompt_logprobs"] = request.logprobs
    return [{**prompt, **common} for prompt in prompt_records(request.prompt, "prompt", limits)]


def prompt_records(prompt: Texts, param: str, limits: ServerLimits) -> list[JsonObject]:
    """A record for each text, or list of token ids, that a parameter has.

    Raises:
        ApiError: there are none, or too many.
    """
    if isinstance(prompt, str):
        return [{"prompt": prompt}]
    if not prompt:
        raise ApiError(400, f"{param} is an empty list", param=param)
    if isinstance(prompt[0], int):
        return [{"prompt_token_ids": prompt}]
    if len(prompt) > limits.max_prompts:
        reason = f"{param} has {len(prompt)} prompts; at most {limits.max_prompts} are taken"
        raise ApiError(400, reason, param=param)
    key = "prompt" if isinstance(prompt[0], str) else "prompt_token_ids"
    return [{key: item} for item in prompt]


def chat_record(
    request: ChatRequest, limits: ServerLimits, client: str, defaults: Defaults
) -> JsonObject:
    """The prompt of `AsyncLLM` for a chat."""
    record = {**common_record(request, limits, client), **template_record(request, limits)}
    most = [n for n in (request.max_completion_tokens, request.max_tokens) if n is not None]
    if most:
        if len(set(most)) > 1:
            reason = "max_completion_tokens and max_tokens differ; give one of them"
            raise ApiError(400, reason, param="max_completion_tokens")
        record["max_tokens"] = most[0]
    if request.logprobs:
        record["logprobs"] = request.top_logprobs or 0
    elif request.top_logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    if not 0 <= (request.top_logprobs or 0) <= MAX_TOP_LOGPROBS:
        reason = f"top_logprobs must be from 0 to {MAX_TOP_LOGPROBS}"
        raise ApiError(400, reason, param="top_logprobs")
    schema = _format_schema(request)
    if schema is not None:
        constrain(record, {"json_schema": schema}, "response_format", limits, defaults)
    return record


def template_record(request: ChatRequest | TokenizeRequest, limits: ServerLimits) -> JsonObject:
    """The keys of a prompt that its chat template reads."""
    messages = request.messages or []
    if not messages:
        raise ApiError(400, "messages must not be empty", param="messages")
    if len(messages) > limits.max_messages:
        reason = f"messages has {len(messages)} of them; at most {limits.max_messages} are read"
        raise ApiError(400, reason, param="messages")
    record: JsonObject = {"messages": messages}
    for name in TEMPLATE_NAMES:
        value = getattr(request, name)
        if value is not None:
            record[name] = value
    if request.continue_final_message and request.add_generation_prompt is None:
        record["add_generation_prompt"] = False
    if request.tools:
        if len(request.tools) > limits.max_tools:
            reason = f"tools has {len(request.tools)} of them; at most {limits.max_tools} are taken"
            raise ApiError(400, reason, param="tools")
        tools = [tool.model_dump(exclude_none=True) for tool in request.tools]
        _check_bytes(tools, "tools", limits)
        record["tools"] = tools
    if request.chat_template_kwargs:
        _check_bytes(request.chat_template_kwargs, "chat_template_kwargs", limits)
        record["chat_template_kwargs"] = dict(request.chat_template_kwargs)
    return record


def _format_schema(request: ChatRequest) -> Any:
    """The schema that the answer must match; None: any text."""
    match request.response_format:
        case JsonObjectFormat():
            return {"type": "object"}
        case JsonSchemaFormat(json_schema=wanted):
            return {} if wanted.schema_ is None else wanted.schema_
        case _:
            return None


def constrain(
    record: JsonObject,
    argument: JsonObject,
    param: str,
    limits: ServerLimits,
    defaults: Defaults,
) -> None:
    """Have the answer keep to a grammar.

    Args:
        argument: of the logits processor.
        param: that asks for it.
    """
    if not defaults.can_constrain:
        reason = (
            f"{param} needs the logits processor structured, which this server does not run: "
            "logits_processors: [{name: structured}] in its configuration"
        )
        raise ApiError(400, reason, param=param)
    if STRUCTURED in record.get("arguments", ()):
        reason = f"{param} and arguments.structured both constrain the answer; give one of them"
        raise ApiError(400, reason, param=param)
    _check_bytes(argument, param, limits)
    record["arguments"] = {**record.get("arguments", {}), STRUCTURED: argument}


def _check_bytes(value: object, param: str, limits: ServerLimits) -> None:
    try:
        size = len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"{param} cannot be read: {error}", param=param) from None
    if size > limits.max_schema_bytes:
        reason = f"{param} has {size} bytes; at most {limits.max_schema_bytes} are read"
        raise ApiError(400, f"{reason}: server.limits.max_schema_bytes", param=param)
