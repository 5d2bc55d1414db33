"""The executor that runs models, as a plugin."""

from __future__ import annotations

from nanofw.plugins import Plugin, hookimpl


@hookimpl
def executor() -> Plugin:
    return Plugin(
        "torch",
        "nanofw.runtime.placement:torch_executor",
        api="executor/1",
        options="nanofw.runtime.options:TorchOptions",
        capabilities={
            "devices": ("cuda", "cpu"),
            "tensor_parallel": True,
            "overlap": True,
            "cuda_graph": True,
            "cuda_graph_prefill": True,
            "graphs": "nanofw.runtime.graph_sizes:describe",
            "estimate": "nanofw.runtime.estimate:estimate",
            "needs": ("model", "attention_backend", "sampler", "logits_processor"),
        },
        summary="forward passes with PyTorch, on a GPU or a CPU",
    )
