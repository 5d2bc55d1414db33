"""What the package offers. Light: torch is imported when a run has chosen a model."""

from __future__ import annotations

from nanofw.plugins import Plugin, hookimpl

CLAIMS = {
    "devices": ("*",),
    "dtypes": ("float32", "bfloat16", "float16"),
    "rope_types": ("default",),
    "tensor_parallel": True,
}


@hookimpl
def model() -> list[Plugin]:
    return [
        Plugin(
            "GPTNeoXForCausalLM",
            "nanofw_families.gpt_neox:GPTNeoXForCausalLM",
            api="model/2",
            capabilities={
                **CLAIMS,
                "activations": ("gelu",),
                "partial_rotary": True,
                "cuda_graph": True,
            },
            spec="nanofw_families.readers:read_gpt_neox",
            checks="nanofw_families.checks:GPTNeoXChecks",
            summary="GPT-NeoX, Pythia",
        ),
        Plugin(
            "Qwen3MoeForCausalLM",
            "nanofw_families.qwen3_moe:Qwen3MoeForCausalLM",
            api="model/2",
            capabilities=CLAIMS,
            spec="nanofw_families.readers:read_qwen3_moe",
            checks="nanofw_families.checks:Qwen3MoeChecks",
            summary="Qwen3 with experts",
        ),
    ]
