"""The attention backends for NVIDIA GPUs, as plugins."""

from __future__ import annotations

from typing import Literal

from nanofw.plugins import Options, Plugin, hookimpl

_FEATURES = dict.fromkeys(
    ("sliding_window", "soft_cap", "cuda_graph", "cuda_graph_prefill", "tensor_parallel", "overlap",
     "fused"),
    True,
)  # fmt: skip


class FlashAttentionOptions(Options):
    """`attention_backend: {name: flash_attn, ...}`."""

    version: Literal[2, 3, 4] | None = None
    """Which FlashAttention; null: the fastest that is installed and supports the card."""


@hookimpl
def attention_backend() -> list[Plugin]:
    return [
        Plugin(
            "flash_attn",
            "nanofw.attention_backends.flash_attn:FlashAttention",
            api="attention_backend/2",
            options=FlashAttentionOptions,
            capabilities={
                "devices": ("cuda",),
                "dtypes": ("bfloat16", "float16"),
                "head_dims": (64, 80, 96, 112, 128, 160, 192, 224, 256),
                "block_sizes": (256, 128, 64, 32, 16, 8, 4, 2, 1),
                **_FEATURES,
                "few_long_rows": 4,
                "compile_ahead": "nanofw.attention_backends.flash_attn:StoreOnly",
            },
            summary="paged attention by the installed FlashAttention (2, 3 or 4)",
        ),
        Plugin(
            "triton",
            "nanofw.attention_backends.triton:TritonAttention",
            api="attention_backend/2",
            capabilities={
                "devices": ("cuda", "cpu"),
                "dtypes": ("bfloat16", "float16", "float32"),
                "head_dims": (128, 64, 80, 96, 256, 16, 32, 48, 112, 160, 192),
                "block_sizes": (64, 128, 256, 32, 16, 8, 4, 2, 1),
                **_FEATURES,
                "compile_ahead": True,
            },
            summary="our own paged kernels, nothing beyond torch's Triton",
        ),
    ]
