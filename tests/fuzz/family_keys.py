"""What the folder fuzzer knows of each family: its `model_type`, and the keys of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tests.fuzz.dice import ABSENT, Dice

Keys = dict[str, Any]
_TANH = "gelu_pytorch_tanh"


def _none(dice: Dice, config: Keys) -> Keys:
    return {}


@dataclass(frozen=True)
class FamilyKeys:
    """A family of the fuzzer.

    Attributes:
        model_type: what its files say.
        draw: keys of its own; they replace those that all families draw.
        num_heads: that the family's own number of KV heads divides.
    """

    model_type: str
    draw: Callable[[Dice, Keys], Keys] = _none
    num_heads: int = 4


def _odd_number(dice: Dice, *usual: Any) -> Any:
    return dice.rarely(dice.one(*usual), None, 0, -1.0, "2", share=0.05)


def _window(dice: Dice) -> Any:
    return dice.rarely(dice.one(ABSENT, 4, 8, 4096), None, 0, -1, "8")


def _gemma2(dice: Dice, config: Keys) -> Keys:
    return {
        "initializer_range": 0.15,
        "hidden_activation": dice.rarely(dice.one(ABSENT, _TANH), "gelu", None, "silu", share=0.05),
        "query_pre_attn_scalar": _odd_number(dice, ABSENT, 8, 24, 144),
        "attn_logit_softcapping": _odd_number(dice, ABSENT, None, 2.0, 50.0),
        "final_logit_softcapping": _odd_number(dice, ABSENT, None, 4.0, 30.0),
        "use_bidirectional_attention": dice.rarely(dice.one(ABSENT, None, False), True, "no"),
        "sliding_window": _window(dice),
        "sliding_window_pattern": dice.one(ABSENT, ABSENT, 2, 3),
    }


def _gemma3(dice: Dice, config: Keys) -> Keys:
    own = _gemma2(dice, config) | _ropes_by_kind(dice, config)
    own["rope_local_base_freq"] = dice.rarely(dice.one(ABSENT, 50.0, 10000), None, "5", share=0.04)
    own["sliding_window_pattern"] = dice.rarely(dice.one(ABSENT, 2, 3, 6), 0, None, "2")
    return own


def _ropes_by_kind(dice: Dice, config: Keys) -> Keys:
    """A rope for each kind of layer, at every place where a file may have it, or half of one."""
    if dice.random() < 0.1:
        return {}  # keys of one rope for all layers
    scaled = {dice.one("rope_type", "type"): "linear", "factor": dice.one(2.0, 4)}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    llama3 = yarn | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    kinds = {
        "full_attention": dice.one(scaled, yarn, llama3, {"rope_type": "default"}, {}),
        "sliding_attention": dice.one({"rope_type": "default"}, scaled),
    }
    for rope in kinds.values():
        if dice.random() < 0.6:
            rope.update(rope_theta=dice.one(40.0, 900, 10000.0))
    if dice.random() < 0.2:
        kinds.pop(dice.one(*kinds))
    kinds |= dice.rarely({}, {"full_attention": 3}, {"chunked_attention": {}}, share=0.05)
    none = {"rope_parameters": ABSENT, "rope_scaling": ABSENT, "partial_rotary_factor": ABSENT}
    where: Keys = dice.one(
        {"rope_parameters": kinds},
        {"rope_parameters": None, "rope_scaling": dice.one(scaled, yarn)},
        {"rope_scaling": dice.one(None, scaled, llama3)},
        {"rope_parameters": kinds, "rope_scaling": dice.one(scaled, {})},
        {},
    )
    return none | where | {"rope_theta": dice.one(ABSENT, 800.0, 20000)}


def _phi3(dice: Dice, config: Keys) -> Keys:
    share = dice.rarely(dice.one(ABSENT, 1.0, 0.5), 0.75, 1, None, 0.3, share=0.2)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    own: Keys = {
        "partial_rotary_factor": share,
        "max_position_embeddings": dice.one(64, 128, 512),
        "original_max_position_embeddings": dice.one(ABSENT, 16, 32, 64, 128),
    }
    if dice.random() < 0.8:  # heads of the hidden size, as all published files have them
        own["head_dim"] = dice.one(ABSENT, hidden // heads)
    own |= dice.rarely({"rope_scaling": ABSENT, "rope_parameters": ABSENT}, {})
    if dice.random() < 0.6:
        head_dim = own.get("head_dim", config.get("head_dim"))
        head_dim = head_dim if type(head_dim) is int and head_dim else hidden // heads
        known = share if isinstance(share, int | float) else 1.0
        count = dice.rarely(int(head_dim * known) // 2, 1, share=0.05)
        longrope = {
            dice.one("rope_type", "type"): dice.rarely("longrope", "su", "yarn", share=0.1),
            "short_factor": [1 + 0.1 * i for i in range(count)],
            "long_factor": [1.5 + 0.7 * i for i in range(count)],
        }
        if dice.random() < 0.2:
            longrope[dice.one("rope_theta", "factor", "attention_factor")] = dice.one(2.0, 3)
        if dice.random() < 0.15:
            longrope["original_max_position_embeddings"] = dice.one(16, 32)
        place = dice.one("rope_scaling", "rope_parameters")
        own |= {"rope_scaling": ABSENT, "rope_parameters": ABSENT, place: longrope}
    return own


def _olmo3(dice: Dice, config: Keys) -> Keys:
    return _ropes_by_kind(dice, config) | {
        "sliding_window": _window(dice),
        "sliding_window_pattern": dice.one(ABSENT, ABSENT, ABSENT, 2, 4),
    }


def _smollm3(dice: Dice, config: Keys) -> Keys:
    count = config["num_hidden_layers"] if isinstance(config["num_hidden_layers"], int) else 2
    named = [dice.one(0, 1) for _ in range(count)]
    return {
        "no_rope_layers": dice.rarely(
            dice.one(ABSENT, None, named), [*named, 1], named[:-1], [], "1", [True] * count
        ),
        "no_rope_layer_interval": dice.rarely(dice.one(ABSENT, 1, 2, 3), 0, None, -2, share=0.05),
    }


def _granite(dice: Dice, config: Keys) -> Keys:
    return {
        "embedding_multiplier": _odd_number(dice, ABSENT, 6.0, 12),
        "logits_scaling": _odd_number(dice, ABSENT, 4.0, 8),
        "residual_multiplier": _odd_number(dice, ABSENT, 0.4, 1),
        "attention_multiplier": _odd_number(dice, ABSENT, 0.1, 0.3),
    }


def _glm(dice: Dice, config: Keys) -> Keys:
    return {"partial_rotary_factor": dice.rarely(dice.one(ABSENT, 0.5, 1.0), 0.25, None, 0, 1)}


def _cohere2(dice: Dice, config: Keys) -> Keys:
    return {
        "sliding_window": _window(dice),
        "logit_scale": _odd_number(dice, ABSENT, 0.5, 1.0),
        "layer_norm_eps": dice.rarely(dice.one(ABSENT, 1e-4), None, "1e-5"),
        "sliding_window_pattern": dice.rarely(dice.one(ABSENT, 2, 3), 0, None, "2"),
        "use_qk_norm": dice.one(ABSENT, False),
        "use_embedding_sharing": dice.one(ABSENT, True),
    }


def _starcoder2(dice: Dice, config: Keys) -> Keys:
    return {
        "use_bias": dice.rarely(dice.one(ABSENT, True, False), None, "no", share=0.05),
        "norm_epsilon": dice.rarely(dice.one(ABSENT, 1e-4), None, "1e-5"),
        "hidden_act": dice.rarely(dice.one(ABSENT, _TANH), "gelu", "silu", None, share=0.05),
        "embedding_dropout": dice.one(ABSENT, 0.1),
    }


FAMILIES: Mapping[str, FamilyKeys] = MappingProxyType(
    {
        "Llama": FamilyKeys("llama"),
        "Mistral": FamilyKeys("mistral", num_heads=8),
        "Qwen2": FamilyKeys("qwen2", num_heads=32),
        "Qwen3": FamilyKeys("qwen3", num_heads=32),
        "Gemma2": FamilyKeys("gemma2", _gemma2),
        "Gemma3": FamilyKeys("gemma3_text", _gemma3),
        "Phi3": FamilyKeys("phi3", _phi3),
        "Olmo2": FamilyKeys("olmo2"),
        "Olmo3": FamilyKeys("olmo3", _olmo3),
        "SmolLM3": FamilyKeys("smollm3", _smollm3),
        "Granite": FamilyKeys("granite", _granite),
        "Glm": FamilyKeys("glm", _glm),
        "Glm4": FamilyKeys("glm4", _glm),
        "Cohere2": FamilyKeys("cohere2", _cohere2),
        "Starcoder2": FamilyKeys("starcoder2", _starcoder2),
    }
)
"""By the name before `ForCausalLM`."""
