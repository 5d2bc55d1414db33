"""What each `rope_type` makes of the inverse frequencies of rotary position embedding.

A function per type, from `RopeSettings` to the inverse frequencies and a scale of cosines and
sines. The numbers are those of `transformers`, in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSettings:
    """What a rope type computes from.

    Attributes:
        parameters: those of `config.json`, beside type and theta.
        head_dim: elements that are rotated.
        theta: base of the frequencies.
        trained_len: positions of the model before its rope was scaled.
        run_len: positions of this run.
    """

    parameters: Mapping[str, Any]
    head_dim: int
    theta: float
    trained_len: int
    run_len: int

    def number(self, key: str, default: float | None = None) -> float:
        """A parameter, or its default where it is absent or null."""
        value = self.parameters.get(key)
        if value is None:
            assert default is not None, f"the reader of config.json lets no rope lack {key}"
            return default
        return float(value)

    def inverse(self, theta: float | None = None) -> torch.Tensor:
        """float32[head_dim / 2], theta^(-2i / head_dim): radians from a position to the next."""
        exponents = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        return 1.0 / (self.theta if theta is None else theta) ** exponents


Frequencies: TypeAlias = tuple[torch.Tensor, float]
"""Inverse frequencies float32[head_dim / 2], and what cosines and sines are multiplied by."""


def default(settings: RopeSettings) -> Frequencies:
    """Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding"."""
    return settings.inverse(), 1.0


def linear(settings: RopeSettings) -> Frequencies:
    """Positions are divided by a factor: Chen et al., "Extending Context Window of Large
    Language Models via Positional Interpolation"."""
    return settings.inverse() / settings.number("factor"), 1.0


def dynamic(settings: RopeSettings) -> Frequencies:
    """A larger theta for texts longer than those of training ("NTK-aware" scaling).

    The theta is that of a text as long as the run allows, for every position: keys in the cache
    keep the angles that later queries expect, and no angle depends on the batch, on chunks or
    on whose prefix was found. Up to the trained length nothing changes.
    """
    factor, dim = settings.number("factor"), settings.head_dim
    length = max(settings.run_len, settings.trained_len)
    stretch = factor * length / settings.trained_len - (factor - 1)
    return settings.inverse(settings.theta * stretch ** (dim / (dim - 2))), 1.0


def yarn(settings: RopeSettings) -> Frequencies:
    """Slow frequencies are divided by a factor, fast ones kept, a ramp between them.

    Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models".
    """
    factor, dim = settings.number("factor"), settings.head_dim
    low = _turning_index(settings, settings.number("beta_fast", 32.0))
    high = _turning_index(settings, settings.number("beta_slow", 1.0))
    if settings.parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001  # no ramp, but a step
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    plain = settings.inverse()
    return plain / factor * ramp + plain * (1 - ramp), _yarn_scale(settings, factor)


def llama3(settings: RopeSettings) -> Frequencies:
    """Long waves are divided by a factor, short ones kept, a blend between them.

    Grattafiori et al., "The Llama 3 Herd of Models", and the code published with it.
    """
    factor = settings.number("factor")
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    plain = settings.inverse()
    turns = settings.trained_len * plain / (2 * math.pi)  # within the trained length
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return plain / factor * (1 - share) + plain * share, 1.0


def longrope(settings: RopeSettings) -> Frequencies:
    """Each frequency is divided by a factor of its own: one set for runs within the trained
    length, another for longer ones.

    Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens". As with
    `dynamic`, the set is that of the longest text that the run allows, for every position.
    """
    trained = settings.trained_len
    which = "long_factor" if settings.run_len > trained else "short_factor"
    factors = torch.tensor(settings.parameters[which], dtype=torch.float32)
    stretch = settings.number("factor", 1.0)
    scale = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(trained))
    return settings.inverse() / factors, settings.number("attention_factor", scale)


ROPE_TYPES: dict[str, Callable[[RopeSettings], Frequencies]] = {
    "default": default,
    "linear": linear,
    "dynamic": dynamic,
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope,
}
"""Function of each rope type that `RotaryEmbedding` knows."""


def _turning_index(settings: RopeSettings, num_turns: float) -> float:
    """The index whose frequency turns so often within the trained length."""
    wave = settings.trained_len / (num_turns * 2 * math.pi)
    return settings.head_dim * math.log(wave) / (2 * math.log(settings.theta))


def _yarn_scale(settings: RopeSettings, factor: float) -> float:
    """What keeps the entropy of attention over longer texts."""
    if settings.parameters.get("attention_factor") is not None:
        return settings.number("attention_factor")
    mscale, all_dims = settings.number("mscale", 0.0), settings.number("mscale_all_dim", 0.0)
    if mscale and all_dims:
        return _temperature(factor, mscale) / _temperature(factor, all_dims)
    return _temperature(factor, 1.0)


def _temperature(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
