"""What the arguments of `LLM` and `AsyncLLM` stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import cast

from nanofw.config.load import LoadedConfig, load_config
from nanofw.contracts.requests import SamplingParams
from nanofw.errors import shown
from nanofw.llm.elsewhere import unknown_key
from nanofw.llm.keywords import nested_values
from nanofw.llm.prompts import CHAT_NAMES, RECORD_NAMES, REQUEST_NAMES, SAMPLING_NAMES

FIELD_NAMES = (*REQUEST_NAMES, *SAMPLING_NAMES)
"""Keys of a JSONL line that `generate` takes as keywords."""

CHAT_FIELD_NAMES = (*FIELD_NAMES, *CHAT_NAMES)
"""Those that `chat` takes."""

POOLED_FIELD_NAMES = (*(name for name in REQUEST_NAMES if name != "stop_when"), *CHAT_NAMES)
"""Those that `embed` and `score` take."""


def load(model: str | Path | LoadedConfig | None, keywords: Mapping[str, object]) -> LoadedConfig:
    """The configuration that the arguments of `LLM` stand for."""
    if isinstance(model, LoadedConfig):
        if keywords:
            raise ValueError("a loaded configuration takes no keywords; use from_config")
        return model
    return load_config(values=nested_values(None if model is None else str(model), keywords))


def as_list(prompts: object) -> list[object]:
    """One prompt or many, as a list; a flat list of integers is one prompt of token ids."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if getattr(prompts, "ndim", None) == 1 and hasattr(prompts, "__array__"):
        return [prompts]  # an array or a tensor of token ids
    if not _is_many(prompts):
        raise ValueError(
            f"prompts are a text, token ids, an object, or a list of them, not {shown(prompts)}"
        )
    wanted = list(cast("Iterable[object]", prompts))
    return [wanted] if wanted and all(map(_is_integer, wanted)) else wanted


def _is_many(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, AbstractSet))


def _is_integer(item: object) -> bool:
    """Numbers of numpy and torch, too, which have no dimensions, but no arrays of several."""
    return hasattr(item, "__index__") and not getattr(item, "ndim", 0)


def check_fields(
    fields: Mapping[str, object],
    known: Sequence[str],
    num_prompts: int,
    variables: Iterable[str] = (),
) -> None:
    """Raise ValueError for a keyword that is neither a key of a request nor the template's."""
    for name in fields:
        if name not in known and name not in variables:
            raise ValueError(unknown_key(name, (*known, *variables)))
    if "id" in fields and num_prompts != 1:
        raise ValueError(f"id names one request, and there are {num_prompts} prompts")


def chat_fields(
    fields: Mapping[str, object],
    num_chats: int,
    variables: Iterable[str],
    *,
    tools: object,
    template: str | None,
    template_kwargs: Mapping[str, object] | None,
) -> dict[str, object]:
    """What all chats of a call have in common, as keys of a record.

    Args:
        fields: keywords of the call: keys of a record, and variables of the chat template.
        variables: those that the model's template reads.
        tools, template, template_kwargs: arguments of the call.

    Raises:
        ValueError: a keyword that is neither.
    """
    check_fields(fields, CHAT_FIELD_NAMES, num_chats, variables)
    own = {name: item for name, item in fields.items() if name in RECORD_NAMES}
    for_template = {name: item for name, item in fields.items() if name not in own}
    return {
        **own,
        "chat_template_kwargs": {**for_template, **(template_kwargs or {})},
        "tools": tools,
        "chat_template": template,
    }


def params_for_each(
    given: object, default: SamplingParams, num_prompts: int
) -> list[SamplingParams]:
    """The sampling parameters of each prompt: one for all, one for each, or None: the default.

    Raises:
        ValueError: another number of them than of prompts, or something else.
    """
    if given is None or isinstance(given, SamplingParams):
        return [given or default] * num_prompts
    items = list(cast("Sequence[object]", given)) if isinstance(given, Sequence) else [given]
    listed = [item for item in items if isinstance(item, SamplingParams)]
    if len(listed) < len(items):
        what = shown(cast("object", given))
        raise ValueError(f"sampling parameters are SamplingParams objects, not {what}")
    if len(listed) != num_prompts:
        raise ValueError(f"{num_prompts} prompts, but {len(listed)} sampling parameters")
    return listed
