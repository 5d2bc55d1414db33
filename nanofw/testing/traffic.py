"""Random requests for a small engine, and a run that checks the engine after every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from nanofw.contracts.outputs import RequestOutput, StepReport
from nanofw.contracts.requests import FinishReason, Request, SamplingParams
from nanofw.engine.engine import Engine
from nanofw.errors import RequestShed
from nanofw.testing.sim_engine import END_TOKEN, SECONDS_PER_STEP

MAX_STEPS = 20_000
CHECK_EVERY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests by arrival, and the step at which some of them are aborted.

    Attributes:
        requests: in order of arrival, in seconds on the engine's clock.
        aborts: by request id, the number of steps after which it is aborted.
    """

    requests: tuple[Request, ...]
    aborts: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(slots=True)
class Record:
    """The outputs and steps of a run.

    Attributes:
        outputs: by request id. Of a request with `n` above 1 that is the first sample; the others
            stand under `ID, sample 1`, `ID, sample 2` and so on.
        reports: of every committed step.
    """

    outputs: dict[str, RequestOutput] = field(default_factory=dict[str, RequestOutput])
    reports: list[StepReport] = field(default_factory=list[StepReport])

    def tokens(self) -> dict[str, list[int]]:
        """Generated tokens, by the keys of `outputs`."""
        return {str(key): output.token_ids.tolist() for key, output in self.outputs.items()}


def random_traffic(
    seed: int,
    num_requests: int = 24,
    *,
    max_tokens: int = 40,
    abort_share: float = 0.15,
    steps_between_arrivals: float = 1.0,
    prefix: str = "",
    num_samples: int = 1,
) -> Traffic:
    """Requests of all kinds: with and without deadline, guess, priority, client and shared head.

    Args:
        max_tokens: most tokens of a request, prompt included.
        steps_between_arrivals: the mean; 0: all come at once.
        prefix: of the ids.
        num_samples: `n` of every sixth request; the others have 1.
    """
    generator = np.random.default_rng(seed)
    requests, aborts, arrival = list[Request](), dict[str, int](), 0.0
    for number in range(num_requests):
        arrival += SECONDS_PER_STEP * steps_between_arrivals * generator.exponential()
        length = int(generator.integers(1, max_tokens))
        head = np.full(int(generator.integers(0, 3)) * 4, generator.integers(3))
        tail = generator.integers(0, END_TOKEN, length)
        output = int(generator.integers(1, max_tokens - length + 1))
        request_id = f"{prefix}{number}"
        requests.append(
            Request(
                id=request_id,
                prompt_token_ids=np.concatenate((head, tail))[:length].astype(np.int32),
                sampling=SamplingParams(max_tokens=output, n=num_samples if number % 6 == 1 else 1),
                arrival=arrival,
                client=f"client {int(generator.integers(3))}",
                priority=int(generator.integers(-1, 3)),
                deadline=arrival + generator.exponential(0.3) if generator.random() < 0.6 else None,
                expected_output_tokens=output if generator.random() < 0.5 else None,
            )
        )
        if generator.random() < abort_share:
            aborts[request_id] = int(generator.integers(1, 3 * num_requests))
    return Traffic(requests=tuple(requests), aborts=aborts)


def serve(engine: Engine, traffic: Traffic) -> Record:
    """Run the traffic to its end, and check what always holds: after each step, and of the blocks
    after every few steps, since one that is lost stays lost.

    Raises AssertionError for a lost request, an exceeded budget, a leaked block or no end, and
    whatever the engine raises.
    """
    record = Record()
    for _ in steps(engine, traffic, record):
        pass
    return record


def steps(engine: Engine, traffic: Traffic, record: Record) -> Iterator[None]:
    """`serve` step by step: what has happened stands in the record after each."""
    waiting = list(reversed(traffic.requests))
    for step in range(MAX_STEPS):
        while waiting and _arrival(waiting[-1]) <= engine.clock.now():
            _add(engine, waiting.pop(), record)
        for request_id, at in traffic.aborts.items():
            if at == step:
                engine.abort_request(request_id)
        if engine.has_unfinished:
            wake_at = _step(engine, record)
            if step % CHECK_EVERY == 0:
                _check_blocks(engine)
            if wake_at is not None:
                arrival = _arrival(waiting[-1]) if waiting else wake_at
                engine.clock.wait_until(min(wake_at, arrival))
        elif waiting:
            engine.clock.wait_until(_arrival(waiting[-1]))
        else:
            _check_end(engine, traffic, record)
            return
        yield
    raise AssertionError(
        f"{engine.scheduler.num_requests} of {len(traffic.requests)} requests are unfinished "
        f"after {MAX_STEPS} steps"
    )


def _arrival(request: Request) -> float:
    return request.arrival or 0.0


def _key(request_id: str, sample_index: int) -> str:
    """What an output stands under in a record: the first sample under the request's id."""
    return f"{request_id}, sample {sample_index}" if sample_index else request_id


def _add(engine: Engine, request: Request, record: Record) -> None:
    """Hand a request to the engine; a policy may refuse it."""
    try:
        engine.add_request(request)
    except RequestShed as error:
        now, reason = engine.clock.now(), FinishReason.SHED
        for index in range(request.sampling.n):
            record.outputs[_key(request.id, index)] = RequestOutput.of_unserved(
                request, reason, now, error=error.reason, sample_index=index
            )


def _step(engine: Engine, record: Record) -> float | None:
    """One step; when the policy wants to be asked again, if nothing runs."""
    limits, output = engine.scheduler.limits, engine.step()
    for finished in output.finished:
        key = _key(finished.id, finished.sample_index)
        assert key not in record.outputs, f"request {key!r} finished twice"
        record.outputs[key] = finished
    report = output.report
    if report is None:
        return output.wake_at
    record.reports.append(report)
    num_tokens = report.num_prefill_tokens + report.num_decode_tokens
    assert 1 <= num_tokens <= limits.max_num_batched_tokens, f"over the budget: {report}"
    assert report.num_rows <= limits.max_num_seqs, f"too many rows: {report}"
    if limits.prefill_first:
        alone = report.num_prefill_tokens == 0 or report.num_decode_tokens == 0
        assert alone, f"prefill and decode in one step: {report}"
    return output.wake_at


def _check_blocks(engine: Engine) -> None:
    engine.scheduler.allocator.check_integrity()
    stats = engine.scheduler.allocator.stats()
    found = stats.num_free + stats.num_cached + stats.num_used
    assert found == stats.num_blocks, f"blocks were lost, or counted twice: {stats}"


def _check_end(engine: Engine, traffic: Traffic, record: Record) -> None:
    _check_blocks(engine)
    keys = {_key(r.id, index) for r in traffic.requests for index in range(r.sampling.n)}
    missing = keys - set(record.outputs)
    assert not missing, f"requests were lost: {sorted(missing)}"
    for key, output in record.outputs.items():
        expected = {reason for reason in FinishReason if reason.is_served} | {FinishReason.SHED}
        if output.id in traffic.aborts:
            expected.add(FinishReason.ABORT)
        assert output.finish_reason in expected, f"{key!r} ended with {output}"
    available = engine.scheduler.allocator.num_available
    total = engine.scheduler.limits.num_blocks
    assert available == total, f"{total - available} blocks of {total} were not given back"
