"""Tensor parallelism on the GPUs of this machine: right, and how fast. One table at the end.

    MODELS=folder [NANO_VLLM=checkout] [OUT=folder] python benchmarks/tp/gpu.py [SECONDS] SECTION...

Sections, run in the order in which they are named until SECONDS (default 530) are over:

    all_reduce   microseconds of an all-reduce, eager and in a graph, by NCCL and in one shot
    parity       1 and 2 ranks: tokens in float32, and the error of bfloat16 against float32
    control      what a decode step of 256 rows costs between the engine and its ranks
    kill         a killed rank: seconds to the error, what is left, a restart
    RUN          ENGINE:MODEL:RANKS[:one_shot], ENGINE as `benchmarks/gpu/engine_run.py` takes it,
                 MODEL 0.6b, 8b or 32b: one pass of nano-vllm's bench.py workload, and
                 milliseconds of a decode step at several batch sizes

Name a RUN twice for two rounds. Models are made in MODELS when they are not there, with random
weights. Every measurement has processes of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gpu"))

PARITY_MODEL = "parity"
EXTRA_SHAPES = {
    PARITY_MODEL: {"hidden": 1024, "layers": 8, "heads": 16, "inner": 3072, "tied": True},
    "32b": {"hidden": 5120, "layers": 64, "heads": 64, "inner": 25600, "tied": False},
}
HIDDEN = 4096
BATCH_SIZES = (1, 4, 8, 16, 32, 64, 128, 256)
REPEATS = 200
SHORTEST_RUN_S = 40
Row = dict[str, Any]


# -- measurements in processes of their own: they print `RESULT {json}` ----------------------


def all_reduce_rank(rank: int, size: int, store_path: str) -> Row:
    """Microseconds by bytes of a bfloat16 tensor, for each way."""
    import torch
    from torch import distributed

    from nanofw.errors import ConfigError
    from nanofw.runtime.communicator import join
    from nanofw.runtime.one_shot import OneShotCommunicator

    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    usual = join(rank, size, device, distributed.FileStore(store_path, size))
    ways: dict[str, Any] = {"nccl": usual}
    result: Row = {}
    try:
        ways["one_shot"] = OneShotCommunicator(rank, size, device, torch.bfloat16)
    except ConfigError as error:
        result["one_shot"] = str(error)
    for batch_size in BATCH_SIZES:
        tensor = torch.zeros(batch_size, HIDDEN, dtype=torch.bfloat16, device=device)
        row = result.setdefault("us", {}).setdefault(str(batch_size), {})
        for name, communicator in ways.items():

            def run(communicator: Any = communicator, tensor: Any = tensor) -> None:
                for _ in range(REPEATS):
                    communicator.all_reduce(tensor)

            row[name] = _microseconds(run)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            row[f"{name} graph"] = _microseconds(graph.replay)
            del graph
    return result


def _microseconds(run: Any) -> float:
    import torch

    run()
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / REPEATS * 1e6)
    return statistics.median(times)


def make_llm(folder: str, ranks: int, **values: Any) -> Any:
    from nanofw import LLM

    options = json.loads(os.environ.get("TP_OPTIONS", "{}"))
    return LLM(
        folder,
        **{
            "device": "cuda", "tensor_parallel_size": ranks, "max_model_len": 2048,
            "max_num_seqs": 256, "memory_utilization": 0.6, **values, **options,
        },
    )  # fmt: skip


def parity_run(folder: str, dtype: str, ranks: int) -> Row:
    """Greedy and seeded tokens, the gaps of the best two at each, log probabilities of prompts."""
    from nanofw import SamplingParams
    from nanofw.core.types import Request

    backend = {"attention_backend": "triton"} if dtype == "float32" else {}
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
            engine.add(Request(id=f"{kind}{number}", prompt_token_ids=prompt, sampling=params))
        while engine.has_unfinished:
            for output in engine.step().finished:
                result["tokens"][output.id] = output.token_ids.tolist()
                if output.logprobs is not None:
                    top = output.logprobs.top_logprobs
                    result["gaps"][output.id] = (top[:, 0] - top[:, 1]).tolist()
                if output.prompt_logprobs is not None:
                    result["prompts"][output.id] = output.prompt_logprobs.token_logprobs.tolist()
        result["graph_steps"] = engine.executor.graph_steps
    return result


def control_run(folder: str, ranks: int) -> Row:
    """Steady decode at 256 rows: microseconds of `submit`, bytes, milliseconds of a step."""
    from nanofw import SamplingParams
    from nanofw.core.types import Request

    with make_llm(folder, ranks) as llm:
        engine, executor = llm.engine, llm.engine.executor
        params = SamplingParams(temperature=0.6, max_tokens=400, ignore_eos=True)
        for number in range(256):
            prompt = [number + 1, *range(1, 128)]
            engine.add(Request(id=f"r{number}", prompt_token_ids=prompt, sampling=params))
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
            "graph_steps": executor.graph_steps,
            "host MB by rank": [ready.peak_host_bytes // 10**6 for ready in executor.ranks],
            "weights MB by rank": [ready.weight_bytes // 10**6 for ready in executor.ranks],
        }


def kill_run(folder: str, ranks: int) -> Row:
    """Kill rank 1 in decode: what the error says, when it comes; then start again."""
    import signal

    from nanofw import SamplingParams
    from nanofw.core.types import Request
    from nanofw.errors import ExecutorError

    llm = make_llm(folder, ranks)
    engine, pids = llm.engine, llm.engine.executor.pids
    params = SamplingParams(temperature=0.6, max_tokens=1500, ignore_eos=True)
    for number in range(64):
        engine.add(Request(id=f"r{number}", prompt_token_ids=[5, 6, 7], sampling=params))
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
    llm.close()
    begin = time.perf_counter()
    with make_llm(folder, ranks) as again:
        (answer,) = again.generate([[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True))
    return {
        "error": message,
        "seconds to the error": seconds,
        "processes left": left,
        "restarted in s": time.perf_counter() - begin,
        "tokens after the restart": len(answer.outputs[0].token_ids),
    }


# -- the sections -------------------------------------------------------------------------


class Bench:
    """Runs sections, each in processes of its own, until the time is over."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.out = Path(os.environ.get("OUT") or tempfile.mkdtemp())
        self.models = Path(os.environ.get("MODELS") or self.out / "models")
        self.results: dict[str, Any] = {}

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    def run(self, section: str) -> None:
        begin = time.monotonic()
        run = getattr(self, f"section_{section}", None)
        self.results[section] = run() if run else self.engine(section)
        print(f"[{time.monotonic() - begin:.0f} s] {section}", flush=True)
        print(json.dumps(self.results[section], indent=1), flush=True)
        path = self.out / "results.json"
        path.write_text(json.dumps(self.results, indent=1), encoding="utf-8")

    def model(self, name: str) -> str:
        """Its folder; made if it is not there."""
        import make_model

        make_model.SHAPES.update(EXTRA_SHAPES)
        if not (self.models / name / "model.safetensors.index.json").is_file():
            sys.argv = ["make_model.py", str(self.models), name]
            make_model.main()
        return str(self.models / name)

    def child(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-u", str(HERE / "gpu.py"), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def result_of(self, process: subprocess.Popen[str]) -> Row:
        try:
            text, _ = process.communicate(timeout=max(1.0, self.left_s))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return {"failed": "out of time", "log": (process.communicate()[0] or "")[-2000:]}
        for line in reversed(text.splitlines()):
            if line.startswith("RESULT "):
                return json.loads(line[7:])
        return {"failed": f"exit {process.returncode}", "log": text[-3000:]}

    def section_all_reduce(self) -> Row:
        with tempfile.TemporaryDirectory() as folder:
            ranks = [self.child("_all_reduce", str(r), "2", f"{folder}/store") for r in (0, 1)]
            results = [self.result_of(process) for process in ranks]
        return results[0]

    def section_parity(self) -> Row:
        folder = self.model(PARITY_MODEL)
        runs = {
            f"{dtype} {ranks}": self.result_of(self.child("_parity", folder, dtype, str(ranks)))
            for dtype in ("float32", "bfloat16")
            for ranks in (1, 2)
        }
        failed = {name: run for name, run in runs.items() if "failed" in run}
        if failed:
            return failed
        exact = runs["float32 1"]
        return {
            **_divergences(exact, runs["float32 2"]),
            "float32 error of 2 ranks": _error(exact, runs["float32 2"]),
            "bfloat16 error of 1 rank": _error(exact, runs["bfloat16 1"]),
            "bfloat16 error of 2 ranks": _error(exact, runs["bfloat16 2"]),
            "graph_steps": {name: run["graph_steps"] for name, run in runs.items()},
        }

    def section_control(self) -> Row:
        return self.result_of(self.child("_control", self.model(PARITY_MODEL), "2"))

    def section_kill(self) -> Row:
        before = _memory_used()
        row = self.result_of(self.child("_kill", self.model(PARITY_MODEL), "2"))
        time.sleep(1)
        return {**row, "MiB in use before": before, "MiB in use after": _memory_used()}

    def engine(self, spec: str) -> Row:
        """A run of `engine_run.py`."""
        from beside import run_one

        name, model, ranks, *rest = spec.split(":")
        self.model(model)
        if self.left_s < SHORTEST_RUN_S:
            return {"failed": "no time left"}
        ours: Row = {"tensor_parallel_size": int(ranks)}
        if rest:
            ours["executor"] = {"name": "torch", "all_reduce": rest[0]}
        if model == "32b":
            ours["max_num_batched_tokens"] = 8192
        os.environ["NANOFW_OPTIONS"] = json.dumps(ours)
        os.environ["NANO_VLLM_OPTIONS"] = json.dumps({"tensor_parallel_size": int(ranks)})
        log = self.out / f"{spec.replace(':', '_')}_{len(self.results)}.log"
        return run_one(f"{name}:{model}:1", self.models, log, self.left_s) or {"failed": str(log)}


def _divergences(one: Row, two: Row) -> Row:
    """Requests whose tokens differ, and the gap of the best two where they first do."""
    row: Row = {"requests": len(one["tokens"]), "that differ": 0, "gaps where they do": []}
    for name, tokens in one["tokens"].items():
        others = two["tokens"][name]
        place = next((i for i, (a, b) in enumerate(zip(tokens, others, strict=True)) if a != b), -1)
        if place >= 0:
            row["that differ"] += 1
            gap = one["gaps"][name][place] if name in one["gaps"] else None
            row["gaps where they do"].append([name, place, gap])
    return row


def _error(exact: Row, run: Row) -> float:
    """Mean distance of the prompts' log probabilities."""
    distances = [
        abs(a - b)
        for name, numbers in exact["prompts"].items()
        for a, b in zip(numbers, run["prompts"][name], strict=True)
    ]
    return sum(distances) / len(distances)


def _memory_used() -> list[int]:
    """MiB in use on each GPU."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.check_output(command, text=True).split()]


def print_table(results: dict[str, Any]) -> None:
    """All figures once more, shortly."""
    from timing import table

    print("\n=== results ===")
    engines = []
    for name, result in results.items():
        if "failed" in result or ":" not in name:
            print(name, {k: v for k, v in result.items() if k not in ("us", "log")})
        else:
            steps = {f"B={b} ms": round(ms, 3) for b, ms in result["step_ms"].items()}
            rates = [round(rate) for rate in result["tokens_per_s"]]
            engines.append(
                {"run": name, "ready s": round(result["construct_s"], 1), "tok/s": rates, **steps}
            )
    if "us" in results.get("all_reduce", {}):
        rows = [
            {"rows of 4096": b, **{name: round(us, 1) for name, us in row.items()}}
            for b, row in results["all_reduce"]["us"].items()
        ]
        print(table(rows))
    if engines:
        print(table(engines))


def main() -> None:
    arguments = sys.argv[1:]
    seconds = 530.0
    if arguments and arguments[0].replace(".", "").isdigit():
        seconds = float(arguments.pop(0))
    if not arguments:
        sys.exit(__doc__)
    import torch

    print(f"torch {torch.__version__}, {torch.cuda.device_count()} GPUs", flush=True)
    bench = Bench(seconds)
    for number, section in enumerate(arguments):
        if bench.left_s < SHORTEST_RUN_S:
            print("no time left for", *arguments[number:])
            break
        if section in bench.results:  # a second round
            bench.results[f"{section}:first"] = bench.results.pop(section)
        bench.run(section)
    print_table(bench.results)


CHILDREN = {
    "_all_reduce": lambda rank, size, path: all_reduce_rank(int(rank), int(size), path),
    "_parity": lambda folder, dtype, ranks: parity_run(folder, dtype, int(ranks)),
    "_control": lambda folder, ranks: control_run(folder, int(ranks)),
    "_kill": lambda folder, ranks: kill_run(folder, int(ranks)),
}

if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in CHILDREN:
        print("RESULT", json.dumps(CHILDREN[sys.argv[1]](*sys.argv[2:])), flush=True)
        os._exit(0)  # a captured graph holds its communicator: nothing is torn down in order
    main()
