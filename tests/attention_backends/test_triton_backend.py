"""The backend `triton` through its contract: chunks, mixed batches, padding, the fused entry."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from nanofw.attention_backends.triton import TritonAttention, probe
from nanofw.contracts.attention_backend import FusedAttentionBackend, FusedInputs
from nanofw.testing import AttentionBackendChecks
from tests.attention_backends.batches import make_config, make_rows
from tests.attention_backends.passes import plain, run_passes
from tests.kernels.interpreter import slow_in_interpreter
from tests.kernels.paged import attention, device, relative_error, tolerance


@pytest.mark.parametrize(
    "block_size", [1, 16, *[pytest.param(n, marks=slow_in_interpreter) for n in (4, 64)]]
)
@pytest.mark.parametrize("window", [None, 9])
def test_passes_equal_attention_over_the_whole_row(block_size, window) -> None:
    config = make_config(block_size=block_size, sliding_windows=(window,))
    scale = config.head_dim**-0.5
    for out, whole, n, _ in run_passes(TritonAttention(None, config), plain, padded=2):
        q, k, v = whole.split([4, 2, 2], dim=1)
        expected = attention(q[-n:], k, v, scale, window)
        assert relative_error(out, expected) < tolerance(torch.float32)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("head_dim", [64, 80])
def test_fused_entry_equals_norm_rotation_and_attention(norm, head_dim) -> None:
    config = make_config(head_dim=head_dim, sliding_windows=(None,))
    scale = head_dim**-0.5
    weights = torch.rand(2, head_dim, device=device()) + 0.5 if norm else (None, None)
    angles = torch.arange(64)[:, None] * 1e4 ** (-torch.arange(0, head_dim, 2) / head_dim)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1).to(device())

    def fused(backend, qkv, batch, kv):
        assert isinstance(backend, FusedAttentionBackend)
        inputs = FusedInputs(
            qkv=qkv.flatten(1),
            query_norm=weights[0],
            key_norm=weights[1],
            norm_eps=1e-6,
            cos_sin=cos_sin,
        )
        return backend.forward_fused(inputs, 0, kv, batch, scale)

    def turned(x, weight):
        if weight is not None:
            x = torch.nn.functional.rms_norm(x, (head_dim,), weight, 1e-6)
        cos, sin = cos_sin[: len(x), None].chunk(2, dim=-1)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    for out, whole, n, _ in run_passes(TritonAttention(None, config), fused):
        # B083: position == number of tokens before it, in every pass.
        q, k, v = whole.split([4, 2, 2], dim=1)
        expected = attention(turned(q, weights[0])[-n:], turned(k, weights[1]), v, scale)
        assert relative_error(out, expected) < tolerance(torch.float32)


@pytest.mark.parametrize("fused", [True, False])
def test_B082_padded_rows_write_nothing(fused) -> None:
    config = make_config()
    backend = TritonAttention(None, config)
    kv = backend.allocate(3)[0].normal_()
    before = kv.clone()
    rows, _ = make_rows([16, 16], 16)
    batch = rows.batch([1], [0], padded=2)
    assert batch.slots.tolist()[1:] == [-1, -1]
    batch.attention = backend.prepare(batch)
    qkv = torch.randn(3, 8, 64, device=device())
    if fused:
        angles = torch.zeros(4, 64, device=device())
        inputs = FusedInputs(
            qkv=qkv.flatten(1), query_norm=None, key_norm=None, norm_eps=1e-6, cos_sin=angles
        )
        backend.forward_fused(inputs, 0, kv, batch, 0.125)
    else:
        plain(backend, qkv, batch, kv)
    block, offset = divmod(int(batch.slots[0]), 16)
    changed = (kv != before).flatten(3).any(-1).nonzero().tolist()
    assert changed == [[side, block, offset] for side in (0, 1)]


class CapturedChecks(AttentionBackendChecks):
    __test__ = False
    capabilities: ClassVar = {
        "block_sizes": (16, 1), "sliding_window": True, "cuda_graph_prefill": True,
        "soft_cap": True,
    }  # fmt: skip
    device = device().type

    def make(self, config):
        return TritonAttention(None, config)


# The interpreter's numpy warns of what padded lines hold.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@slow_in_interpreter
def test_captured_passes_serve_any_mix_of_rows() -> None:
    CapturedChecks().test_captured_passes_of_any_mix()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_capped_scores_bend_in_both_kernels() -> None:
    CapturedChecks().test_capped_scores()


def test_copied_blocks_are_equal_and_the_others_untouched() -> None:
    config = make_config(num_layers=2)
    backend = TritonAttention(None, config)
    pool = backend.allocate(4)
    for kv in pool:
        kv.normal_()
    before = [kv.clone() for kv in pool]
    backend.copy_blocks(pool, torch.tensor([[0, 2], [1, 3]], device=device()))
    for kv, old in zip(pool, before, strict=True):
        assert torch.equal(kv[:, 2:], old[:, :2])
        assert torch.equal(kv[:, :2], old[:, :2])
    assert backend.bytes_per_block() * 4 == sum(kv.numel() * 4 for kv in pool)


def test_probe_says_what_it_would_take_on_cpu() -> None:
    from nanofw.kernels.triton.common import INTERPRETED

    answer = probe("cpu", None)
    off = {"cuda_graph": False, "cuda_graph_prefill": False}
    assert (answer == off) if INTERPRETED else "TRITON_INTERPRET=1" in answer
