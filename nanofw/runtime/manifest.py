"""The executors that run models, as plugins."""

from __future__ import annotations

from nanofw.plugins import Plugin, Requirement, hookimpl

CAPABILITIES: dict[str, object] = {
    "devices": ("cuda", "cpu"),
    "tensor_parallel": True,
    "overlap": True,
    "cuda_graph": True,
    "cuda_graph_prefill": True,
    "graphs": "nanofw.runtime.graphs.sizes:describe",
    "estimate": "nanofw.runtime.estimate:estimate",
    "needs": ("model", "attention_backend", "sampler", "logits_processor"),
}


@hookimpl
def executor() -> list[Plugin]:
    return [
        Plugin(
            "torch",
            "nanofw.runtime.executor:torch_executor",
            api="executor/2",
            options="nanofw.runtime.options:TorchOptions",
            capabilities={**CAPABILITIES, "replicas": "torch"},
            summary="forward passes with PyTorch, on a GPU or a CPU",
        ),
        Plugin(
            "ray",
            "nanofw.runtime.ray.executor:ray_executor",
            api="executor/2",
            options="nanofw.runtime.ray.options:RayOptions",
            capabilities={**CAPABILITIES, "replicas": "torch", "ray_actors": True},
            requires=(Requirement("ray", "pip install 'nanofw[ray]'"),),
            summary="forward passes in actors that Ray places, on one node or several",
        ),
    ]
