"""GLM-4 of 2025: GLM with norms after attention and feed-forward part, too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nanofw.checkpoints.families.glm import FAMILY as GLM
from nanofw.checkpoints.family import Family
from nanofw.contracts.model_spec import ModelSpec

FAMILY = Family(
    architecture="Glm4ForCausalLM",
    model_types=("glm4",),
    defaults=GLM.defaults,
)


def read(config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """The description of a Glm4; see `Family.read`."""
    return FAMILY.read(config_json, folder)
