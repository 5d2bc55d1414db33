"""Local plugins that tests of the assembly choose: policies, and a machine of four kinds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Local = Callable[[str], Path]

PLAIN_POLICY = """
    class Plain(Policy):
        def key(self, request, view):
            return request.arrival

    @hookimpl
    def scheduler():
        return Plugin("plain", ":Plain", api="scheduler/2")
"""
OPTIONS = """
    class Settings(Options):
        weight: float = 1.0
        label: str = "x"

    class Weighted(Policy):
        def __init__(self, options, config):
            self.options = options

        def key(self, request, view):
            return request.arrival * self.options.weight

    @hookimpl
    def scheduler():
        return Plugin(
            "weighted", ":Weighted", api="scheduler/2", options=Settings,
            capabilities={"overlap": True},
        )
"""
EXECUTOR = """
    class Machine(Executor):
        def __init__(self, options, config):
            self.config = config
        def capacity(self):
            return Capacity(num_blocks=8, block_size=self.config.block_size, max_in_flight=2)
        def check(self, request): ...
        def submit(self, plan): ...
        def provide(self, masks): ...
        def collect(self): ...
        def close(self): ...

    class Thing:
        def __init__(self, *arguments): ...

    def probe(device, options):
        if device == "cuda":
            return "no CUDA device"
        return {{"dtypes": ("float32", "float64")}}

    @hookimpl
    def executor():
        return Plugin("machine", ":Machine", api="executor/2",
                      capabilities={{"devices": ("cuda", "cpu"), "overlap": True}})

    @hookimpl
    def model():
        return Plugin("TinyForCausalLM", ":Thing", api="model/2", capabilities={model})

    @hookimpl
    def sampler():
        return Plugin("draw", ":Thing", api="sampler/2", capabilities={{"devices": ("*",)}})

    @hookimpl
    def attention_backend():
        return [
            Plugin("first", ":Thing", api="attention_backend/2", capabilities={backend}),
        ]
"""
MODEL_CLAIMS = {"devices": ("cpu",), "dtypes": ("float32",), "rope_types": ("default",)}
BACKEND_CLAIMS = {
    "devices": ("cpu",),
    "dtypes": ("float32",),
    "head_dims": (64, 128),
    "block_sizes": (32, 16),
    "sliding_window": True,
}


def machine(local: Local, model: Any = MODEL_CLAIMS, backend: Any = BACKEND_CLAIMS) -> Path:
    return local(EXECUTOR.format(model=model, backend=backend))


MACHINE = {
    "executor": {"name": "machine"},
    "sampler": {"name": "draw"},
    "attention_backend": {"name": "first"},
}
