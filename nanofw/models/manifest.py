"""Built-in models, named by the architecture that a checkpoint's `config.json` states."""

from __future__ import annotations

from nanofw.plugins import Plugin, hookimpl

_CAPABILITIES: dict[str, object] = {
    "devices": ("*",),
    "dtypes": ("float32", "bfloat16", "float16"),
    "activations": ("silu",),
    "rope_types": ("default", "linear", "dynamic", "yarn", "llama3"),
    "sliding_window": True,
    "tensor_parallel": True,
    "cuda_graph": True,
    "compile_ahead": True,
}
_GELU = {"activations": ("gelu_pytorch_tanh",)}


@hookimpl
def model() -> list[Plugin]:
    return [
        _model("LlamaForCausalLM", "llama", "Llama 1 to 3, SmolLM2, TinyLlama, Yi, Falcon 3"),
        _model("MistralForCausalLM", "mistral", "Mistral, dense"),
        _model("Qwen2ForCausalLM", "qwen2", "Qwen2 and Qwen2.5, dense"),
        _model("Qwen3ForCausalLM", "qwen3", "Qwen3, dense"),
        _model("Gemma2ForCausalLM", "gemma2", "Gemma 2", soft_cap=True, **_GELU),
        _model("Gemma3ForCausalLM", "gemma3", "Gemma 3, text", layer_ropes=True, **_GELU),
        _model(
            "Phi3ForCausalLM", "phi3", "Phi-3, Phi-4",
            rope_types=("default", "longrope"), partial_rotary=True,
        ),
        # Their queries and keys are normalised with the heads of all ranks together.
        _model("Olmo2ForCausalLM", "olmo2", "OLMo 2", tensor_parallel=False),
        _model("Olmo3ForCausalLM", "olmo3", "OLMo 3", tensor_parallel=False, layer_ropes=True),
        _model("SmolLM3ForCausalLM", "smollm3", "SmolLM3", layer_ropes=True),
        _model("GraniteForCausalLM", "granite", "Granite 3, dense"),
        _model("GlmForCausalLM", "glm", "GLM-4 9B", partial_rotary=True),
        _model("Glm4ForCausalLM", "glm4", "GLM-4 0414", partial_rotary=True),
        _model("Cohere2ForCausalLM", "cohere2", "Command R7B, Command A", layer_ropes=True),
        _model("Starcoder2ForCausalLM", "starcoder2", "StarCoder 2", **_GELU),
        Plugin(
            "transformers",
            "nanofw.models.any_decoder.model:TransformersDecoder",
            api="model/2",
            capabilities={
                "devices": ("*",),
                "dtypes": ("float32", "bfloat16", "float16"),
                "activations": ("*",),
                "sliding_window": True,
                "soft_cap": True,
                "tensor_parallel": True,
            },
            spec="nanofw.models.any_decoder.reader:read",
            architectures=("*",),
            summary="any decoder of transformers around paged attention",
        ),
    ]  # fmt: skip


def _model(architecture: str, module: str, summary: str, **changes: object) -> Plugin:
    return Plugin(
        architecture,
        f"nanofw.models.{module}:{architecture}",
        api="model/2",
        capabilities=_CAPABILITIES | changes,
        summary=summary,
    )
