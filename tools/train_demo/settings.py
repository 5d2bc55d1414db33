"""Everything that decides what the trained model looks like, in one place."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

END_OF_TEXT = "<|endoftext|>"
DEFAULT_PROMPT = "And it came to pass, as he went by the way, that"

# Prompts of the sampled figures. None of them is there to be continued from memory.
SAMPLE_PROMPTS = (
    DEFAULT_PROMPT,
    "And it came to pass, when the king",
    "Then the woman said unto him,",
    "Blessed is the man that",
    "Now there was a certain man in the city,",
    "And the children of Israel",
    "A wise son",
    "Then answered Jesus and said,",
)


@dataclass(frozen=True)
class Settings:
    """Shape, data and schedule of one training run."""

    seed: int = 20
    # Shape: a Qwen3 model.
    vocab_size: int = 4096
    hidden_size: int = 256
    num_layers: int = 5
    intermediate_size: int = 768
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    context: int = 2048
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    # Schedule. Dropout exists during training only: the shape of the model does not know it.
    epochs: float = 25.0
    batch_size: int = 8
    learning_rate: float = 2e-3
    warmup_steps: int = 100
    weight_decay: float = 1.0
    dropout: float = 0.2
    init_std: float = 0.02
    clip_norm: float = 1.0


def override(settings: Settings, assignments: list[str]) -> Settings:
    """Apply ``name=value`` texts; the type of a value is the type of the default."""
    kinds = {field.name: type(getattr(settings, field.name)) for field in fields(settings)}
    changes = {}
    for text in assignments:
        name, _, value = text.partition("=")
        if name not in kinds:
            raise SystemExit(f"no setting {name!r}; there are {', '.join(kinds)}")
        changes[name] = kinds[name](value)
    return replace(settings, **changes)
