"""Built-in samplers."""

from __future__ import annotations

from nanofw.plugins import Plugin, hookimpl


@hookimpl
def sampler() -> Plugin:
    return Plugin(
        "standard",
        "nanofw.samplers.standard:standard_sampler",
        api="sampler/2",
        capabilities={
            "devices": ("*",),
            "tensor_parallel": True,
            "overlap": True,
            "cuda_graph": True,
            "compile_ahead": True,
        },
        summary="every sampling parameter; counter-based random numbers",
    )
