"""What a user may give as a prompt, and its one internal form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias, cast

import numpy as np

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.requests import Pooling, SamplingParams
from nanofw.engine.request_checks import by_token_id, is_finite
from nanofw.errors import RequestError, near, shown
from nanofw.llm.elsewhere import REQUEST, unknown_key
from nanofw.narrowing import JsonObject, is_list, is_object
from nanofw.text.stop import StopStrings

StopWhen: TypeAlias = Callable[[str, Sequence[int]], bool]
"""Whether a sample ends here, of its text and its token ids so far."""

PromptLike: TypeAlias = str | Sequence[int] | Mapping[str, object]
"""A text, token ids, or an object with one of `prompt`, `prompt_token_ids`, `messages` and
settings of this request."""

SAMPLING_NAMES = tuple(field.name for field in fields(SamplingParams))
CONTENT_NAMES = ("prompt", "prompt_token_ids", "messages")
CHAT_NAMES = (
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)
REQUEST_NAMES = (
    "id",
    "client",
    "priority",
    "deadline",
    "expected_output_tokens",
    "arguments",
    "cache_salt",
    "metadata",
    "stop_when",
)
RECORD_NAMES = (*CONTENT_NAMES, *CHAT_NAMES, *REQUEST_NAMES, "sampling", *SAMPLING_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt with its settings.

    As the user gave it, exactly one of text, token_ids and messages is there. `Encoder.encode`
    makes the token ids of a text or of messages, whose text it keeps.

    Attributes:
        chat: arguments of the chat template: tools, template and so on.
        id: the user's name for the request; None: one is given.
        deadline: seconds after its arrival by which it should be finished.
        arguments: what single plugins are told about it, by the plugin's name.
        metadata: whatever the user wants back with the result.
        cache_salt: requests of different salts share nothing in the prefix cache.
        pooling: its hidden states are wanted, pooled so, and no continuation.
        stop_when: a criterion in Python that ends a sample; asked after each step.
        stop_strings: those of `sampling`, once it is encoded; None when there are none.
        refusal: why it cannot be read or encoded; None when it can.
    """

    text: str | None = None
    token_ids: Sequence[int] | IntArray | None = None
    messages: Any = None
    chat: Mapping[str, Any] = field(default_factory=JsonObject)
    sampling: SamplingParams
    id: str | None = None
    client: str = ""
    priority: int = 0
    deadline: float | None = None
    expected_output_tokens: int | None = None
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])
    cache_salt: str = ""
    metadata: object = None
    pooling: Pooling | None = None
    stop_when: StopWhen | None = None
    stop_strings: StopStrings | None = None
    refusal: RequestError | None = None


def parse_prompt(
    value: object, sampling: object, arguments: Mapping[str, object] | None = None
) -> Prompt:
    """A prompt as the user gave it.

    Args:
        value: a `Prompt`, which is encoded already, stays as it is.
        sampling: `SamplingParams`, how it is sampled where it does not say otherwise.
        arguments: of plugins for which it brings none.

    Raises:
        ValueError: it is not a prompt, or has an unknown key.
    """
    if isinstance(value, Prompt):
        return value
    if not isinstance(sampling, SamplingParams):
        raise ValueError(f"sampling parameters are a SamplingParams object, not {shown(sampling)}")
    if arguments is not None and not is_object(arguments):
        raise ValueError(f"arguments are an object by the names of plugins, not {shown(arguments)}")
    prompt = _parsed(value, sampling)
    if not arguments:
        return prompt
    return replace(prompt, arguments={**_with_schemas(arguments), **prompt.arguments})


def _parsed(value: object, sampling: SamplingParams) -> Prompt:
    if isinstance(value, str):
        return Prompt(text=value, sampling=sampling)
    if is_object(value):
        return _from_record(value, sampling)
    if _is_sequence(value) or hasattr(value, "__array__"):
        return Prompt(token_ids=_ids(value), sampling=sampling)
    raise ValueError(
        f"a prompt is a string, a list of token ids or an object, not {type(value).__name__}"
    )


def with_fields(value: object, fields: Mapping[str, object]) -> object:
    """A prompt with further keys of a record, where it does not bring them itself."""
    if not fields:
        return value
    if not is_object(value):
        return {"prompt" if isinstance(value, str) else "prompt_token_ids": value, **fields}
    nested = value.get("sampling")
    own = {*value, *(nested if is_object(nested) else ())}
    return {**{name: item for name, item in fields.items() if name not in own}, **value}


def override_sampling(sampling: SamplingParams, values: Mapping[str, object]) -> SamplingParams:
    """Sampling parameters with some values replaced; ranges are checked at submission.

    Raises:
        ValueError: a name that is not a sampling parameter.
    """
    for name in values:
        if name in REQUEST:
            raise ValueError(f"unknown sampling parameter {name!r}; here it is {REQUEST[name]}")
        if name not in SAMPLING_NAMES:
            hint = near_or_known(str(name), SAMPLING_NAMES)
            raise ValueError(f"unknown sampling parameter {shown(name)}{hint}")
    return replace(sampling, **{name: _plain(name, value) for name, value in values.items()})


