"""Writing keys and values into their slots of the paged pool."""

from __future__ import annotations

import torch

from nanofw.kernels.dispatch import uses_triton


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Write [t, heads, d] keys and values to int64[t] slots; -1 writes nothing.

    Args:
        key_pool, value_pool: [num_blocks, block_size, heads, d], any equal strides.
        slots: block * block_size + offset.
    """
    if uses_triton(key):
        from nanofw.kernels.triton.kv_store import store_kv_triton

        store_kv_triton(key, value, key_pool, value_pool, slots)
        return
    kept = slots >= 0
    slots = slots[kept]
    block_size = key_pool.shape[1]
    where = (slots // block_size, slots % block_size)
    key_pool[where] = key[kept]
    value_pool[where] = value[kept]
