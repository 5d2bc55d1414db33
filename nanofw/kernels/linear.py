"""Matrix products with a constant weight.

On CPU, oneDNN multiplies with a weight that was laid out for it once. MKL, behind
`torch.nn.functional.linear`, repacks the weight in each call, which costs most where decoding
lives, at few rows. Measured on two AVX-512 cores, float32, 3072 x 512: 126 us instead of 587
at 8 rows, 1.6 ms instead of 4.8 at 256. The two operators are those that
`torch.compile` emits for a frozen linear layer.
"""

from __future__ import annotations

import os
import warnings
from functools import cache

import torch
from torch.nn import functional

from nanofw.kernels.dispatch import uses_triton

_NO_SCALARS: list[object] = []
MOST_ROWS = 16
"""Products of more rows are the library's on every device."""

# oneDNN, and PyTorch's layer around it, each keep up to 1024 prepared products, one per number of
# rows and weight shape, about 280 KB each. 192 hold those of `padded_rows` for the five weight
# shapes of a decoder. Both variables are read at the first product; set ones are left alone.
for _variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_variable, "192")


def padded_rows(num_rows: int) -> int:
    """The number of rows, at least `num_rows`, to which an input should be padded on a CPU.

    oneDNN prepares a product for each number of rows it meets, which costs as much as a product
    of some ten rows, and memory. 38 numbers up to 1024 stand for all: those up to 16, then four in
    each doubling.
    """
    if num_rows <= 16:
        return num_rows
    step = max(8, 1 << ((num_rows - 1).bit_length() - 3))
    return -(-num_rows // step) * step


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN has a packed product for this device and element type."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    return weight.dtype in (torch.float32, torch.bfloat16) and _packs(weight.dtype)


@cache
def _packs(dtype: torch.dtype) -> bool:
    """Try it: the operators are not public, and not every processor has them for bfloat16."""
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        ones = torch.ones(1, 8, dtype=dtype)
        return bool((packed_linear(ones, pack(torch.ones(8, 8, dtype=dtype))) == 8).all())
    except (RuntimeError, AttributeError) as error:
        warnings.warn(
            f"oneDNN's packed products do not work here ({error}): matrix products on the CPU "
            "are slower",
            stacklevel=2,
        )
        return False


def pack(weight: torch.Tensor) -> torch.Tensor:
    """A copy of [out, in] in oneDNN's own layout, for `packed_linear` alone."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)


def packed_linear(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The product of [..., in] with a weight from `pack`, plus the bias: [..., out]."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", _NO_SCALARS, "")


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The product of [..., in] with the weight [out, in], plus the bias: [..., out].

    One row and a few, as when a few requests decode, have kernels of their own on NVIDIA GPUs.
    """
    if 0 < x.numel() <= MOST_ROWS * x.shape[-1] and uses_triton(x):
        return _product_of_few_rows(x, weight, bias)
    return functional.linear(x, weight, bias)


def _product_of_few_rows(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    from nanofw.kernels.triton import few_rows
    from nanofw.kernels.triton import linear as one_row

    if one_row.has_one_row(x, weight):
        return one_row.one_row_linear(x, weight, bias)
    if few_rows.has_few_rows(x, weight):
        return few_rows.few_rows_linear(x, weight, bias)
    return functional.linear(x, weight, bias)
