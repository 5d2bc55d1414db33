"""Nothing is lost and nothing is counted twice: laws that hold in every simulated run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from nanofw.assembly import Selection, build, select
from nanofw.compare.client_service import ClientService
from nanofw.config.load import load_config
from nanofw.contracts.observer import StepObserver
from nanofw.contracts.outputs import RequestOutput, StepReport
from nanofw.contracts.plan import StepPlan
from nanofw.contracts.requests import Request
from nanofw.measure.drive import drive
from nanofw.measure.token_times import TokenTimes
from tests.decisions.runs import Mixed

POLICIES = (
    "fcfs", "shortest_job_first", "priority", "longest_prefix_match", "fair_share",
    "earliest_deadline_first", "partitioned", "random",
)  # fmt: skip


def chosen(seed: int) -> Selection:
    """A random small machine, short of rows, blocks or budget."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 9))
    values: dict[str, Any] = {
        "model": {"path": "shape:qwen3-0.6b"},
        "engine": {
            "max_num_seqs": rows, "max_model_len": 280,
            "max_num_batched_tokens": int(rng.choice([32, 96, 512])),
            "overlap": bool(rng.integers(2)),
            "batching": str(rng.choice(["mixed", "prefill_first"])),
            "chunk_tokens": (None, 48)[rng.integers(2)],
        },
        "kv_allocator": {
            "name": str(rng.choice(["paged", "paged_prefix"])),
            "num_blocks": int(rng.integers(18, 60)), "block_size": 16, "check_every": 50,
        },
        "scheduler": {"name": POLICIES[seed % len(POLICIES)]},
        "executor": {
            "name": "sim", "eos_probability": float(rng.choice([0.0, 0.02])),
            "cost_model": {"name": "constant", "seconds_per_step": 0.01,
                           "seconds_per_token": 0.0001},
        },
    }  # fmt: skip
    return select(load_config(None, values=values))


class Work(StepObserver):
    """Tokens that each request computed, by the plans; and each client, once two are known."""

    def __init__(self, clients: dict[str, str], service: ClientService) -> None:
        self._rows: dict[int, str] = {}
        self._clients, self._service = clients, service
        self.computed: Counter[str] = Counter()
        self.by_client: Counter[str] = Counter()
        self.total = 0

    def submitted(self, plan: StepPlan, now: float) -> None:
        for new in plan.new:
            self._rows[new.row] = new.request_id
        for row, count in zip(plan.rows.tolist(), plan.num_tokens.tolist(), strict=True):
            name = self._rows[row]
            self.computed[name] += count
            self.total += count
            if len(self._service.clients) > 1:
                self.by_client[self._clients[name]] += count


@pytest.mark.parametrize(
    "seed", [*range(8), 156, *(pytest.param(s, marks=pytest.mark.slow) for s in range(8, 200))]
)
def test_the_laws_hold(seed: int) -> None:
    selection, workload = chosen(seed), Mixed(40, seed=seed)
    requests = {request.id: request for request in workload.initial()}
    outputs: dict[str, RequestOutput] = {}
    reports: list[StepReport] = []
    with build(selection) as engine:
        times, service, crowd = TokenTimes(), ClientService(), Crowd()
        work = Work({name: request.client for name, request in requests.items()}, service)

        def accept(request: Request, now: float) -> None:
            service.add_request(request)
            assert request.arrival is not None
            crowd.come(request.arrival)

        with engine.observed_by(work, times, service):
            for step in drive(engine, workload, accept):
                for output in step.finished:
                    assert output.id not in outputs, "a request ends once"
                    outputs[output.id] = output
                    crowd.leave(output.finished)
                if step.report is not None:
                    reports.append(step.report)
        stats = engine.stats()
        engine.scheduler.allocator.check_integrity()
        overlap = engine.overlap
    check_requests(requests, outputs, stats)
    check_tokens(outputs, work, reports, stats, overlap)
    assert times.num_tokens(0.0, 1e9) == stats["num_output_tokens"]
    # Little's law, exact over a whole run: the mean number in the system is rate times sojourn
    sojourn = sum(output.finished - output.arrival for output in outputs.values())
    assert crowd.area == pytest.approx(sojourn)
    assert dict(zip(service.clients, service.total.tolist(), strict=True)) == work.by_client


class Crowd:
    """The number of requests in the system over time, by arrivals and ends."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int]] = []

    def come(self, at: float) -> None:
        self._events.append((at, 1))

    def leave(self, at: float) -> None:
        self._events.append((at, -1))

    @property
    def area(self) -> float:
        """The integral of the number over time."""
        area, number, last = 0.0, 0, 0.0
        for at, change in sorted(self._events):
            area += number * (at - last)
            number, last = number + change, at
        assert number == 0
        return area


def check_requests(
    requests: dict[str, Request], outputs: dict[str, RequestOutput], stats: Any
) -> None:
    """All that came have ended, each in its order of times."""
    assert outputs.keys() == requests.keys()
    assert stats["num_submitted"] == sum(stats["num_finished"].values()) == len(requests)
    assert stats["num_running"] == stats["num_waiting"] == 0
    for output in outputs.values():
        assert output.scheduled is not None
        assert output.first_token is not None
        assert output.arrival <= output.scheduled < output.first_token <= output.finished
        most = requests[output.id].sampling.max_tokens
        assert most is not None
        assert 1 <= len(output.token_ids) <= most


def check_tokens(
    outputs: dict[str, RequestOutput],
    work: Work,
    reports: list[StepReport],
    stats: Any,
    overlap: bool,
) -> None:
    """What was computed is prompts and outputs, less what the cache had, plus what was lost."""
    assert work.total == sum(r.num_prefill_tokens + r.num_decode_tokens for r in reports)
    assert stats["num_output_tokens"] == sum(len(o.token_ids) for o in outputs.values())
    assert stats["num_cached_tokens"] == sum(o.num_cached_tokens for o in outputs.values())
    assert stats["num_preemptions"] == sum(o.num_preemptions for o in outputs.values())
    for output in outputs.values():
        # the last token is sampled and never computed
        needed = output.num_prompt_tokens + len(output.token_ids) - 1
        expected = needed - output.num_cached_tokens + output.num_recomputed_tokens
        surplus = work.computed[output.id] - expected
        assert 0 <= surplus <= (1 if overlap else 0), output
