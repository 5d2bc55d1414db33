"""Keyword arguments of `LLM(...)` as nested configuration values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanofw.config.schema import Config, EngineSection, ModelSection
from nanofw.errors import ConfigError
from nanofw.llm.prompts import near_or_known

COMPONENTS = ("scheduler", "kv_allocator", "attention_backend", "sampler", "executor")
SECTIONS = tuple(name for name in Config.model_fields if name != "engine")
ELSEWHERE = {
    "gpu_memory_utilization": "memory_utilization",
    "enforce_eager": "cuda_graphs=False",
    "block_size": 'kv_allocator={"name": "paged_prefix", "block_size": …}',
    "num_gpu_blocks_override": 'kv_allocator={"name": "paged_prefix", "num_blocks": …}',
    "enable_prefix_caching": 'kv_allocator="paged_prefix" or "paged"',
    "enable_chunked_prefill": 'batching="mixed" or "prefill_first"',
    "max_tokens": 'sampling={"max_tokens": …}',
    "temperature": 'sampling={"temperature": …}',
    "tokenizer": "the tokenizer.json in the model's folder",
    "quantization": "nothing: quantized checkpoints are not supported",
    "trust_remote_code": "nothing: code of a checkpoint is never run",
}
"""Keywords of other engines, and what stands for them here."""


def nested_values(model: str | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the keywords stand for.

    Keys of `engine` and `model` are keywords of their own (`max_num_seqs=64`,
    `dtype="float32"`); every other section is one keyword with a mapping, and a component may
    be given by its name alone (`scheduler="fcfs"`).

    Raises:
        ConfigError: an unknown keyword.
    """
    values: dict[str, Any] = {"model": {} if model is None else {"path": str(model)}}
    for name, value in keywords.items():
        if name in EngineSection.model_fields:
            values.setdefault("engine", {})[name] = value
        elif name in ModelSection.model_fields:
            values["model"][name] = value
        elif name in SECTIONS:
            _set_section(values, name, value)
        else:
            raise _unknown(name)
    return values


def _set_section(values: dict[str, Any], name: str, value: Any) -> None:
    if name in COMPONENTS and isinstance(value, str):
        value = {"name": value}
    if isinstance(value, Mapping) and isinstance(values.get(name), dict):
        values[name] |= value
    else:
        values[name] = value


def _unknown(name: str) -> ConfigError:
    if name in ELSEWHERE:
        return ConfigError(f"LLM has no keyword {name!r}; here it is {ELSEWHERE[name]}", key=name)
    known = [*EngineSection.model_fields, *ModelSection.model_fields, *SECTIONS]
    return ConfigError(f"LLM has no keyword {name!r}{near_or_known(name, known)}", key=name)
