"""Built-in models, named by the architecture that a checkpoint's `config.json` states."""

from __future__ import annotations

from nanofw.plugins import Plugin, hookimpl


@hookimpl
def model() -> Plugin:
    return Plugin(
        "Qwen3ForCausalLM",
        "nanofw.models.qwen3:Qwen3ForCausalLM",
        api="model/1",
        capabilities={
            "devices": ("*",),
            "dtypes": ("float32", "bfloat16", "float16"),
            "rope_types": ("default", "linear"),
            "sliding_window": True,
            "tensor_parallel": True,
            "cuda_graph": True,
            "overlap": True,
        },
        summary="Qwen3, dense",
    )
