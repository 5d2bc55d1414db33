"""Keyword arguments of `LLM(...)` as nested configuration values."""

from __future__ import annotations

from collections.abc import Mapping

from nanofw.config.schema import Config, EngineSection, ModelSection
from nanofw.contracts.kinds import KINDS
from nanofw.errors import ConfigError
from nanofw.llm.elsewhere import ENGINE
from nanofw.llm.prompts import near_or_known

COMPONENTS = tuple(
    kind.section[0]
    for kind in KINDS.values()
    if len(kind.section) == 1 and not kind.is_list and kind.name != "model"
)
SECTIONS = tuple(name for name in Config.model_fields if name != "engine")


def nested_values(model: str | None, keywords: Mapping[str, object]) -> dict[str, object]:
    """The values that the keywords stand for.

    Keys of `engine` and `model` are keywords of their own (`max_num_seqs=64`,
    `dtype="float32"`); every other section is one keyword with a mapping, and a component may
    be given by its name alone (`scheduler="fcfs"`).

    Raises:
        ConfigError: an unknown keyword.
    """
    values: dict[str, object] = {}
    keys: dict[str, dict[str, object]] = {"model": {} if model is None else {"path": str(model)}}
    for name, value in keywords.items():
        value = _plain(value)
        if name in EngineSection.model_fields:
            keys.setdefault("engine", {})[name] = value
        elif name in ModelSection.model_fields:
            keys["model"][name] = value
        elif name in COMPONENTS and isinstance(value, str):
            values[name] = {"name": value}
        elif name in SECTIONS:
            values[name] = value
        else:
            raise _unknown(name)
    return {**keys, **values}


def _plain(value: object) -> object:
    """Types of torch by their name (`torch.bfloat16`), and numbers of numpy as Python's."""
    kind = type(value)
    if kind.__module__ == "torch" and kind.__name__ in ("dtype", "device"):
        return str(value).removeprefix("torch.")
    item: object = getattr(value, "item", None)
    if kind.__module__ == "numpy" and not getattr(value, "ndim", 1) and callable(item):
        return item()
    return value


def _unknown(name: str) -> ConfigError:
    if name in ENGINE:
        return ConfigError(f"LLM has no keyword {name!r}; here it is {ENGINE[name]}", key=name)
    known = [*EngineSection.model_fields, *ModelSection.model_fields, *SECTIONS]
    return ConfigError(f"LLM has no keyword {name!r}{near_or_known(name, known)}", key=name)
