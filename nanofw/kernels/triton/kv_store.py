"""Store keys and values of a pass into pages, and the fused QK-norm + rotation + store."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from nanofw.contracts.attention_backend import FusedInputs
from nanofw.kernels.dispatch import launch
from nanofw.kernels.triton.common import (
    cdiv,
    launch_dependents,
    next_power_of_2,
    pdl_options,
    wait_for_previous,
)

HEADS_PER_PROGRAM = 8


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def _store_kernel(
    key_ptr,
    value_ptr,
    k_ptr,
    v_ptr,
    slots_ptr,
    stride_key_row,
    stride_key_head,
    stride_value_row,
    stride_value_head,
    stride_block,
    stride_head,
    stride_slot,
    NUM_KV_HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PAGE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot >= 0:
        offs_h = tl.arange(0, HEADS_PAD)
        offs_d = tl.arange(0, HEAD_PAD)
        mask = (offs_h < NUM_KV_HEADS)[:, None] & (offs_d < HEAD_DIM)[None, :]
        target = (slot // PAGE) * stride_block + (slot % PAGE) * stride_slot
        target += (offs_h * stride_head)[:, None] + offs_d[None, :]
        source = token * stride_key_row + (offs_h * stride_key_head)[:, None] + offs_d[None, :]
        tl.store(k_ptr + target, tl.load(key_ptr + source, mask=mask), mask=mask)
        source = token * stride_value_row + (offs_h * stride_value_head)[:, None] + offs_d[None, :]
        tl.store(v_ptr + target, tl.load(value_ptr + source, mask=mask), mask=mask)


@triton.jit
def _rotate(
    x1, x2, weight_ptr, cos, sin, eps, offs_d, mask_d, HEAD_DIM: tl.constexpr, NORM: tl.constexpr
):
    """RMSNorm over both halves of each head, then rotation; all in float32."""
    if NORM:
        square = tl.sum(x1 * x1, axis=1) + tl.sum(x2 * x2, axis=1)
        scale = tl.rsqrt(square / HEAD_DIM + eps)[:, None]
        w1 = tl.load(weight_ptr + offs_d, mask=mask_d, other=0.0).to(tl.float32)
        w2 = tl.load(weight_ptr + HEAD_DIM // 2 + offs_d, mask=mask_d, other=0.0).to(tl.float32)
        x1 = x1 * scale * w1[None, :]
        x2 = x2 * scale * w2[None, :]
    return x1 * cos[None, :] - x2 * sin[None, :], x2 * cos[None, :] + x1 * sin[None, :]


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "slots_ptr"])
def _qkv_kernel(
    qkv_ptr,
    query_ptr,
    k_ptr,
    v_ptr,
    query_norm_ptr,
    key_norm_ptr,
    cos_sin_ptr,
    positions_ptr,
    slots_ptr,
    eps,
    stride_qkv,
    stride_query,
    stride_cos_sin,
    stride_block,
    stride_head,
    stride_slot,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    QUERY_NORM: tl.constexpr,
    KEY_NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    """One token and HEADS heads of one kind: queries, then keys, then values."""
    half: tl.constexpr = HEAD_DIM // 2
    query_programs: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    kv_programs: tl.constexpr = (NUM_KV_HEADS + HEADS - 1) // HEADS
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    offs_h = tl.arange(0, HEADS)
    offs_d = tl.arange(0, HALF_PAD)
    mask_d = offs_d < half
    launch_dependents(PDL)
    wait_for_previous(PDL)
    position = tl.load(positions_ptr + token)
    line = cos_sin_ptr + position * stride_cos_sin + offs_d
    cos = tl.load(line, mask=mask_d, other=0.0)
    sin = tl.load(line + half, mask=mask_d, other=0.0)
    if part < query_programs:
        head = part * HEADS + offs_h
        mask = (head < NUM_HEADS)[:, None] & mask_d[None, :]
        offset = (head * HEAD_DIM)[:, None] + offs_d[None, :]
        source = qkv_ptr + token * stride_qkv + offset
        x1 = tl.load(source, mask=mask, other=0.0).to(tl.float32)
        x2 = tl.load(source + half, mask=mask, other=0.0).to(tl.float32)
        y1, y2 = _rotate(
            x1, x2, query_norm_ptr, cos, sin, eps, offs_d, mask_d, HEAD_DIM, QUERY_NORM
        )
        target = query_ptr + token * stride_query + offset
        tl.store(target, y1.to(query_ptr.dtype.element_ty), mask=mask)
        tl.store(target + half, y2.to(query_ptr.dtype.element_ty), mask=mask)
    else:
        slot = tl.load(slots_ptr + token).to(tl.int64)
        if slot >= 0:
            is_value = part >= query_programs + kv_programs
            group = part - query_programs - tl.where(is_value, kv_programs, 0)
            head = group * HEADS + offs_h
            mask = (head < NUM_KV_HEADS)[:, None] & mask_d[None, :]
            first = NUM_HEADS + tl.where(is_value, NUM_KV_HEADS, 0)
            source = qkv_ptr + token * stride_qkv
            source += ((first + head) * HEAD_DIM)[:, None] + offs_d[None, :]
            x1 = tl.load(source, mask=mask, other=0.0).to(tl.float32)
            x2 = tl.load(source + half, mask=mask, other=0.0).to(tl.float32)
            target = (slot // PAGE) * stride_block + (slot % PAGE) * stride_slot
            target += (head * stride_head)[:, None] + offs_d[None, :]
            if is_value:
                tl.store(v_ptr + target, x1.to(v_ptr.dtype.element_ty), mask=mask)
                tl.store(v_ptr + target + half, x2.to(v_ptr.dtype.element_ty), mask=mask)
            else:
                y1, y2 = _rotate(
                    x1, x2, key_norm_ptr, cos, sin, eps, offs_d, mask_d, HEAD_DIM, KEY_NORM
                )
                tl.store(k_ptr + target, y1.to(k_ptr.dtype.element_ty), mask=mask)
                tl.store(k_ptr + target + half, y2.to(k_ptr.dtype.element_ty), mask=mask)


def store_kv(key: torch.Tensor, value: torch.Tensor, kv: torch.Tensor, slots: torch.Tensor) -> None:
    """Write [t, num_kv_heads, head_dim] keys and values to their slots; slot -1 writes nothing.

    Args:
        kv: [2, num_blocks, page, num_kv_heads, head_dim], last dimension contiguous.
        slots: int64[t], block * page + offset.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    if num_tokens == 0:
        return
    _, stride_block, stride_slot, stride_head, _ = kv.stride()
    launch(
        _store_kernel, (num_tokens,),
        key, value, kv[0], kv[1], slots,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        stride_block, stride_head, stride_slot,
        NUM_KV_HEADS=num_kv_heads, HEADS_PAD=next_power_of_2(num_kv_heads), HEAD_DIM=head_dim,
        HEAD_PAD=next_power_of_2(head_dim), PAGE=kv.shape[2], num_warps=4,
    )  # fmt: skip


