"""OLMo 3: OLMo 2 with windows in three layers of four; a scaled rope is that of the fourth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nanofw.checkpoints.families.olmo2 import FAMILY as OLMO2
from nanofw.checkpoints.family import Family, LayerRopes
from nanofw.checkpoints.keys import ConfigKeys
from nanofw.checkpoints.layer_ropes import ropes_by_kind
from nanofw.checkpoints.windows import Windows, layer_kinds, windows_by_kind
from nanofw.contracts.model_spec import ModelSpec

_THETA = 500000.0
_EVERY = 4  # layers; the last of them has no window, and no key of the file changes it


def _ropes(keys: ConfigKeys, num_layers: int, head_dim: int) -> LayerRopes:
    # As in transformers, a theta at the top of the file is that of layers with full attention.
    thetas = {"full_attention": keys.value("rope_theta"), "sliding_attention": _THETA}
    return ropes_by_kind(keys, layer_kinds(keys, num_layers, _EVERY), head_dim, thetas=thetas)


def _windows(keys: ConfigKeys, num_layers: int) -> Windows:
    return windows_by_kind(keys, num_layers, _EVERY)


FAMILY = Family(
    architecture="Olmo3ForCausalLM",
    model_types=("olmo3",),
    defaults=MappingProxyType(
        {
            **OLMO2.defaults,
            "sliding_window": 4096,
            "layer_types": None,
            "rope_theta": 500000.0,
        }
    ),
    read_windows=_windows,
    rounds_head_dim=True,
    read_ropes=_ropes,
)


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a Olmo3; see `Family.read`."""
    return FAMILY.read(config_json, folder)
