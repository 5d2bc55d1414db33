"""Messages of a conversation as templates take them: plain data, as `transformers` prepares it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from nanofw.errors import shown
from nanofw.narrowing import is_list, is_object

REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""Names under which messages bring their reasoning; templates read the first, or the second."""

TEXT_PARTS = ("text", "input_text", "output_text")


def check_messages(messages: object) -> list[dict[str, object]]:
    """The messages as a list of dictionaries of plain data, without the keys whose value is null.

    Raises:
        ValueError: no messages, or one that is not an object with a role.
    """
    if not is_list(messages):
        raise ValueError(f"messages must be a list of objects, not {type(messages).__name__}")
    if not messages:
        raise ValueError("messages must not be empty")
    return [_check_message(index, message) for index, message in enumerate(messages)]


def _check_message(index: int, message: object) -> dict[str, object]:
    fields = plain(message)
    if not is_object(fields):
        raise ValueError(_no_message(index, message))
    given = {key: item for key, item in fields.items() if item is not None}
    if not isinstance(given.get("role"), str):
        raise ValueError(_no_message(index, message))
    return given


def _no_message(index: int, message: object) -> str:
    return (
        f'message {index} must be an object with a role, {{"role": "user", '
        f'"content": "…"}}, not {shown(message)}'
    )


def plain(value: object) -> object:
    """The value as strings, numbers, lists and dictionaries of its own: templates see no objects.

    Dataclasses and pydantic objects are their fields; what else is not plain is named by its type.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    if is_object(value):
        return {plain(key): plain(item) for key, item in value.items()}
    if is_list(value):
        made = [plain(item) for item in value]
        return made if isinstance(value, list) else tuple(made)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    for name in ("model_dump", "item"):  # pydantic, numpy
        function: object = getattr(value, name, None)
        if callable(function) and not isinstance(value, type):
            return plain(function())
    return f"<{type(value).__name__}>"


def with_reasoning_names(messages: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Messages whose reasoning stands under each name that templates read."""
    made: list[dict[str, object]] = []
    for message in messages:
        found = [message[key] for key in REASONING_KEYS if message.get(key) is not None]
        if found:
            message = {"thinking": found[0], **message, "reasoning_content": found[0]}
        made.append(message)
    return made


def as_texts(messages: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Messages whose contents are texts, for templates that cannot read lists of parts.

    Raises:
        ValueError: a part that is not text.
    """
    return [
        {**message, "content": _joined(index, content)}
        if is_list(content := message.get("content"))
        else message
        for index, message in enumerate(messages)
    ]


def _joined(index: int, parts: Sequence[object]) -> str:
    return "\n".join(_part_text(index, part) for part in parts)


def _part_text(index: int, part: object) -> str:
    if isinstance(part, str):
        return part
    fields: Mapping[str, object] = part if is_object(part) else {}
    kind, text = fields.get("type", "text"), fields.get("text")
    if kind not in TEXT_PARTS or not isinstance(text, str):
        raise ValueError(
            f"message {index} has a part of type {shown(kind)}; the chat template of this model "
            "takes text alone"
        )
    return text
