"""Faults planted in the rendering of chats."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from nanofw.text import chat, template_environment
from nanofw.text import messages as text_messages
from tests.fuzz.chats import random_case, rendered_here, rendered_there
from tests.fuzz.planting import Planted


@cache
def expected(seed: int) -> str | None:
    """Of a seed, once for all faults."""
    return rendered_there(random_case(seed))


@contextlib.contextmanager
def opened() -> Iterator[Callable[[int], bool]]:
    yield lambda seed: rendered_here(random_case(seed)) != expected(seed)


PLANTED = Planted(opened)
plant = PLANTED.plant


@plant(text_messages, "_check_message")
def nulls_are_shown(usual: Any) -> Any:
    return lambda index, message: dict(message)


@plant(chat, "with_reasoning_names")
def reasoning_has_one_name(usual: Any) -> Any:
    return list


@plant(chat, "cut_at_mark")
def blanks_stay_before_the_mark(usual: Any) -> Any:
    return lambda text, last: text[: text.rfind("<<NANOFW")]


@plant(chat, "cut_at_mark")
def continued_texts_are_trimmed(usual: Any) -> Any:
    return lambda text, last: usual(text, last).rstrip()


@plant(chat, "with_mark")
def only_contents_are_continued(usual: Any) -> Any:
    return lambda given, key, source: usual(given, "content", source)


@plant(chat, "check_tools")
def tools_are_dropped(usual: Any) -> Any:
    return lambda tools: None


@plant(chat, "check_tools")
def tools_have_no_descriptions(usual: Any) -> Any:
    def check_tools(tools: Any) -> Any:
        found = usual(tools)
        for tool in found or ():
            tool.get("function", {}).pop("description", None)
        return found

    return check_tools


@plant(chat.ChatTemplate, "_can_read_parts")
def parts_are_always_joined(usual: Any) -> Any:
    return lambda self, name: False


@plant(template_environment, "_to_json")
def keys_are_sorted(usual: Any) -> Any:
    return lambda value, **options: usual(value, **{**options, "sort_keys": True})


@plant(template_environment, "_raise")
def refusals_of_the_template_are_ignored(usual: Any) -> Any:
    return lambda text: ""


@plant(chat, "plain")
def flags_become_numbers(usual: Any) -> Any:
    return lambda value: int(value) if isinstance(value, bool) else usual(value)


@plant(chat.ChatTemplate, "render")
def no_header_of_the_next_turn(usual: Any) -> Any:
    def render(self: Any, messages: Any, **arguments: Any) -> str:
        return usual(self, messages, **{**arguments, "add_generation_prompt": False})

    return render


@plant(chat.ChatTemplate, "render")
def variables_of_the_chat_are_lost(usual: Any) -> Any:
    known = ("tools", "add_generation_prompt", "continue_final_message", "template")

    def render(self: Any, messages: Any, **arguments: Any) -> str:
        kept = {name: value for name, value in arguments.items() if name in known}
        return usual(self, messages, **kept)

    return render


@plant(chat.ChatTemplate, "__init__")
def special_tokens_are_lost(usual: Any) -> Any:
    return lambda self, templates, variables: usual(self, templates, {})
