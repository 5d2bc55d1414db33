"""How long requests may be: by the configuration, by the model, by the pool of KV blocks."""

from __future__ import annotations

from nanofw.config.load import LoadedConfig
from nanofw.contracts.model_spec import ModelSpec


def max_model_len(loaded: LoadedConfig, spec: ModelSpec) -> int:
    """The largest number of tokens of a request, as the configuration or the model says.

    Raises:
        ConfigError: the model is shorter than what the configuration asks for.
    """
    asked = loaded.config.engine.max_model_len
    if asked is not None and asked > spec.max_model_len:
        raise loaded.error(
            f"{asked} is longer than the model, which supports {spec.max_model_len}",
            ("engine", "max_model_len"),
        )
    return asked or spec.default_model_len


def length_in_pool(loaded: LoadedConfig, wanted: int, num_blocks: int, block_size: int) -> int:
    """The largest number of tokens of a request, given the pool. The last token is never computed.

    Raises:
        ConfigError: the configuration asks for more.
    """
    most = num_blocks * block_size + 1
    if loaded.config.engine.max_model_len is not None and wanted > most:
        raise loaded.error(
            f"{wanted} tokens do not fit in the pool of {num_blocks} blocks of {block_size} "
            f"tokens; set it to {most} or less, or raise kv_allocator.num_blocks or "
            "engine.memory_utilization",
            ("engine", "max_model_len"),
        )
    return min(wanted, most)
