"""The two functions of FlashAttention-2 that nano-vllm calls, served by FlashAttention-3.

For measuring nano-vllm where only `flash_attn_interface` is installed.
"""

from flash_attn_interface import flash_attn_varlen_func as _varlen  # pyright: ignore[reportMissingImports]
from flash_attn_interface import flash_attn_with_kvcache as _paged  # pyright: ignore[reportMissingImports]

__version__ = "3.served.as.2"


def flash_attn_with_kvcache(q, k_cache, v_cache, *, cache_seqlens, block_table, **rest):
    return _paged(q, k_cache, v_cache, cache_seqlens=cache_seqlens, page_table=block_table, **rest)


def flash_attn_varlen_func(
    q, k, v, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, block_table=None, **rest
):
    if block_table is None:
        out = _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **rest)
        return out[0] if isinstance(out, tuple) else out
    lengths = cu_seqlens_k.diff()
    return _paged(
        q, k, v, cache_seqlens=lengths, page_table=block_table,
        cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, **rest,
    )  # fmt: skip
