"""Built-in attention backends."""

from __future__ import annotations

from nanofw.plugins import Plugin, hookimpl


@hookimpl
def attention_backend() -> Plugin:
    return Plugin(
        "sdpa",
        "nanofw.attention_backends.sdpa:SdpaBackend",
        api="attention_backend/2",
        capabilities={
            "devices": ("*",),
            "dtypes": ("float32", "bfloat16", "float16"),
            "head_dims": ("*",),
            # 32 wastes little of a row's last block, and products of it are long enough.
            "block_sizes": (32, "*"),
            "sliding_window": True,
            "soft_cap": True,
            "tensor_parallel": True,
            "overlap": True,
            "lookahead": 0,
        },
        summary="PyTorch operators, any device; the reference, and the backend for CPUs",
    )
