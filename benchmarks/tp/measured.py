"""The measurements of `gpu.py`: each runs in a process of its own.

    python benchmarks/tp/measured.py NAME ARGUMENT...

TP_DEVICE=cpu: over gloo, to see that every part works; its figures mean nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEVICE = os.environ.get("TP_DEVICE", "cuda")
HIDDEN = 4096
BATCH_SIZES = (1, 4, 8, 16, 32, 64, 128, 256)
EXTRA_SHAPES = {
    "parity": {"hidden": 1024, "layers": 8, "heads": 16, "inner": 3072, "tied": True},
    "tiny": {"hidden": 128, "layers": 2, "heads": 8, "inner": 256, "tied": True},
}
REPEATS = 200 if DEVICE == "cuda" else 5
Row = dict[str, Any]


def partial(row: Row) -> None:
    """Tell what is known so far."""
    print("PARTIAL", json.dumps(row), flush=True)


def all_reduce_rank(rank: int, size: int, store_path: str) -> Row:
    """Microseconds by rows of a bfloat16 tensor, for each way; the usual way first and whole."""
    import torch
    from torch import distributed

    from nanofw.errors import ConfigError
    from nanofw.runtime.communicator import join
    from nanofw.runtime.one_shot import OneShotCommunicator

    device = torch.device("cpu")
    if DEVICE == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    usual = join(rank, size, device, distributed.FileStore(store_path, size))
    result: Row = {"us": {str(batch_size): {} for batch_size in BATCH_SIZES}}
    _time_way("collective", usual, device, result)
    _time_norm("collective", usual, device, result)
    if DEVICE == "cuda":
        try:
            stream = (HIDDEN, max(BATCH_SIZES))
            one_shot = OneShotCommunicator(rank, size, device, torch.bfloat16, stream)
        except ConfigError as error:
            return {**result, "one_shot": str(error)}
        _time_way("one_shot", one_shot, device, result)
        _time_norm("one_shot", one_shot, device, result)
    return result


def _time_way(name: str, communicator: Any, device: Any, result: Row) -> None:
    """Add its column, and that of a graph of it."""
    import torch

    for batch_size in BATCH_SIZES:
        tensor = torch.zeros(batch_size, HIDDEN, dtype=torch.bfloat16, device=device)

        def run(tensor: Any = tensor) -> None:
            for _ in range(REPEATS):
                communicator.all_reduce(tensor)

        _time(name, run, device, result, batch_size)


def _time_norm(name: str, communicator: Any, device: Any, result: Row) -> None:
    """The same of sum + residual add + RMSNorm, as decoder layers have it."""
    import torch

    from nanofw.models.layers.norm import RMSNorm

    norm = RMSNorm(HIDDEN, 1e-6, dtype=torch.bfloat16, device=device)
    norm.weight.data.fill_(1)
    for batch_size in BATCH_SIZES:
        shape = (batch_size, HIDDEN)
        x, stream = (torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(2))

        def run(x: Any = x, stream: Any = stream) -> None:
            for _ in range(REPEATS):
                norm.add_parts_and_norm(x, stream, communicator)

        _time(f"{name} + norm", run, device, result, batch_size)


def _time(name: str, run: Callable[[], object], device: Any, result: Row, batch_size: int) -> None:
    import torch

    row = result["us"][str(batch_size)]
    row[name] = _microseconds(run)
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        row[f"{name} graph"] = _microseconds(graph.replay)
        del graph
    partial(result)


def _microseconds(run: Callable[[], object]) -> float:
    import torch

    wait = torch.cuda.synchronize if DEVICE == "cuda" else int
    run()
    times = []
    for _ in range(5):
        wait()
        begin = time.perf_counter()
        run()
        wait()
        times.append((time.perf_counter() - begin) / REPEATS * 1e6)
    return statistics.median(times)


def make_llm(folder: str, ranks: int, **values: Any) -> Any:
    from nanofw import LLM

    options = json.loads(os.environ.get("TP_OPTIONS", "{}"))
    return LLM(
        folder,
        **{
            "device": DEVICE, "tensor_parallel_size": ranks, "max_model_len": 2048,
            "max_num_seqs": 256, "memory_utilization": 0.6, **values, **options,
        },
    )  # fmt: skip


def parity_run(folder: str, dtype: str, ranks: int) -> Row:
    """Greedy and seeded tokens, the gaps of the best two at each, log probabilities of prompts."""
    from nanofw import SamplingParams
    from nanofw.contracts.requests import Request

    backend = {}
    if dtype == "float32" and DEVICE == "cuda":
        backend = {"attention_backend": "triton"}
    result: Row = {"tokens": {}, "gaps": {}, "prompts": {}}
    with make_llm(folder, ranks, dtype=dtype, max_num_batched_tokens=4096, **backend) as llm:
        engine = llm.engine
        for number in range(48):
            kind = ("greedy", "seeded", "prompt")[number % 3]
            prompt = [(number * 7919 + i * 104729) % 4000 for i in range(40 + 5 * number)]
            params = {
                "greedy": SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, logprobs=2),
                "seeded": SamplingParams(
                    temperature=1, max_tokens=64, ignore_eos=True, seed=number
                ),
                "prompt": SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0),
            }[kind]
            engine.add_request(
                Request(id=f"{kind}{number}", prompt_token_ids=prompt, sampling=params)
            )
        while engine.has_unfinished:
            for output in engine.step().finished:
                result["tokens"][output.id] = output.token_ids.tolist()
                if output.logprobs is not None:
                    top = output.logprobs.top_logprobs
                    result["gaps"][output.id] = (top[:, 0] - top[:, 1]).tolist()
                if output.prompt_logprobs is not None:
                    result["prompts"][output.id] = output.prompt_logprobs.token_logprobs.tolist()
        result["graph_steps"] = engine.executor.facts().graph_steps
    return result


def control_run(folder: str, ranks: int) -> Row:
    """Steady decode at 256 rows: microseconds of `submit`, bytes, milliseconds of a step."""
    from nanofw import SamplingParams
    from nanofw.contracts.requests import Request

    with make_llm(folder, ranks) as llm:
        engine, executor = llm.engine, llm.engine.executor
        params = SamplingParams(temperature=0.6, max_tokens=400, ignore_eos=True)
        for number in range(256):
            prompt = [number + 1, *range(1, 128)]
            engine.add_request(Request(id=f"r{number}", prompt_token_ids=prompt, sampling=params))
        for _ in range(80):
            engine.step()
        submit, times = executor.submit, []

        def timed(plan: Any) -> None:
            begin = time.perf_counter()
            submit(plan)
            times.append(time.perf_counter() - begin)

        executor.submit = timed
        sent, begin = executor.num_bytes_sent, time.perf_counter()
        for _ in range(200):
            engine.step()
        wall = time.perf_counter() - begin
        return {
            "submit us": statistics.median(times) * 1e6,
            "bytes a step": (executor.num_bytes_sent - sent) / 200,
            "step ms": wall / 200 * 1e3,
            "graph_steps": executor.facts().graph_steps,
            "host MB by rank": [ready.peak_host_bytes // 10**6 for ready in executor.ranks],
            "weights MB by rank": [ready.weight_bytes // 10**6 for ready in executor.ranks],
        }


def kill_run(folder: str, ranks: int) -> Row:
    """Kill rank 1 in decode: what the error says, when it comes; then start again."""
    import signal

    from nanofw import SamplingParams
    from nanofw.contracts.requests import Request
    from nanofw.errors import ExecutorError

    llm = make_llm(folder, ranks)
    engine, pids = llm.engine, llm.engine.executor.facts().process_ids
    params = SamplingParams(temperature=0.6, max_tokens=1500, ignore_eos=True)
    for number in range(64):
        engine.add_request(Request(id=f"r{number}", prompt_token_ids=[5, 6, 7], sampling=params))
    for _ in range(100):
        engine.step()
    os.kill(pids[1], signal.SIGKILL)
    begin = time.perf_counter()
    message = "no error"
    try:
        while engine.has_unfinished:
            engine.step()
    except ExecutorError as error:
        message = str(error).splitlines()[0]
    seconds = time.perf_counter() - begin
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    row: Row = {"error": message, "seconds to the error": seconds, "processes left": left}
    partial(row)
    llm.close()
    begin = time.perf_counter()
    with make_llm(folder, ranks) as again:
        (answer,) = again.generate([[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True))
    return {
        **row,
        "restarted in s": time.perf_counter() - begin,
        "tokens after the restart": len(answer.outputs[0].token_ids),
    }


def make_model(root: str, name: str) -> Row:
    """A checkpoint of a shape, or of `make_model.py`'s, with random weights."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "gpu"))
    import make_model as maker

    maker.SHAPES.update(EXTRA_SHAPES)
    begin = time.perf_counter()
    folder = maker.make(Path(root), name)
    return {"made": str(folder), "seconds": time.perf_counter() - begin}


MEASUREMENTS: dict[str, Callable[..., Row]] = {
    "all_reduce": lambda rank, size, path: all_reduce_rank(int(rank), int(size), path),
    "parity": lambda folder, dtype, ranks: parity_run(folder, dtype, int(ranks)),
    "control": lambda folder, ranks: control_run(folder, int(ranks)),
    "kill": lambda folder, ranks: kill_run(folder, int(ranks)),
    "model": make_model,
}

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print("RESULT", json.dumps(MEASUREMENTS[name](*arguments)), flush=True)
    os._exit(0)  # a captured graph holds its communicator: nothing is torn down in order
