from __future__ import annotations

import torch
import triton
import triton.language as tl

from nanofw.kernels import random
from nanofw.kernels.triton.random import log_exponential, position_key, random_bits
from tests.kernels.paged import device


@triton.jit
def _numbers_kernel(base_keys_ptr, positions_ptr, bits_ptr, out_ptr):
    row = tl.program_id(0)
    first, second = position_key(base_keys_ptr + row * 2, tl.load(positions_ptr + row))
    tokens = tl.arange(0, 2048)
    bits = random_bits(first, second, tokens + 150000)
    tl.store(bits_ptr + row * 2048 + tokens, bits.to(tl.int32, bitcast=True))
    tl.store(out_ptr + row * 2048 + tokens, log_exponential(bits))


def test_kernels_have_the_same_numbers() -> None:
    seeds = [(0, 0), (2**63 - 1, 1), (-9, 2)]
    base = torch.tensor([random.base_key(*s) for s in seeds], dtype=torch.int32, device=device())
    positions = torch.tensor([0, 17, 40959], dtype=torch.int32, device=device())
    bits = torch.empty(3, 2048, dtype=torch.int32, device=device())
    out = torch.empty(3, 2048, device=device())
    _numbers_kernel[(3,)](base, positions, bits, out)
    tokens = torch.arange(150000, 152048, dtype=torch.int32, device=device())
    expected = random.random_bits(random.position_keys(base, positions), tokens)
    assert torch.equal(bits, expected)
    logs = random.exponential(expected).log()
    torch.testing.assert_close(out, logs, rtol=2e-5, atol=2e-5)
