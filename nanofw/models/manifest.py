"""Built-in models, named by the architecture that a checkpoint's `config.json` states."""

from __future__ import annotations

from nanofw.plugins import Plugin, hookimpl

_CAPABILITIES = {
    "devices": ("*",),
    "dtypes": ("float32", "bfloat16", "float16"),
    "activations": ("silu",),
    "rope_types": ("default", "linear", "dynamic", "yarn", "llama3"),
    "sliding_window": True,
    "tensor_parallel": True,
    "cuda_graph": True,
    "overlap": True,
    "compile_ahead": True,
}


@hookimpl
def model() -> list[Plugin]:
    return [
        _model("LlamaForCausalLM", "llama:LlamaForCausalLM", "Llama 1 to 3, SmolLM2, TinyLlama"),
        _model("MistralForCausalLM", "mistral:MistralForCausalLM", "Mistral, dense"),
        _model("Qwen2ForCausalLM", "qwen2:Qwen2ForCausalLM", "Qwen2 and Qwen2.5, dense"),
        _model("Qwen3ForCausalLM", "qwen3:Qwen3ForCausalLM", "Qwen3, dense"),
    ]


def _model(architecture: str, target: str, summary: str) -> Plugin:
    return Plugin(
        architecture,
        f"nanofw.models.{target}",
        api="model/2",
        capabilities=_CAPABILITIES,
        summary=summary,
    )
