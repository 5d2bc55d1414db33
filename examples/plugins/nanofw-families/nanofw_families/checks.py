"""Small checkpoints of both families, for `nanofw plugins test`."""

from __future__ import annotations

from typing import ClassVar

from nanofw.testing import ModelChecks
from nanofw_families.readers import read_gpt_neox, read_qwen3_moe


class GPTNeoXChecks(ModelChecks):
    name = "GPTNeoXForCausalLM"
    reader = read_gpt_neox
    config_json: ClassVar = {"hidden_size": 64, "hidden_act": "gelu", "rotary_pct": 0.5}


class Qwen3MoeChecks(ModelChecks):
    name = "Qwen3MoeForCausalLM"
    reader = read_qwen3_moe
    config_json: ClassVar = {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    }
