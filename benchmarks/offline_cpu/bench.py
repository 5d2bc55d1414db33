"""Output tokens per second on a CPU, beside transformers' `generate` in the same run.

    python benchmarks/offline_cpu/bench.py [--workload small,mixed] [--threads 2] [--rounds 3]
        [--requests 256] [--model FOLDER] [--json FILE] [--profile] [--set KEY=VALUE ...]

The model is a Qwen3 of 60M random parameters (14 layers, hidden size 512, 8 query and 4 KV
heads, vocabulary 32,000) in float32, written to a temporary folder unless `--model` names one.
Greedy, no end token, prompts of random tokens:

- `small`: 8 prompts of 16 to 256 tokens, 800 in all, 64 new tokens each, one batch.
- `mixed`: 256 requests (or `--requests`), prompts and outputs of 16 to 256 tokens. `generate`
  gets static batches of 32, left-padded, in the order of arrival and sorted by prompt length;
  each runs to its longest output, and only the tokens that were asked for count.

Contenders run in turn, `--rounds` times over; the figure is the best round, all are in the JSON.
On a machine that others use too, processor seconds with one thread are the fairer figure.
`--profile` adds one run of nanofw under the PyTorch profiler: the time by kind of operator.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import nanofw
from nanofw.assembly import assemble
from nanofw.config.load import load_config
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.engine.engine import Engine

VOCAB = 32000
BATCH = 32


@dataclass
class Workload:
    """Prompts and how many tokens each is to get."""

    name: str
    prompts: list[list[int]]
    outputs: list[int]

    @property
    def num_output_tokens(self) -> int:
        return sum(self.outputs)


@dataclass
class Contender:
    """Somebody who runs a workload; wall-clock and processor seconds of every round."""

    name: str
    run: Callable[[Workload], dict[str, Any]]
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def write_model(folder: Path) -> Path:
    """A checkpoint of random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=512, intermediate_size=1536, num_hidden_layers=14,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64, tie_word_embeddings=True,
        max_position_embeddings=2048, eos_token_id=None, bos_token_id=None, initializer_range=0.2,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def make_workload(name: str, num_requests: int = 256) -> Workload:
    rng = np.random.default_rng(0)
    if name == "small":
        lengths = np.array([16, 40, 48, 64, 96, 120, 160, 256])
        outputs = np.full(8, 64)
    else:
        lengths, outputs = rng.integers(16, 257, (2, num_requests))
    prompts = [[int(t) for t in rng.integers(0, VOCAB, length)] for length in lengths]
    return Workload(name, prompts, [int(n) for n in outputs])


def run_nanofw(engine: Engine, workload: Workload) -> dict[str, Any]:
    """All requests at once; facts about the steps."""
    for i, (prompt, count) in enumerate(zip(workload.prompts, workload.outputs, strict=True)):
        sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        engine.add_request(Request(id=str(i), prompt_token_ids=prompt, sampling=sampling))
    before, tokens = dict(engine.stats()), 0
    while engine.has_unfinished:
        tokens += sum(len(output.token_ids) for output in engine.step().finished)
    assert tokens == workload.num_output_tokens, (tokens, workload.num_output_tokens)
    after = engine.stats()
    return {name: after[name] - before[name] for name in ("num_steps", "num_preemptions")}


def run_generate(model: Any, workload: Workload, *, by_length: bool) -> dict[str, Any]:
    """Static, left-padded batches of 32."""
    order = list(range(len(workload.prompts)))
    if by_length:
        order.sort(key=lambda i: len(workload.prompts[i]))
    computed = 0
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        width = max(len(workload.prompts[i]) for i in batch)
        ids = torch.zeros((len(batch), width), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for line, i in enumerate(batch):
            prompt = torch.tensor(workload.prompts[i])
            ids[line, width - len(prompt) :] = prompt
            mask[line, width - len(prompt) :] = 1
        count = max(workload.outputs[i] for i in batch)
        out = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=count,
            min_new_tokens=count, pad_token_id=0,
        )  # fmt: skip
        computed += (out.shape[1] - width) * len(batch)
    return {"computed_tokens": computed}


