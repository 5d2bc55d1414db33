"""The backend `flash_attn` with the FlashAttention that is installed, on this GPU."""

from __future__ import annotations

import pytest
import torch

from nanofw.attention_backends.flash_attn import FlashAttention, probe
from tests.attention_backends.batches import make_config
from tests.attention_backends.passes import plain, run_passes
from tests.kernels.paged import attention, relative_error, tolerance

pytestmark = pytest.mark.gpu
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.fixture(scope="module")
def claim():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    answer = probe("cuda", None)
    if isinstance(answer, str):
        pytest.skip(answer)
    return {"block_sizes": (16, 64, 256), "head_dims": (64, 128), **answer}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [1, 16, 64, 128, 256])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("stale", [0.0, torch.nan], ids=["zeros", "nan"])
def test_passes_equal_attention(claim, dtype, block_size, head_dim, window, stale) -> None:
    if block_size not in claim["block_sizes"] or head_dim not in claim["head_dims"]:
        pytest.skip("not claimed")
    config = make_config(
        dtype=DTYPES[dtype], block_size=block_size, head_dim=head_dim, sliding_windows=(window,)
    )
    for out, whole, n, _ in run_passes(FlashAttention(None, config), plain, 2, stale):
        q, k, v = whole.split([4, 2, 2], dim=1)
        expected = attention(q[-n:], k, v, head_dim**-0.5, window)
        assert relative_error(out, expected) < tolerance(DTYPES[dtype])
