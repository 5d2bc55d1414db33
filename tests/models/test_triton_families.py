"""Families whose attention needs something, through the fused entry of the backend `triton`."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanofw.attention_backends.gpu_manifest import attention_backend
from nanofw.plugins import Component
from tests.models.family_folders import write_family
from tests.models.forced import check_forced

TRITON = Component(plugin=next(item for item in attention_backend() if item.name == "triton"))
CHANGES = {"head_dim": 16, "num_hidden_layers": 2}
CASES = {
    "Gemma2": {"attn_logit_softcapping": 2.0, "sliding_window": 7},
    "Gemma3": {"sliding_window": 7},
    "SmolLM3": {"no_rope_layers": [0, 1]},
    "Glm": {},
    "Olmo2": {},
}
"""Bounded scores and windows; a rope by layer; none in a layer; a part of heads; whole norms."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of what padded lines hold
@pytest.mark.parametrize("family", CASES)
def test_logits_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = write_family(tmp_path, family, 1, **CHANGES, **CASES[family])
    check_forced(tmp_path, model, components={"attention_backend": TRITON})