def make_engine(folder: Path, settings: list[str]) -> Engine:
    threads = f"executor={{name: torch, num_threads: {torch.get_num_threads()}}}"
    overrides = [f"model.path={folder}", "engine.device=cpu", threads, *settings]
    return assemble(load_config(None, overrides))


def load_reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def measure(folder: Path, workload: Workload, rounds: int, settings: list[str]) -> list[Contender]:
    """Contenders in turn; the engine has run before, and its prefix cache is made useless."""
    engine, model = make_engine(folder, settings), load_reference(folder)
    contenders = [
        Contender("nanofw", lambda w: run_nanofw(engine, w)),
        Contender("generate", lambda w: run_generate(model, w, by_length=False)),
    ]
    if len(workload.prompts) > BATCH:
        sort = lambda w: run_generate(model, w, by_length=True)  # noqa: E731
        contenders.append(Contender("generate, sorted", sort))
    short = Workload("warm-up", [p[:16] for p in workload.prompts[:8]], [4] * 8)
    for contender in contenders:
        contender.run(short)
    for shift in range(rounds):
        moved = [[(t + shift + 1) % VOCAB for t in prompt] for prompt in workload.prompts]
        fresh = Workload(workload.name, moved, workload.outputs)
        for contender in contenders:
            start, cpu_start = time.perf_counter(), time.process_time()
            with torch.inference_mode():
                contender.facts = contender.run(fresh)
            contender.seconds.append(time.perf_counter() - start)
            contender.cpu_seconds.append(time.process_time() - cpu_start)
    engine.close()
    return contenders


def profile(folder: Path, workload: Workload, settings: list[str]) -> list[tuple[str, float]]:
    """Seconds by operator, the largest first, and what no operator accounts for."""
    engine = make_engine(folder, settings)
    run_nanofw(engine, Workload("warm-up", [p[:16] for p in workload.prompts[:8]], [4] * 8))
    start = time.perf_counter()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        run_nanofw(engine, workload)
    wall = time.perf_counter() - start
    engine.close()
    events = [(e.key, e.self_cpu_time_total / 1e6) for e in profiler.key_averages()]
    events.sort(key=lambda item: -item[1])
    return [*events[:12], ("outside of operators", wall - sum(s for _, s in events))]


def report(console: Console, workload: Workload, contenders: list[Contender]) -> dict[str, Any]:
    table = Table(title=f"{workload.name}: {workload.num_output_tokens} output tokens")
    for column in ("", "best, tok/s", "all, tok/s", "nanofw is", "CPU s", "nanofw takes", "facts"):
        table.add_column(column)
    rates = {c.name: [workload.num_output_tokens / s for s in c.seconds] for c in contenders}
    ours, our_cpu = max(rates["nanofw"]), min(contenders[0].cpu_seconds)
    for contender in contenders:
        mine, cpu = rates[contender.name], min(contender.cpu_seconds)
        table.add_row(
            contender.name, f"{max(mine):.0f}", " ".join(f"{rate:.0f}" for rate in mine),
            f"{ours / max(mine):.2f} x", f"{cpu:.1f}", f"1/{cpu / our_cpu:.2f}",
            json.dumps(contender.facts),
        )  # fmt: skip
    console.print(table)
    return {
        "workload": workload.name,
        "num_requests": len(workload.prompts),
        "num_prompt_tokens": sum(map(len, workload.prompts)),
        "num_output_tokens": workload.num_output_tokens,
        "contenders": [
            {k: v for k, v in asdict(c).items() if k != "run"} | {"tokens_per_s": rates[c.name]}
            for c in contenders
        ],
    }


def environment() -> dict[str, Any]:
    import transformers

    return {
        "nanofw": nanofw.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default="small,mixed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    console = Console()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.model or write_model(Path(temporary))
        facts = environment()
        for name in args.workload.split(","):
            workload = make_workload(name, args.requests)
            contenders = measure(folder, workload, args.rounds, args.set)
            results.append(report(console, workload, contenders))
            if args.profile:
                results[-1]["profile"] = profile(folder, workload, args.set)
                for what, seconds in results[-1]["profile"]:
                    console.print(f"{seconds:9.3f} s  {what}")
    console.print(facts)
    if args.json:
        content = {"environment": facts, "results": results}
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
