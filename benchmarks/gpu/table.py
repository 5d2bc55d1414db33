r"""The closing table: nanofw beside nano-vllm on one card, every round of each.

    NANO_VLLM=checkout [VLLM_FA3=library] MODELS=folder \
        python benchmarks/gpu/table.py [SECONDS] [rounds | alone] [0.6b | 8b]

Three rounds of each engine with the 0.6b shape, two with 8b, in turn; then what nanofw alone is
asked: `AsyncLLM`, gaps beside long prompts, prompts of 30,000 tokens with either attention backend.
VLLM_FA3 names the FlashAttention-3 of vLLM's wheel, the fastest that is known for nano-vllm. What
SECONDS (default 900) leave no time for is said. `OUT=folder` keeps logs and results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from beside import run_all
from timing import table

ROUNDS = {"0.6b": 3, "8b": 2}
ALONE = (
    "nanofw_async:0.6b:2:first",
    *(
        run.format(model)
        for model in ROUNDS
        for run in (
            "nanofw:{}:0:long",
            "nanofw+flash_attn:{}:0:long",
            "nanofw:{}:0:gaps",
            "nanofw:{}:0:gaps:max_num_batched_tokens=1024",
        )
    ),
)
Values = Callable[[dict[str, Any]], list[float]]


def runs(words: list[str]) -> list[str]:
    """The engines in turn, the second model's rounds after the first's, then nanofw alone."""
    if unknown := set(words) - {*ROUNDS, "rounds", "alone"}:
        sys.exit(f"what is {', '.join(unknown)}? rounds, alone, or a model: {', '.join(ROUNDS)}")
    rounds = [
        f"{engine}:{model}:2:steps:first"
        for model in ROUNDS
        for number in range(ROUNDS[model])
        for engine in (("nanofw", "nano_vllm") if number % 2 == 0 else ("nano_vllm", "nanofw"))
    ]
    wanted = [*(rounds if "alone" not in words else ()), *(ALONE if "rounds" not in words else ())]
    models = set(words) & set(ROUNDS) or set(ROUNDS)
    return [run for run in wanted if run.split(":")[1] in models]


def _pick(*keys: str) -> Values:
    def values(result: dict[str, Any]) -> list[float]:
        found: Any = result
        for key in keys:
            found = found.get(key, {})
        return found if isinstance(found, list) else [found] if found else []

    return values


LINES: dict[str, tuple[Values, int]] = {
    "bench.py, first pass, tokens/s": (lambda r: r.get("tokens_per_s", [])[:1], 0),
    "bench.py, steady, tokens/s": (lambda r: r.get("tokens_per_s", [])[1:], 0),
    **{f"decode, B={b}, ms": (_pick("step_ms", b), 3) for b in ("1", "32", "128", "256")},
    "first token, one prompt of 128, ms": (_pick("first_token_ms"), 2),
    "first tokens, 256 prompts of 128, ms": (_pick("first_of_256_ms"), 1),
    "30,000 tokens: first token, s": (_pick("long_first_s"), 3),
    "30,000 tokens, cached: first token, s": (_pick("long_cached_s"), 3),
    "30,000 tokens: decode, B=1, ms": (_pick("long_step_ms_1"), 3),
    "30,000 tokens: decode, B=8, ms": (_pick("long_step_ms_8"), 3),
    "longest gaps, prompts of 4,000 arrive, ms": (_pick("gaps", "longest_ms"), 1),
    "their first tokens, ms": (_pick("gaps", "first_token_ms"), 1),
    "longest gaps, four at once, ms": (_pick("gaps_of_4", "longest_ms"), 1),
    "their first tokens, four at once, ms": (_pick("gaps_of_4", "first_token_ms"), 1),
    "import, s": (_pick("import_s"), 2),
    "build, s": (_pick("construct_s"), 2),
}


def lines(results: list[dict[str, Any]]) -> list[dict[str, object]]:
    """A row for each quantity and engine: the values of each of its processes, processes apart."""
    rows: list[dict[str, object]] = []
    kinds = list(dict.fromkeys((r["model"], _kind(r)) for r in results))
    for what, (values, digits) in LINES.items():
        for model, kind in kinds:
            of_kind = [r for r in results if (r["model"], _kind(r)) == (model, kind)]
            rounds = [" ".join(f"{v:.{digits}f}" for v in values(r)) for r in of_kind]
            if any(rounds):
                rows.append(
                    {"model": model, "": what, "engine": kind, "rounds": " | ".join(rounds)}
                )
    return rows


def _kind(result: dict[str, Any]) -> str:
    options = {k: v for k, v in result["options"].items() if k != "max_model_len"}
    return " ".join((result["engine"], *(f"{key}={value}" for key, value in options.items())))


def main() -> None:
    words = sys.argv[1:]
    seconds = float(words.pop(0)) if words and words[0].replace(".", "").isdigit() else 900.0
    results = run_all(runs(words), seconds)
    print()
    print(table(lines(results)))


if __name__ == "__main__":
    main()
