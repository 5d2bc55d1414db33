"""A prompt that ends within its last message, for the model to continue it."""

from __future__ import annotations

from collections.abc import Sequence

from nanofw.errors import shown
from nanofw.narrowing import is_list, is_object
from nanofw.text.messages import REASONING_KEYS

_MARK = "<<NANOFW:CONTINUE:HERE>>"
_TAIL = f"{_MARK} "
"""Where the last message's text ends. The blank tells whether the template trims the text."""


def with_mark(
    messages: Sequence[dict[str, object]], key: str, source: str
) -> tuple[list[dict[str, object]], str]:
    """Messages whose last one ends with a mark, and its text without it.

    Args:
        key: of the last message: `content`, or one of its reasoning.
        source: the template's.

    Raises:
        ValueError: there is no text that the template shows.
    """
    last = dict(messages[-1])
    value = last.get(key)
    if value is None:
        raise ValueError(f"the last message has no {shown(key)} to be continued")
    keys = [key]
    if key in REASONING_KEYS:
        keys = [name for name in REASONING_KEYS if last.get(name) == value]
    if not any(name in source for name in keys):
        raise ValueError(f"the chat template does not read {shown(key)} of a message")
    if is_list(value):
        last[key], text = _mark_part(value)
    elif isinstance(value, str):
        last |= dict.fromkeys(keys, value + _TAIL)
        text = value
    else:
        raise ValueError("the last message must have text to be continued")
    return [*messages[:-1], last], text


def _mark_part(parts: Sequence[object]) -> tuple[list[object], str]:
    """The parts with a mark in the last one that has text, and that text."""
    made = list(parts)
    for place in range(len(made) - 1, -1, -1):
        part = made[place]
        text = part.get("text") if is_object(part) else None
        if is_object(part) and isinstance(text, str):
            made[place] = {**part, "text": text + _TAIL}
            return made, text
    raise ValueError("the last message must have text to be continued")


def cut_at_mark(text: str, last: str) -> str:
    """The rendered text up to the mark; blanks before it go where the template trims texts.

    Raises:
        ValueError: the template does not show the last message as it is.
    """
    place = text.rfind(_MARK)
    if place < 0 or last.strip() not in text:
        raise ValueError("the chat template does not show the last message as it is")
    if text.startswith(_TAIL, place):
        return text[:place]
    return text[:place].rstrip()
