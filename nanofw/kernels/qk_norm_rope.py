"""What happens to queries and keys between the projection and the attention."""

from __future__ import annotations

import torch

from nanofw.kernels.norm import rms_norm
from nanofw.kernels.rope import Rotation, rotate


def qk_norm_rope(
    qkv: torch.Tensor,
    query_norm: torch.Tensor | None,
    key_norm: torch.Tensor | None,
    eps: float,
    angles: Rotation | None,
    num_heads: int,
    num_kv_heads: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split the fused projection, normalise queries and keys by head, and rotate them.

    Both are handled as one tensor of `num_heads + num_kv_heads` heads, which halves the number
    of operations.

    Args:
        qkv: [t, (num_heads + 2 * num_kv_heads) * head_dim]. Not changed.
        query_norm, key_norm: weights [head_dim]; both None: no norm.
        angles: None: nothing is rotated.

    Returns:
        query [t, num_heads, head_dim], key and value [t, num_kv_heads, head_dim].
    """
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, -1)
    both = heads[:, : num_heads + num_kv_heads]
    if query_norm is not None and key_norm is not None:
        both = rms_norm(both, None, eps)
        both[:, :num_heads] *= query_norm
        both[:, num_heads:] *= key_norm
    if angles is not None:
        both = rotate(both, angles)
    return both[:, :num_heads], both[:, num_heads:], heads[:, num_heads + num_kv_heads :]
