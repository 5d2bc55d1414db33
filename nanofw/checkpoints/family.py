"""How one family of decoders reads its `config.json`: what each family module fills in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, cast

from nanofw.checkpoints.files import shown
from nanofw.checkpoints.generation import read_eos_token_ids
from nanofw.checkpoints.harmless import HARMLESS
from nanofw.checkpoints.keys import ConfigKeys
from nanofw.checkpoints.rope import USUAL_TYPES, reach, read_rope, unused_parameters
from nanofw.checkpoints.windows import Windows, no_windows
from nanofw.contracts.model_spec import BYTES_PER_ELEMENT, ModelSpec
from nanofw.errors import ModelError

CONFIG = "config.json"
SHAPE: Mapping[str, int] = MappingProxyType(
    {
        "vocab_size": 1 << 28,
        "hidden_size": 1 << 20,
        "intermediate_size": 1 << 24,
        "num_hidden_layers": 1 << 14,
        "num_attention_heads": 1 << 16,
        "max_position_embeddings": (1 << 40) - 1,  # `reach` has the bound and its reason
    }
)
"""The keys that give a decoder its shape, and the most that each may say."""
_MOST_HEAD_DIM = 1 << 16
_DTYPE_NAMES = {"half": "float16", "float": "float32"}
_ROPE_KEYS = frozenset(
    ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor",
     "original_max_position_embeddings")
)  # fmt: skip
_ACTIVATION_KEYS = ("hidden_act", "hidden_activation")
_MOST_NAMED = 12
LayerRopes: TypeAlias = "tuple[dict[str, object], tuple[Mapping[str, object] | None, ...]]"
"""The rope of a model, and that of each layer where they differ; None: no rotation."""


def no_values(keys: ConfigKeys) -> Mapping[str, object]:
    """The family has no keys of its own."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family's defaults and the meaning of its keys, as its transformers config class has them.

    `read` is the family's reader; its signature is that of the readers of plugins.

    Attributes:
        architecture: the class name in `architectures`; empty: whatever the file says.
        model_types: the values of `model_type` that mean this family.
        defaults: the value of each key that the file does not have. Every key that the family
            gives a meaning is here; a key that is not changes nothing in this family.
        read_windows: which layers attend to a window.
        rounds_head_dim: heads that do not divide the hidden size are as wide as fits.
        norm_eps_key, activation_key: what this family calls these two.
        rope_types: those that it may have.
        reach_is_stated: `max_position_embeddings` counts what a scaled rope reaches.
        read_ropes: the rope of the model, and of each layer where they differ, from the keys, the
            number of layers and the size of heads; None: all layers have the same.
        read_values: what only this family knows; of it, `soft_cap` bounds the attention's scores.
        num_mlp_matrices: of the feed-forward part: 3 with a gate, 2 without.
    """

    architecture: str
    model_types: tuple[str, ...]
    defaults: Mapping[str, object] = field(repr=False)
    read_windows: Callable[[ConfigKeys, int], Windows] = no_windows
    rounds_head_dim: bool = False
    norm_eps_key: str = "rms_norm_eps"
    activation_key: str = "hidden_act"
    rope_types: tuple[str, ...] = USUAL_TYPES
    reach_is_stated: bool = False
    read_ropes: Callable[[ConfigKeys, int, int], LayerRopes] | None = None
    read_values: Callable[[ConfigKeys], Mapping[str, object]] = no_values
    num_mlp_matrices: int = 3

    def read(self, config_json: Mapping[str, object], folder: Path) -> ModelSpec:
        """The description of a decoder of this family.

        Args:
            config_json: the parsed `config.json`.
            folder: where it lies, with `generation_config.json` beside it.

        Raises:
            ModelError: a value that describes no decoder, by file and key.
        """
        keys = ConfigKeys(config_json, str(folder / CONFIG), self.defaults)
        shape = self._shape(keys)
        num_kv_heads = self._num_kv_heads(keys, shape["num_attention_heads"])
        head_dim = self._head_dim(keys, shape)
        positions = shape["max_position_embeddings"]
        num_layers = shape["num_hidden_layers"]
        rope, ropes = self._ropes(keys, shape, head_dim)
        values = dict(self.read_values(keys))
        return ModelSpec(
            architecture=stated_architecture(config_json) or self.architecture,
            path=str(folder),
            dtype=_dtype(keys),
            vocab_size=shape["vocab_size"],
            hidden_size=shape["hidden_size"],
            intermediate_size=shape["intermediate_size"],
            num_layers=num_layers,
            num_heads=shape["num_attention_heads"],
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_model_len=positions if self.reach_is_stated else reach(rope, positions, keys.place),
            eos_token_ids=read_eos_token_ids(keys, folder, shape["vocab_size"]),
            norm_eps=keys.number(self.norm_eps_key),
            tie_word_embeddings=keys.flag("tie_word_embeddings"),
            attention_bias=keys.flag("attention_bias") if self.knows("attention_bias") else False,
            mlp_bias=keys.flag("mlp_bias") if self.knows("mlp_bias") else False,
            rope=MappingProxyType(rope),
            layer_ropes=ropes,
            sliding_windows=self.read_windows(keys, num_layers),
            soft_cap=cast("float | None", values.pop("soft_cap", None)),
            num_mlp_matrices=self.num_mlp_matrices,
            family_values=MappingProxyType(values),
            raw=MappingProxyType(self._raw(keys)),
            notes=self._notes(keys, rope),
        )

    def knows(self, key: str) -> bool:
        """Whether the key has a meaning in this family."""
        return key in self.defaults

    def known_keys(self, config_json: Mapping[str, object]) -> list[str]:
        """Keys of a file that mean something to this family, in the file's order."""
        return [key for key in config_json if self.knows(key) or key in SHAPE or key in _ROPE_KEYS]

    def foreign_keys(self, config_json: Mapping[str, object]) -> list[str]:
        """Keys of a file that say something and mean nothing to this family."""
        return sorted(
            key
            for key, value in config_json.items()
            if value not in (None, False, {}, [])
            and not (self.knows(key) or key in HARMLESS or key in _ROPE_KEYS)
            and not key.startswith("_")
        )

    def _ropes(self, keys: ConfigKeys, shape: Mapping[str, int], head_dim: int) -> LayerRopes:
        """The rope of the model, and that of each layer where they differ."""
        positions, num_layers = shape["max_position_embeddings"], shape["num_hidden_layers"]
        if self.read_ropes is not None:
            return self.read_ropes(keys, num_layers, head_dim)
        return read_rope(keys, positions, head_dim, self.rope_types), ()

    def _shape(self, keys: ConfigKeys) -> dict[str, int]:
        lacking = [key for key in SHAPE if keys.config.get(key) is None]
        missing = [key for key in lacking if key in keys.config or not self.knows(key)]
        if missing:
            raise ModelError(f"{keys.place} lacks {', '.join(missing)} (each an integer)")
        return {key: keys.count(key, most) for key, most in SHAPE.items()}

    def _num_kv_heads(self, keys: ConfigKeys, num_heads: int) -> int:
        key = "num_key_value_heads"
        is_null = key in keys.config and keys.config[key] is None
        if is_null or keys.value(key) is None:  # null means as many as query heads
            return num_heads
        num_kv_heads = keys.count(key, SHAPE["num_attention_heads"])
        if num_heads % num_kv_heads:
            source = "" if key in keys.config else f", the default of {self.architecture}"
            raise ModelError(
                f"{keys.place}: {num_heads} attention heads cannot share {num_kv_heads} KV heads "
                f"({key}{source})"
            )
        return num_kv_heads

    def _head_dim(self, keys: ConfigKeys, shape: Mapping[str, int]) -> int:
        if keys.value("head_dim") is None:
            hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
            if hidden % heads and not self.rounds_head_dim:
                raise ModelError(
                    f"{keys.place}: no head_dim, and hidden_size {hidden} is not a multiple of "
                    f"{heads} heads"
                )
            head_dim = hidden // heads
        else:
            head_dim = keys.count("head_dim", _MOST_HEAD_DIM)
        if head_dim < 2 or head_dim % 2:
            raise keys.error("head_dim", "even, for rotary positions", head_dim)
        return head_dim

    def _raw(self, keys: ConfigKeys) -> dict[str, object]:
        """The file, with the activation under this family's name for it, and no other."""
        for key in _ACTIVATION_KEYS:
            if not isinstance(keys.value(key), str | None):
                raise keys.error(key, "the name of an activation", keys.value(key))
        if not self.architecture:
            return dict(keys.config)
        others = [key for key in _ACTIVATION_KEYS if key != self.activation_key]
        raw = {key: value for key, value in keys.config.items() if key not in others}
        if self.defaults.get(self.activation_key) != "silu":
            raw[self.activation_key] = keys.value(self.activation_key)
        return raw

    def _notes(self, keys: ConfigKeys, rope: Mapping[str, object]) -> tuple[str, ...]:
        """Sentences about what is taken for granted or left aside."""
        notes = [
            f"{keys.place} lacks {key}: {self.defaults[key]} is taken, the default of "
            f"{self.architecture}"
            for key in SHAPE
            if key not in keys.config
        ]
        if self.architecture and (foreign := self.foreign_keys(keys.config)):
            notes.append(
                f"{keys.place}: {self.architecture} does not know {named(foreign)}: ignored"
            )
        if unused := unused_parameters(rope):
            notes.append(
                f"{keys.place}: rope type {rope['rope_type']} does not know {named(unused)}: "
                "ignored"
            )
        return tuple(notes)


def stated_architecture(config_json: Mapping[str, object]) -> str:
    """The first of `architectures`, or nothing."""
    names = config_json.get("architectures")
    first = cast("list[object]", names)[0] if isinstance(names, list) and names else ""
    return first if isinstance(first, str) else ""


def named(keys: list[str]) -> str:
    """Keys in a message, as many as fit."""
    more = len(keys) - _MOST_NAMED
    text = ", ".join(shown(key)[1:-1] for key in keys[:_MOST_NAMED])
    return text + (f" and {more} more" if more > 0 else "")


def _dtype(keys: ConfigKeys) -> str:
    """The element type; `dtype` counts before its old name `torch_dtype`."""
    key = "torch_dtype" if keys.config.get("dtype") is None else "dtype"
    value = keys.config.get(key)
    name = "float32" if value is None else value
    name = name.removeprefix("torch.") if isinstance(name, str) else shown(name)
    name = _DTYPE_NAMES.get(name, name)
    if name not in BYTES_PER_ELEMENT:
        raise ModelError(
            f"{keys.place}: {key}: weights in {shown(name)[1:-1]} are not supported; supported: "
            f"{', '.join(BYTES_PER_ELEMENT)}"
        )
    return name
