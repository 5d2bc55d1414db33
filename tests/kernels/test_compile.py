"""Kernels that the interpreter accepts compile for a GPU too, on a machine without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
TABLE, LIST = "*i32", "*i64"
STEP_INPUTS = {
    "lines_ptr": LIST, "all_tokens_ptr": TABLE, "all_tables_ptr": TABLE, "token_ids_ptr": TABLE,
    "positions_ptr": LIST, "slots_ptr": LIST, "query_starts_ptr": TABLE,
    "context_lens_ptr": TABLE, "tables_ptr": TABLE, "rows_ptr": LIST, "next_positions_ptr": LIST,
    "logits_indices_ptr": LIST, "PAGE": 64, "LINES_PAD": 256, "BLOCK": 256,
}  # fmt: skip
TILE_STARTS = {
    "query_starts_ptr": TABLE, "context_lens_ptr": TABLE, "decode_starts_ptr": TABLE,
    "prefill_starts_ptr": TABLE, "TILE": 64, "BLOCK_Q": 64, "BATCH_PAD": 256,
}  # fmt: skip
HALVES, FLOATS = "*bf16", "*fp32"
SAMPLE = {
    "logits_ptr": HALVES, "rows_ptr": LIST, "inverse_temperatures_ptr": FLOATS,
    "base_keys_ptr": TABLE, "positions_ptr": LIST, "cut_keys_ptr": TABLE, "cut_ids_ptr": TABLE,
    "best_ptr": FLOATS, "token_ptr": TABLE, "token_logit_ptr": FLOATS, "max_ptr": FLOATS,
    "sum_ptr": FLOATS, "CUT": 1, "BLOCK": 2048,
}  # fmt: skip
QKV = {
    **dict.fromkeys(
        ("qkv_ptr", "query_ptr", "k_ptr", "v_ptr", "query_norm_ptr", "key_norm_ptr"), HALVES
    ),
    "cos_sin_ptr": FLOATS, "positions_ptr": LIST, "slots_ptr": LIST, "eps": "fp32",
    "NUM_HEADS": 16, "NUM_KV_HEADS": 8, "HEADS": 4, "HEAD_DIM": 128, "HALF_PAD": 64, "PAGE": 64,
    "QUERY_NORM": 1, "KEY_NORM": 1, "PDL": True,
}  # fmt: skip
SUM = {
    "x_ptr": TABLE, "residual_ptr": HALVES, "weight_ptr": HALVES, "out_ptr": HALVES,
    "addresses_ptr": LIST, "sums_ptr": TABLE, "eps": "fp32", "RANK": 0, "RANKS": 2, "WORDS": 2560,
    "WORDS_PAD": 4096, "PDL": True,
}  # fmt: skip
NORM = {
    "x_ptr": HALVES, "residual_ptr": HALVES, "weight_ptr": HALVES, "out_ptr": HALVES,
    "eps": "fp32", "SIZE": 4096, "SIZE_PAD": 4096, "ADD": True, "PDL": True,
}  # fmt: skip
ONE_ROW = {
    "x_ptr": HALVES, "weight_ptr": HALVES, "bias_ptr": HALVES, "out_ptr": HALVES,
    "BIAS": False, "EVEN": True, "OUTPUTS": 2, "INPUTS": 1024, "PDL": True,
}  # fmt: skip
FEW_ROWS = {
    "x_ptr": HALVES, "weight_ptr": HALVES, "bias_ptr": HALVES, "out_ptr": HALVES, "BIAS": True,
    "ROWS": 16, "OUTPUTS": 8, "PARTS": 4, "INPUTS": 128, "STAGES": 4, "AHEAD": 16, "LINE": 64,
    "PDL": True,
}  # fmt: skip
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "sample": ("sampling:_sample_kernel", SAMPLE),
    "qkv": ("kv_store:_qkv_kernel", QKV),
    "norm": ("norm:_rms_norm_kernel", NORM),
    "one_row": ("linear:_one_row_kernel", ONE_ROW),
    "few_rows": ("few_rows:_few_rows_kernel", FEW_ROWS),
    "sum_and_norm": ("all_reduce:_sum_add_norm_kernel", SUM),
    "step_inputs": ("step_inputs:_step_inputs_kernel", STEP_INPUTS),
    "tile_starts": (
        "tile_starts:_mixed_tile_starts_kernel", {**TILE_STARTS, "WINDOW": 0}
    ),
    "tile_starts_window": (
        "tile_starts:_mixed_tile_starts_kernel", {**TILE_STARTS, "WINDOW": 9}
    ),
}  # fmt: skip


def test_they_compile_for_hopper(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.test_compile"]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = [line.split()[0] for line in done.stdout.splitlines() if "ptx" in line]
    assert compiled == list(KERNELS)


def main(name: str) -> None:
    """Compile one of them; integers that are not named are 32 bits wide."""
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    place, given = KERNELS[name]
    module, _, function = place.partition(":")
    kernel = getattr(importlib.import_module(f"nanofw.kernels.triton.{module}"), function)
    constants = {key: value for key, value in given.items() if isinstance(value, int)}
    types = {key: given.get(key, "i32") for key in kernel.arg_names}
    signature = {key: "constexpr" if key in constants else types[key] for key in types}
    source = ASTSource(kernel, signature, constexprs=constants)
    print(name, *triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm)


if __name__ == "__main__":
    for each in KERNELS:
        main(each)
