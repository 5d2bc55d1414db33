from __future__ import annotations

import torch
import triton
import triton.language as tl

from nanofw.kernels import random
from nanofw.kernels.triton_random import draw_key, gumbel
from tests.kernels.paged import device


@triton.jit
def _noise_kernel(keys_ptr, positions_ptr, out_ptr, drawn_ptr, STREAM: tl.constexpr):
    row = tl.program_id(0)
    key = draw_key(tl.load(keys_ptr + row), tl.load(positions_ptr + row), STREAM)
    tl.store(drawn_ptr + row, key.to(tl.int64, bitcast=True))
    tokens = tl.arange(0, 2048)
    tl.store(out_ptr + row * 2048 + tokens, gumbel(key, tokens))


def test_kernels_draw_the_same_noise() -> None:
    keys = torch.tensor([random.row_key(s, s % 2) for s in (0, 2**63 - 1, -9)], device=device())
    positions = torch.tensor([0, 17, 40959], dtype=torch.int32, device=device())
    out = torch.empty(3, 2048, device=device())
    drawn = torch.empty_like(keys)
    _noise_kernel[(3,)](keys, positions, out, drawn, STREAM=2)
    expected = random.draw_keys(keys, positions, 2)
    assert torch.equal(drawn, expected)
    noise = random.gumbel(expected[:, None], torch.arange(2048, device=device())[None])
    torch.testing.assert_close(out, noise, rtol=1e-5, atol=1e-5)
