"""Output tokens per processor second of each family: natively, through transformers, and beside it.

    OMP_NUM_THREADS=1 python benchmarks/families/bench.py [--family gemma2 ...] [--rounds 2]
        [--shape larger] [--json FILE]

For each family a random decoder of 4 layers and a hidden size of 256, or of 8 layers and 576, is
written to a temporary folder. Three contenders then run the same prompts (8 of 64 random tokens, 48
new tokens each, greedy, no end token) in turn, `--rounds` times over: the native model,
`model.name: transformers`, and transformers' `generate` with one batch. Figures are those of the
best round, in processor seconds of this process; ratios are within one run: of the best rounds, and
the median over rounds. `--json` keeps every round.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from nanofw import LLM, SamplingParams

FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "olmo2", "olmo3",
    "smollm3", "granite", "glm", "glm4", "cohere2", "starcoder2",
)  # fmt: skip
SHAPE: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
    "max_position_embeddings": 512, "original_max_position_embeddings": 512,
    "bos_token_id": None, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
LARGER: dict[str, Any] = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 8,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
}  # fmt: skip
NUM_PROMPTS, PROMPT, OUTPUT = 8, 64, 48


def write_model(folder: Path, model_type: str) -> Any:
    """A checkpoint of random weights; the model that transformers makes of it."""
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    known = CONFIG_MAPPING[model_type]
    usual = known()
    torch.manual_seed(0)
    config = known(**{key: value for key, value in SHAPE.items() if hasattr(usual, key)})
    AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def contenders(folder: Path, model: Any, prompts: list[list[int]]) -> dict[str, Callable[[], None]]:
    """By name, what each of them runs. The engines stay open for all rounds."""
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
    common: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "max_num_seqs": NUM_PROMPTS,
        "max_model_len": PROMPT + OUTPUT + 16,
        "kv_allocator": "paged",
    }
    native = LLM(folder, **common)
    through = LLM(folder, name="transformers", **common)
    batch = torch.tensor(prompts)

    @torch.inference_mode()
    def generate() -> None:
        model.generate(
            batch, attention_mask=torch.ones_like(batch), do_sample=False,
            min_new_tokens=OUTPUT, max_new_tokens=OUTPUT,
        )  # fmt: skip

    return {
        "native": lambda: check(native.generate(prompts, params)),
        "transformers": lambda: check(through.generate(prompts, params)),
        "generate": generate,
    }


def check(results: list[Any]) -> None:
    """All that was asked for was served."""
    assert all(len(result.outputs[0].token_ids) == OUTPUT for result in results), results


def measure(model_type: str, rounds: int) -> dict[str, list[float]]:
    """Tokens per processor second of each contender, of every round."""
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(2, 4096, (NUM_PROMPTS, PROMPT), generator=generator).tolist()
    with tempfile.TemporaryDirectory() as name:
        runs = contenders(Path(name), write_model(Path(name), model_type), prompts)
        found: dict[str, list[float]] = {key: [] for key in runs}
        for _ in range(rounds + 1):
            for key, run in runs.items():
                begin = time.process_time()
                run()
                found[key].append(NUM_PROMPTS * OUTPUT / (time.process_time() - begin))
    return {key: values[1:] for key, values in found.items()}  # the first round warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--family", choices=FAMILIES, action="append")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--shape", choices=("small", "larger"), default="small")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.shape == "larger":
        SHAPE.update(LARGER)
    found: dict[str, dict[str, list[float]]] = {}
    print("tokens per processor second; ratios within one run")
    print(
        f"{'family':12} {'native':>8} {'transf.':>8} {'generate':>8} {'n/g':>6} {'t/n':>6} "
        f"{'t/n, median':>12}"
    )
    for family in given.family or FAMILIES:
        one = found[family] = measure(family, given.rounds)
        native, through, generate = (
            max(one[key]) for key in ("native", "transformers", "generate")
        )
        pairs = zip(one["transformers"], one["native"], strict=True)
        print(
            f"{family:12} {native:8.0f} {through:8.0f} {generate:8.0f} "
            f"{native / generate:6.2f} {through / native:6.2f} "
            f"{median(ours / theirs for ours, theirs in pairs):12.2f}",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