def near_or_known(name: str, known: Iterable[str]) -> str:
    """`; did you mean …` with the nearest known name, or the list of them."""
    names = sorted(known)
    return near(name, names, count=1) or f"; known: {', '.join(names)}"


def _from_record(record: Mapping[str, object], sampling: SamplingParams) -> Prompt:
    for name in record:
        if name not in RECORD_NAMES:
            raise ValueError(unknown_key(name, RECORD_NAMES, record))
    given = [name for name in CONTENT_NAMES if record.get(name) is not None]
    if len(given) != 1:
        what = " and ".join(given) if given else "none"
        raise ValueError(f"give exactly one of {', '.join(CONTENT_NAMES)}; there is {what}")
    if given != ["messages"] and (extra := [name for name in CHAT_NAMES if name in record]):
        raise ValueError(f"{extra[0]} goes with messages, not with {given[0]}")
    token_ids = record.get("prompt_token_ids")
    return Prompt(
        text=_text(record, "prompt"),
        token_ids=None if token_ids is None else _ids(token_ids),
        messages=record.get("messages"),
        chat=_chat_arguments(record),
        sampling=_record_sampling(record, sampling),
        **_request_fields(record),
    )


def _ids(value: object) -> Sequence[int]:
    if isinstance(value, np.ndarray):
        return cast("Sequence[int]", value)
    if hasattr(value, "__array__"):  # a tensor of torch, for example
        try:
            return cast("Sequence[int]", np.asarray(value))
        except (TypeError, RuntimeError) as error:
            raise ValueError(f"token ids must be a list of integers: {error}") from None
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise ValueError(f"token ids must be a list of integers, not {type(value).__name__}")
    token_ids = cast("Sequence[object]", value)
    if set(map(type, token_ids)) == {int}:  # the usual prompt, without a loop in Python
        return cast("Sequence[int]", token_ids)
    for token_id in token_ids:
        if isinstance(token_id, bool) or not isinstance(token_id, (int, np.integer)):
            raise ValueError(f"token ids must be integers, not {shown(token_id)}")
    return cast("Sequence[int]", token_ids)


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray))


def _record_sampling(record: Mapping[str, object], sampling: SamplingParams) -> SamplingParams:
    nested = _object(record, "sampling") or {}
    flat = {name: record[name] for name in SAMPLING_NAMES if name in record}
    if both := [name for name in flat if name in nested]:
        raise ValueError(f"{both[0]} is given twice, beside `sampling` and within it")
    return override_sampling(sampling, {**nested, **flat})


def _chat_arguments(record: Mapping[str, object]) -> dict[str, object]:
    arguments = dict(_object(record, "chat_template_kwargs") or {})
    for name in (*CHAT_NAMES, "messages", "template"):
        if name in arguments:
            raise ValueError(
                f"chat_template_kwargs has {name!r}, which is a key of the request itself"
            )
    for name in ("tools", "add_generation_prompt", "continue_final_message"):
        if name in record:
            arguments[name] = record[name]
    if "chat_template" in record:
        arguments["template"] = record["chat_template"]
    return arguments


def _request_fields(record: Mapping[str, object]) -> JsonObject:
    fields: JsonObject = {}
    for name in REQUEST_NAMES:
        if record.get(name) is not None:
            fields[name] = record[name]
    if isinstance(fields.get("id"), int) and not isinstance(fields["id"], bool):
        fields["id"] = shown(fields["id"])
    for name in ("id", "client", "cache_salt"):
        _text(fields, name)
    arguments = _object(fields, "arguments")
    if arguments is not None:
        fields["arguments"] = _with_schemas(arguments)
    if "stop_when" in fields and not callable(fields["stop_when"]):
        raise ValueError(
            "stop_when must be a function of a text and token ids, not "
            f"{shown(fields['stop_when'])}"
        )
    if "deadline" in fields and not is_finite(fields["deadline"]):
        raise ValueError(
            f"deadline must be a number of seconds that is finite, not {shown(fields['deadline'])}"
        )
    return fields


def _with_schemas(arguments: Mapping[str, object]) -> dict[str, object]:
    """Arguments of plugins with the JSON schema of each pydantic class in them."""
    return {key: _with_schema(item) for key, item in arguments.items()}


def _with_schema(value: object) -> object:
    schema: object = getattr(value, "model_json_schema", None)
    if isinstance(value, type) and callable(schema):
        return schema()
    return _with_schemas(value) if is_object(value) else value


def _text(record: Mapping[str, object], name: str) -> str | None:
    value = record.get(name)
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"{name} must be a string, not {shown(value)}")


def _object(record: Mapping[str, object], name: str) -> Mapping[str, object] | None:
    value = record.get(name)
    if value is None or is_object(value):
        return value
    raise ValueError(f"{name} must be an object, not {shown(value)}")


def _plain(name: str, value: object) -> object:
    """What JSON and YAML can say, as sampling parameters hold it."""
    if name == "stop" and isinstance(value, str):
        return (value,)
    if name == "logit_bias" and is_object(value):
        return by_token_id(value)
    return _tuples(value)


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if is_list(value) else value
