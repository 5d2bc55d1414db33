"""Refuse what cannot be measured with a configuration, before anything is measured."""

from __future__ import annotations

from nanofw.assembly import Selection
from nanofw.contracts.plan import Capacity
from nanofw.errors import ConfigError


def check_real(selection: Selection) -> None:
    """Raise ConfigError for a simulated run."""
    if selection.virtual_time:
        raise ConfigError(
            "a simulated run has no times to measure; choose another executor", key="executor.name"
        )


def check_rows(selection: Selection, batch_size: int, key: str) -> None:
    """Raise ConfigError when a batch is larger than the engine runs at once."""
    engine = selection.loaded.config.engine
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        most: int = getattr(engine, name)
        if batch_size > most:
            raise ConfigError(
                f"a batch of {batch_size} is above engine.{name}, {most}; set "
                f"engine.{name}={batch_size} or measure smaller batches",
                key=key,
            )


def check_length(selection: Selection, num_prompt: int, num_output: int, key: str) -> None:
    """Raise ConfigError when prompt and output do not fit in the model's length."""
    longest = selection.max_model_len
    if num_prompt + num_output > longest:
        tokens = "token" if num_output == 1 else "tokens"
        raise ConfigError(
            f"a prompt of {num_prompt} tokens and {num_output} {tokens} of output do not fit in "
            f"engine.max_model_len, {longest}; raise it if the model allows more, or measure "
            "shorter ones",
            key=key,
        )


def check_blocks(capacity: Capacity, batch_size: int, num_tokens: int, key: str) -> None:
    """Raise ConfigError when the KV of a batch does not fit at once."""
    needed = batch_size * -(-num_tokens // capacity.block_size)
    if needed > capacity.num_blocks:
        raise ConfigError(
            f"{batch_size} requests of {num_tokens} tokens need {needed} blocks of KV, there are "
            f"{capacity.num_blocks}: they would not run at once. Measure smaller batches or "
            "shorter requests, or make room (engine.memory_utilization, kv_allocator.num_blocks)",
            key=key,
        )
