"""The two functions of FlashAttention-2 that nano-vllm calls, served by vLLM 0.26's library.

VLLM_FA3 names it: `vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so` of the wheel, a FlashAttention-3 that
needs torch alone.
"""

import os
from typing import Any

import torch

torch.ops.load_library(os.environ["VLLM_FA3"])
_forward = torch.ops._vllm_fa3_C.fwd
__version__ = "3.of.vllm.0.26.served.as.2"
NONE = None


def _call(q, k, v, *, starts_q=None, starts_k=None, used_k=None, max_q=None, max_k=None,
          pages=None, scale=None, causal=False, splits=0):  # fmt: skip
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _forward(
        q, k, v,
        NONE, NONE, NONE, NONE,  # new keys and values, queries for values, output
        starts_q, starts_k, NONE, NONE, used_k, max_q, max_k, pages,
        NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE,  # batch index, padding, rotation, scales
        scale, causal, -1, -1, 0.0, True, NONE, splits, NONE, 0, NONE, 1, 0, NONE,
    )[0]  # fmt: skip


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
    softmax_scale=None, causal=False, block_table=None,
):  # fmt: skip
    lengths: dict[str, Any] = {
        "starts_q": cu_seqlens_q,
        "max_q": max_seqlen_q,
        "max_k": max_seqlen_k,
    }
    if block_table is None:
        lengths |= {"starts_k": cu_seqlens_k, "splits": 1}
    else:
        lengths |= {"used_k": cu_seqlens_k.diff(), "pages": block_table}
    return _call(q, k, v, scale=softmax_scale, causal=causal, **lengths)


def flash_attn_with_kvcache(
    q, k_cache, v_cache, cache_seqlens=None, block_table=None, softmax_scale=None, causal=False
):
    return _call(
        q, k_cache, v_cache, used_k=cache_seqlens, pages=block_table, scale=softmax_scale,
        causal=causal,
    )  # fmt: skip
