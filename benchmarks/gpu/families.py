"""Every family on a GPU against transformers: random weights, each backend, graphs and overlap on.

    python -m benchmarks.gpu.families [--dtype bfloat16] [--family Gemma2] [--backend triton]

Prints a line for each family and backend: the largest difference of logits as a share of their
deviation, the bound (twice what rounding alone does to transformers), equal greedy tokens, ties.
`refused` is a backend that says why it cannot: FlashAttention has no float32, for instance.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

from nanofw.assembly import select
from nanofw.bench.verify import VerifyOptions, compare, make_prompts, run_engine
from nanofw.config.load import load_config
from nanofw.errors import NanofwError
from tests.models.family_folders import FAMILIES, write_family

SHAPE = {
    "head_dim": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512,
    "intermediate_size": 768, "num_hidden_layers": 4, "max_position_embeddings": 512,
    "initializer_range": 0.03, "sliding_window": 24,
}  # fmt: skip
BACKENDS = ("triton", "flash_attn", "sdpa")


def check(family: str, backend: str, dtype: str, device: str) -> str:
    """The line of a family on a backend."""
    changes = dict(SHAPE)
    if family == "Phi3":
        changes |= {"original_max_position_embeddings": 256, "rope_scaling": None}
    with tempfile.TemporaryDirectory() as name:
        write_family(Path(name), family, 1, **changes)
        words = [
            f"model.path={name}", f"model.dtype={dtype}", f"engine.device={device}",
            f"attention_backend.name={backend}", "engine.max_num_seqs=8",
            "engine.max_model_len=256", "kv_allocator.num_blocks=64",
        ]  # fmt: skip
        try:
            selection = select(load_config("qwen3-demo", words))
        except NanofwError as error:
            return f"refused: {str(error).splitlines()[-1].strip()[:70]}"
        texts = run_engine(selection, make_prompts(128, 100, 0), 32)
        found = compare(texts, name, dtype, device, VerifyOptions())
    return _line(found)


def _line(found: list[Any]) -> str:
    error, bound = max(item.error for item in found), found[0].bound
    counts = [sum(getattr(item, key) for item in found)
              for key in ("num_equal", "num_ties", "num_greedy")]  # fmt: skip
    verdict = "ok" if all(item.is_within for item in found) else "OUTSIDE"
    equal, ties, total = counts
    return f"{verdict:8} error {error:.2e} of {bound:.2e}   equal {equal}/{total}, ties {ties}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument("--backend", action="append", choices=BACKENDS)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    logging.getLogger("nanofw").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    for dtype in given.dtype or ("float32", "bfloat16"):
        for family in given.family or FAMILIES:
            for backend in given.backend or BACKENDS:
                line = check(family, backend, dtype, given.device)
                print(f"{dtype:9} {family:11} {backend:10} {line}", flush=True)


if __name__ == "__main__":
    main()
