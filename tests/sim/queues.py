"""Single-server queues made of the engine and the simulated executor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanofw.assembly import assemble
from nanofw.config.load import load_config
from nanofw.contracts.arrays import FloatArray, LongArray
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.contracts.workload import Workload
from nanofw.measure.drive import drive

TICK = 1e-3
"""Seconds of service per prompt token."""


class Given(Workload):
    """Jobs of one step each: a prompt as long as its service, one token of output."""

    def __init__(self, arrivals: FloatArray, ticks: LongArray) -> None:
        self._arrivals, self._ticks = arrivals, ticks

    @property
    def num_requests(self) -> int:
        return len(self._arrivals)

    def initial(self) -> Iterator[Request]:
        sampling = SamplingParams(max_tokens=1, ignore_eos=True)
        for i, (arrival, ticks) in enumerate(zip(self._arrivals, self._ticks, strict=True)):
            yield Request(
                id=str(i), prompt_token_ids=np.zeros(int(ticks), np.int32), sampling=sampling,
                arrival=float(arrival), priority=int(ticks) % 3, client=str(i % 3),
                deadline=float(arrival) + 1.0,
            )  # fmt: skip


def serve(
    arrivals: FloatArray, ticks: LongArray, policy: str = "fcfs", **engine: object
) -> list[RequestOutput]:
    """What the engine makes of the jobs, in their order."""
    values = {
        "model": {"path": "shape:qwen3-0.6b"},
        "engine": {
            "max_num_seqs": 1, "max_model_len": 4096, "max_num_batched_tokens": 4096,
            "overlap": False, **engine,
        },
        "kv_allocator": {"name": "paged", "num_blocks": 1024},
        "scheduler": {"name": policy},
        "executor": {
            "name": "sim",
            "cost_model": {"name": "constant", "seconds_per_step": 0.0, "seconds_per_token": TICK},
        },
    }  # fmt: skip
    with assemble(load_config(None, values=values)) as made:
        finished = [o for step in drive(made, Given(arrivals, ticks)) for o in step.finished]
    return sorted(finished, key=lambda output: int(output.id))


def waits(outputs: list[RequestOutput]) -> FloatArray:
    """float64[n], seconds between arrival and service."""
    return np.array([(o.scheduled or 0.0) - o.arrival for o in outputs])


def lindley(arrivals: FloatArray, service: FloatArray) -> FloatArray:
    """float64[n], waits in a first-come single-server queue (Lindley 1952)."""
    found = np.zeros(len(arrivals))
    for i in range(1, len(arrivals)):
        found[i] = max(0.0, found[i - 1] + service[i - 1] - (arrivals[i] - arrivals[i - 1]))
    return found


def mean_wait(load: float, lengths: LongArray) -> float:
    """Mean wait of M/G/1 with service times drawn from `lengths` (Pollaczek-Khinchine)."""
    service = lengths * TICK
    rate = load / float(service.mean())
    return rate * float((service**2).mean()) / (2 * (1 - load))


def stationary_means(
    load: float, lengths: LongArray, num_starts: int, num_jobs: int, seed: int
) -> FloatArray:
    """float64[num_starts], mean waits of the first jobs of queues in their stationary state.

    The queues are served one after the other by one engine. Each starts with the backlog of a
    queue that has run for ever: a geometric number of residual service times, by the formula
    of Pollaczek and Khinchine as a distribution, so that the first jobs' mean wait is exactly
    the stationary one and starts are independent of each other.
    """
    rng = np.random.default_rng(seed)
    rate = load / (float(lengths.mean()) * TICK)
    arrivals, ticks, counted = list[float](), list[int](), list[bool]()
    for start in range(num_starts):
        origin = 1000.0 * start
        residuals = rng.choice(lengths, rng.geometric(1 - load) - 1, p=lengths / lengths.sum())
        backlog = round(sum(rng.uniform(0, length) for length in residuals))
        for part in [min(4000, backlog - i) for i in range(0, backlog, 4000)]:
            arrivals.append(origin)
            ticks.append(part)
            counted.append(False)
        gaps = rng.exponential(1 / rate, num_jobs)
        gaps[0] = 0.0  # the first finds the backlog as it is; the next ones follow at random
        arrivals += (origin + np.cumsum(gaps)).tolist()
        ticks += rng.choice(lengths, num_jobs).tolist()
        counted += [True] * num_jobs
    outputs = serve(np.array(arrivals), np.array(ticks))
    return waits(outputs)[counted].reshape(num_starts, num_jobs).mean(axis=1)
