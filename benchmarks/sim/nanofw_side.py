"""nanofw's scheduler over workloads of `vllm_workloads`, its model mocked: traces of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nanofw.assembly import build_on, select
from nanofw.config.load import load_config
from nanofw.contracts.clock import VirtualClock
from nanofw.contracts.executor import Executor
from nanofw.contracts.observer import StepObserver
from nanofw.contracts.plan import Capacity, StepPlan, StepResult
from nanofw.contracts.requests import Request, SamplingParams


class Script(Executor):
    """A device that answers with the tokens of the workload."""

    def __init__(self, workload: dict[str, Any]) -> None:
        self._workload = workload
        self._ids = np.zeros(workload["rows"], np.int64)
        self._prompts = np.array([len(r["prompt"]) for r in workload["requests"]])
        self._result: StepResult | None = None

    def capacity(self) -> Capacity:
        size, blocks = self._workload["block_size"], self._workload["num_blocks"]
        return Capacity(num_blocks=blocks, block_size=size, max_in_flight=1)

    def submit(self, plan: StepPlan) -> None:
        for new in plan.new:
            self._ids[new.row] = int(new.request_id)
        ids = self._ids[plan.sampled_rows]
        at = (plan.starts + plan.num_tokens)[plan.samples] - self._prompts[ids]
        asked = self._workload["requests"]
        tokens = [asked[i]["outputs"][k] for i, k in zip(ids.tolist(), at.tolist(), strict=True)]
        self._result = StepResult(step=plan.step, token_ids=np.array(tokens, np.int32))

    def collect(self) -> StepResult:
        assert self._result is not None
        return self._result


class Trace(StepObserver):
    """Steps as they are planned: see the modes of `vllm_side`."""

    def __init__(self) -> None:
        self.steps: list[list[Any]] = []
        self._names: dict[int, str] = {}

    def planned(self, plan: StepPlan | None, now: float) -> None:
        if plan is None:
            self.steps.append([int(now), {}, {}, []])
            return
        gone = [self._names.pop(row) for row in plan.removed.tolist()]
        self._names.update({new.row: new.request_id for new in plan.new})
        names = [self._names[row] for row in plan.rows.tolist()]
        counts = dict(zip(names, plan.num_tokens.tolist(), strict=True))
        starts = dict(zip(names, plan.starts.tolist(), strict=True))
        hits = {new.request_id: starts[new.request_id] for new in plan.new}
        preempted = sorted(set(gone) - set(plan.finished))
        self.steps.append([int(now), counts, hits, preempted])


def run(workload: dict[str, Any], words: Sequence[str] = ()) -> list[Any]:
    """The trace; `words` override the configuration."""
    # A hair less, since shares of blocks are rounded.
    watermark = max(0.0, (workload["watermark_blocks"] - 1e-6) / workload["num_blocks"])
    values = {
        "model": {"path": "shape:qwen3-0.6b"},
        "engine": {
            "max_num_seqs": workload["rows"], "max_num_batched_tokens": workload["budget"],
            "max_model_len": min(2048, workload["num_blocks"] * workload["block_size"]),
            "overlap": False,
        },
        "kv_allocator": {
            "name": "paged_prefix", "num_blocks": workload["num_blocks"],
            "block_size": workload["block_size"],
        },
        "scheduler": {"name": "fcfs", "watermark": watermark},
        "executor": {"name": "sim"},
    }  # fmt: skip
    selection = select(load_config(None, list(words), values=values))
    clock, trace, requests = VirtualClock(), Trace(), workload["requests"]
    step = coming = 0
    with build_on(selection, Script(workload), clock, observers=[trace]) as engine:
        while coming < len(requests) or engine.has_unfinished:
            clock.wait_until(step + 0.5)
            while coming < len(requests) and requests[coming]["step"] <= step:
                engine.add_request(_request(coming, requests[coming], step))
                coming += 1
            if engine.has_unfinished:
                engine.step()
            step += 1
    return trace.steps


def _request(number: int, asked: dict[str, Any], step: int) -> Request:
    return Request(
        id=str(number),
        prompt_token_ids=asked["prompt"],
        sampling=SamplingParams(max_tokens=len(asked["outputs"]), ignore_eos=True, temperature=0.0),
        arrival=step + 1e-6 * number,  # of equal arrivals, one that gave way would go first
    )
