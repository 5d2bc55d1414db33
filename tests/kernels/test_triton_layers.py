"""KV store, fused QK-norm + rotation + store, norms and activation against the torch functions."""

from __future__ import annotations

import pytest
import torch

from nanofw.contracts.attention_backend import FusedInputs
from nanofw.kernels.triton import activation as triton_activation
from nanofw.kernels.triton import kv_store as triton_kv_store
from nanofw.kernels.triton import norm as triton_norm
from tests.kernels.paged import device, relative_error, tolerance

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def normed(x, weight, eps=1e-6):
    return torch.nn.functional.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 100, 1024])
def test_norms(dtype, size) -> None:
    x, residual = torch.randn(2, 3, size, device=device()).to(dtype)
    weight = torch.rand(size, device=device()).to(dtype)
    out = triton_norm.rms_norm(x, weight, 1e-6)
    assert out.dtype == dtype
    assert relative_error(out, normed(x, weight)) < tolerance(dtype)

    total = x + residual
    out, kept = triton_norm.add_rms_norm(x, residual, weight, 1e-6)
    assert kept.data_ptr() == residual.data_ptr(), "the residual stream is changed in place"
    assert relative_error(kept, total) < tolerance(dtype)
    assert relative_error(out, normed(total, weight)) < tolerance(dtype)


def test_norm_of_strided_heads() -> None:
    x = torch.randn(3, 6, 64, device=device())[:, :4]
    weight = torch.rand(64, device=device())
    out = triton_norm.rms_norm(x, weight, 1e-6)
    assert out.shape == x.shape
    assert relative_error(out, normed(x, weight)) < tolerance(torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [5, 1500])
def test_silu_and_mul(dtype, size) -> None:
    x = torch.randn(2, 2, 2 * size, device=device()).to(dtype)
    gate, up = x.float().chunk(2, -1)
    out = triton_activation.silu_and_mul(x)
    assert out.shape == (2, 2, size)
    assert relative_error(out, torch.nn.functional.silu(gate) * up) < tolerance(dtype)


def filled_pool(num_blocks, page, heads, head_dim, dtype, heads_first):
    sizes = (heads, page) if heads_first else (page, heads)
    pool = torch.full((2, num_blocks, *sizes, head_dim), 7.0, dtype=dtype, device=device())
    return pool.transpose(2, 3) if heads_first else pool


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("page", [1, 4, 16])
def test_B082_store_touches_its_slots_and_no_others(page, heads_first) -> None:
    num_blocks, heads, head_dim = 48 // page, 3, 80
    pool = filled_pool(num_blocks, page, heads, head_dim, torch.float32, heads_first)
    qkv = torch.randn(3, 9, head_dim, device=device())
    key, value = qkv[:, 3:6], qkv[:, 6:]
    slots = torch.tensor([3, -1, 40], device=device())
    triton_kv_store.store_kv(key, value, pool, slots)
    expected = torch.full((2, 48, heads, head_dim), 7.0, device=device())
    for i, slot in ((0, 3), (2, 40)):
        expected[0, slot], expected[1, slot] = key[i], value[i]
    assert torch.equal(pool.reshape(2, 48, heads, head_dim), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (16, 8), (2, 1)])
@pytest.mark.parametrize("norm", [True, False])
def test_fused_store(heads, kv_heads, norm, dtype) -> None:
    head_dim, page = 64, 4
    pool = filled_pool(3, page, kv_heads, head_dim, dtype, True)
    tokens = 4
    qkv = torch.randn(tokens, heads + 2 * kv_heads, head_dim, device=device()).to(dtype)
    weights = torch.rand(2, head_dim, device=device()).to(dtype) if norm else (None, None)
    cos_sin = torch.randn(64, head_dim, device=device())
    positions = torch.tensor([0, 63, 7, 7], device=device())
    slots = torch.tensor([3, -1, 11, 8], device=device())
    inputs = FusedInputs(
        qkv=qkv.flatten(1), query_norm=weights[0], key_norm=weights[1], norm_eps=1e-6,
        cos_sin=cos_sin,
    )  # fmt: skip
    query = triton_kv_store.qkv_rope_store(inputs, heads, pool, positions, slots)

    def turned(x, weight):
        x = x.float() if weight is None else normed(x, weight)
        cos, sin = cos_sin[positions][:, None].chunk(2, -1)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    q, k, v = qkv.split([heads, kv_heads, kv_heads], 1)
    assert relative_error(query, turned(q, weights[0])) < tolerance(dtype)
    lines = pool.reshape(2, 12, kv_heads, head_dim).float()
    kept = [0, 2, 3]
    assert relative_error(lines[0, slots[kept]], turned(k, weights[1])[kept]) < tolerance(dtype)
    assert torch.equal(lines[1, slots[kept]], v[kept].float())
    untouched = [s for s in range(12) if s not in (3, 11, 8)]
    assert (lines[:, untouched] == 7.0).all()
