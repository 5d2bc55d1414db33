"""Products of one row and of a few with the weights of Qwen3's layers and heads, beside torch's.

Each is timed behind a norm, as in a layer, over more weights than the cache holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from timing import mean_us
from torch.nn import functional

from nanofw.kernels.linear import linear
from nanofw.kernels.triton.few_rows import FewRowsConfig, few_rows_linear
from nanofw.kernels.triton.linear import OneRowConfig, one_row_linear
from nanofw.kernels.triton.norm import rms_norm

VOCABULARY = 151936
SHAPES = [  # weight, outputs, inputs; "/2": a rank's of two
    ("0.6b qkv", 4096, 1024), ("0.6b o", 1024, 2048), ("0.6b gate_up", 6144, 1024),
    ("0.6b down", 1024, 3072), ("0.6b head", VOCABULARY, 1024),
    ("8b qkv", 6144, 4096), ("8b o", 4096, 4096), ("8b gate_up", 24576, 4096),
    ("8b down", 4096, 12288), ("8b head", VOCABULARY, 4096),
    ("8b/2 qkv", 3072, 4096), ("8b/2 o", 4096, 2048), ("8b/2 gate_up", 12288, 4096),
    ("8b/2 down", 4096, 6144),
    ("32b qkv", 10240, 5120), ("32b o", 5120, 8192), ("32b gate_up", 51200, 5120),
    ("32b down", 5120, 25600),
    ("32b/2 qkv", 5120, 5120), ("32b/2 o", 5120, 4096), ("32b/2 gate_up", 25600, 5120),
    ("32b/2 down", 5120, 12800),
]  # fmt: skip
ROWS = (2, 4, 8, 16)
WARPS = (1, 2, 4, 8)
FEW_ROWS_SIZES = (  # outputs, stages, parts, inputs
    (8, 4, 4, 128), (8, 3, 4, 128), (16, 3, 4, 128), (16, 4, 4, 64), (16, 4, 4, 128),
    (32, 4, 4, 64), (32, 3, 8, 64), (64, 3, 4, 64), (16, 3, 8, 64), (8, 4, 8, 64), (8, 3, 8, 128),
)  # fmt: skip
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Shape = tuple[str, int, int]


def one_row() -> list[dict[str, object]]:
    """The product of one row and the norm before it, us."""
    return [_row(shape, 1) for shape in SHAPES]


def few_rows() -> list[dict[str, object]]:
    """Products of a few rows and the norm before them, us: what is chosen, and torch's."""
    return [_row(shape, rows) for rows in ROWS for shape in SHAPES]


def sweep_one_row() -> list[dict[str, object]]:
    """Tiles of the product of one row, the three fastest of each shape."""
    configs = [
        OneRowConfig(outputs, width, warps)
        for outputs, width, warps in itertools.product((1, 2, 4, 8), (512, 1024, 2048, 4096), WARPS)
        if 16 <= outputs * width // (32 * warps) <= 128
    ]
    products: list[tuple[object, int, Product]] = [
        (config, config.inputs, lambda x, w, c=config: one_row_linear(x, w, config=c))
        for config in configs
    ]
    return [row for shape in SHAPES for row in _fastest(shape, 1, products)]


def sweep_few_rows() -> list[dict[str, object]]:
    """Tiles of the products of a few rows, the three fastest of each shape."""
    configs = [FewRowsConfig(*sizes) for sizes in FEW_ROWS_SIZES]
    products: list[tuple[object, int, Product]] = [
        (config, config.tile, lambda x, w, c=config: few_rows_linear(x, w, config=c))
        for config in configs
    ]
    return [row for n in ROWS for shape in SHAPES for row in _fastest(shape, n, products)]


def _row(shape: Shape, num_rows: int) -> dict[str, object]:
    name, num_outputs, num_inputs = shape
    x, norm, weights = _inputs(shape, num_rows)
    ours, theirs = (_us(x, norm, weights, product) for product in (linear, functional.linear))
    rows = rms_norm(x, norm, 1e-6)
    expected = rows.float() @ weights[0].float().T
    error = (linear(rows, weights[0]).float() - expected).norm() / expected.norm()
    return {
        "rows": num_rows, "weight": name, "out": num_outputs, "in": num_inputs,
        "ours us": round(ours, 2), "torch us": round(theirs, 2),
        "TB/s": round(2e-6 * num_outputs * num_inputs / min(ours, theirs), 2),
        "error": f"{error.item():.1e}",
    }  # fmt: skip


def _fastest(
    shape: Shape, num_rows: int, products: list[tuple[object, int, Product]]
) -> list[dict[str, object]]:
    """The three fastest of those whose tiles divide the inputs."""
    x, norm, weights = _inputs(shape, num_rows)
    found = [
        (round(_us(x, norm, weights, product), 2), str(config))
        for config, tile, product in products
        if shape[2] % tile == 0
    ]
    named = {"rows": num_rows, "weight": shape[0]}
    return [{**named, "us": us, "config": config} for us, config in sorted(found)[:3]]


def _us(
    x: torch.Tensor, norm: torch.Tensor, weights: list[torch.Tensor], product: Product
) -> float:
    return mean_us(lambda i: product(rms_norm(x, norm, 1e-6), weights[i]), len(weights))


def _inputs(shape: Shape, num_rows: int) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Rows, a norm's weight, and more weights than the cache holds."""
    _, num_outputs, num_inputs = shape
    count = max(2, min(24, int(3e9) // (2 * num_outputs * num_inputs)))
    kind: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    weights = torch.randn(count, num_outputs, num_inputs, **kind)
    rows = torch.randn(num_rows, num_inputs, **kind)
    return rows, torch.ones(num_inputs, **kind), list(weights)
