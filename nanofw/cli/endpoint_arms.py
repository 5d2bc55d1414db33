"""Arms of `nanofw compare` that are endpoints, measured as `nanofw bench serve` does."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import numpy as np

from nanofw.contracts.outputs import RequestOutput

if TYPE_CHECKING:
    from nanofw.assembly import Selection
    from nanofw.bench.serve.generator import LoadGenerator, SentRequest
    from nanofw.compare.endpoint_run import ClientView
    from nanofw.compare.experiment import ExperimentOptions
    from nanofw.compare.run import RunResult
    from nanofw.compare.task import Task
    from nanofw.compare.traffic import ObservedWorkload
    from nanofw.contracts.workload import Workload


def measure_endpoint(
    selection: Selection, options: ExperimentOptions, url: str, task: Task
) -> RunResult:
    """Send the traffic of a task to the endpoint at an address, and measure what comes back."""
    from nanofw.bench.serve.options import ServeOptions
    from nanofw.bench.serve.runs import LoadRun
    from nanofw.compare.endpoint_run import EndpointRun
    from nanofw.compare.traffic import ObservedWorkload

    sent: list[ObservedWorkload] = []

    def observed(workload: Workload) -> Workload:
        sent.append(ObservedWorkload(workload, selection.spec.vocab_size))
        return sent[0]

    run = LoadRun(selection, ServeOptions(url=url), task.seed, task.time_scale, observed)
    asyncio.run(run.to_end())
    assert run.generator is not None
    return EndpointRun(_view(run.generator), sent[0], options).result()


def _view(generator: LoadGenerator) -> ClientView:
    from nanofw.bench.serve.figures import tokens_per_event
    from nanofw.compare.endpoint_run import ClientView

    every = generator.sent
    per_event = tokens_per_event(every)
    late = [item.sent - item.arrival for item in every if not math.isnan(item.sent)]
    return ClientView(
        outputs=[(item.client, _output(item)) for item in every],
        gaps=generator.gaps,
        num_tokens=lambda start, end: generator.num_events(start, end) * per_event,
        lag_s=max([*late, *generator.loop_lateness.tolist()], default=0.0),
    )


def _output(item: SentRequest) -> RequestOutput:
    first = None if math.isnan(item.first_token) else item.first_token
    return RequestOutput(
        id=item.id,
        token_ids=np.zeros(item.num_tokens, np.int32),
        finish_reason=item.reason,
        num_prompt_tokens=item.num_prompt_tokens,
        num_cached_tokens=item.num_cached_tokens,
        error=item.error,
        arrival=item.arrival,
        scheduled=first,
        first_token=first,
        finished=item.finished,
    )