def qkv_rope_store(
    inputs: FusedInputs,
    num_heads: int,
    kv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """Norm and rotate queries and keys, store keys and values: one kernel.

    Args:
        inputs: of t tokens, the last dimension of `qkv` contiguous.
        kv: [2, num_blocks, page, num_kv_heads, head_dim], last dimension contiguous.
        positions: int64[t].
        slots: int64[t]; -1 writes nothing.

    Returns:
        The queries [t, num_heads, head_dim].
    """
    qkv, cos_sin = inputs.qkv, inputs.cos_sin
    num_tokens = qkv.shape[0]
    _, _, page, num_kv_heads, head_dim = kv.shape
    query = qkv.new_empty(num_tokens, num_heads, head_dim)
    if num_tokens == 0:
        return query
    _, stride_block, stride_slot, stride_head, _ = kv.stride()
    heads = min(HEADS_PER_PROGRAM, next_power_of_2(max(num_heads, num_kv_heads)))
    programs = cdiv(num_heads, heads) + 2 * cdiv(num_kv_heads, heads)
    launch(
        _qkv_kernel, (num_tokens, programs),
        qkv, query, kv[0], kv[1], inputs.query_norm, inputs.key_norm, cos_sin, positions, slots,
        inputs.norm_eps, qkv.stride(0), query.stride(0), cos_sin.stride(0),
        stride_block, stride_head, stride_slot,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEADS=heads, HEAD_DIM=head_dim,
        HALF_PAD=next_power_of_2(head_dim // 2), PAGE=page,
        QUERY_NORM=inputs.query_norm is not None, KEY_NORM=inputs.key_norm is not None,
        num_warps=1 if heads * head_dim <= 512 else 2, **pdl_options(qkv),
    )  # fmt: skip
    return query
