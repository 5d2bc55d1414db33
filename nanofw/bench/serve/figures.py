"""What clients saw of a run: the metrics of `nanofw compare`, from the outside.

Latencies count from the time at which a request was to be sent, so an endpoint that stalls cannot
slow down the generator and look better for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nanofw.bench.serve.generator import LoadGenerator, SentRequest
from nanofw.bench.serve.options import ServeOptions
from nanofw.config.slo import Slo
from nanofw.contracts.arrays import FloatArray
from nanofw.contracts.requests import FinishReason
from nanofw.measure.latencies import STATISTICS, latencies

LATE_SHARE = 0.01
"""The generator is late when its 99th percentile is more than this share of the mean E2E."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLatencies:
    """Of one client's requests in the measured part.

    Attributes:
        share: of all tokens that were received.
    """

    num_requests: int
    num_output_tokens: int
    share: float
    latencies: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRun:
    """What one run came to.

    Attributes:
        rate: requests per second that were asked for; None: as the workload says.
        complete: every request was sent, and every answer had ended.
        num_requests: that became due; `num_measured` of them lie between warm-up and drain, and
            were served to their end.
        num_refused, num_shed, num_failed: turned away, turned away by 429, failed.
        seconds: from the first request to the end of the last.
        latencies: seconds by quantity and statistic, of the measured requests.
        tokens_per_s, requests_per_s: received in the measured part.
        goodput_rate, goodput_share: requests of the measured part that meet every limit of `slo`,
            per second and of those that came; None without a limit.
        send_lateness: by statistic, seconds after its time at which a request was sent.
        loop_lateness: by statistic, seconds by which the generator was late to look.
        notes: sentences on the traffic, on what failed, and on the generator.
    """

    rate: float | None
    seed: int
    complete: bool
    num_requests: int
    num_measured: int
    num_refused: int
    num_shed: int
    num_failed: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    seconds: float
    tokens_per_s: float
    requests_per_s: float
    goodput_rate: float | None
    goodput_share: float | None
    latencies: Mapping[str, Mapping[str, float]]
    clients: Mapping[str, ClientLatencies]
    send_lateness: Mapping[str, float]
    loop_lateness: Mapping[str, float]
    notes: tuple[str, ...]


def summarize(
    generator: LoadGenerator,
    options: ServeOptions,
    *,
    rate: float | None,
    seed: int,
    complete: bool,
    notes: Sequence[str] = (),
) -> ServeRun:
    """The figures of a run: latencies of requests that came in the measured part."""
    every = generator.sent
    served = [item for item in every if item.reason.is_served]
    start, end = _window(every, options)
    came = [item for item in every if start <= item.arrival <= end]
    inside = [item for item in came if item.reason.is_served]
    seconds = max(end - start, 1e-12)
    found = _latencies(inside)
    good = None if options.slo == Slo() else int(options.slo.met_by(found).sum())
    ended = [item for item in served if start <= item.finished <= end]
    late = np.array([item.sent - item.arrival for item in every if item.sent == item.sent])
    return ServeRun(
        rate=rate,
        seed=seed,
        complete=complete,
        num_requests=len(every),
        num_measured=len(inside),
        num_refused=_count(every, FinishReason.REFUSED),
        num_shed=_count(every, FinishReason.SHED),
        num_failed=_count(every, FinishReason.ERROR),
        num_prompt_tokens=sum(item.num_prompt_tokens for item in served),
        num_cached_tokens=sum(item.num_cached_tokens for item in served),
        num_output_tokens=sum(item.num_tokens for item in every),
        seconds=_seconds(every),
        tokens_per_s=generator.num_events(start, end) * tokens_per_event(every) / seconds,
        requests_per_s=len(ended) / seconds,
        goodput_rate=None if good is None else good / seconds,
        goodput_share=None if good is None else good / max(len(came), 1),
        latencies=_statistics(found, generator.gaps(start, end)),
        clients=_clients(inside),
        send_lateness=_of(late),
        loop_lateness=_of(generator.loop_lateness),
        notes=(*notes, *_problems(every, inside, late, generator.loop_lateness)),
    )


def _window(every: Sequence[SentRequest], options: ServeOptions) -> tuple[float, float]:
    """The measured part: arrivals less warm-up and drain; all where they come at once."""
    arrivals = [item.arrival for item in every]
    if not arrivals or max(arrivals) == min(arrivals):
        ends = [item.finished for item in every if item.finished == item.finished]
        return min(arrivals, default=0.0), max(ends, default=0.0)
    first, span = min(arrivals), max(arrivals) - min(arrivals)
    return first + options.warm_up * span, first + (1 - options.drain) * span


def tokens_per_event(every: Sequence[SentRequest]) -> float:
    """How many tokens an event had, on average."""
    num_events = sum(item.num_events for item in every)
    return sum(item.num_tokens for item in every) / num_events if num_events else 0.0


def _seconds(every: Sequence[SentRequest]) -> float:
    ends = [item.finished for item in every if item.finished == item.finished]
    return max(ends) - min(item.arrival for item in every) if ends else 0.0


def _latencies(requests: Sequence[SentRequest]) -> dict[str, FloatArray]:
    lines = [
        (item.arrival, item.sent, item.first_token, item.finished, item.num_tokens)
        for item in requests
    ]
    found = latencies(*np.array(lines, np.float64).reshape(-1, 5).T)
    del found["queue"]  # a client does not see when its request was started
    return found


def _statistics(found: Mapping[str, FloatArray], gaps: FloatArray) -> dict[str, dict[str, float]]:
    made: dict[str, dict[str, float]] = {}
    for name, values in (*found.items(), ("itl", gaps)):
        defined = values[~np.isnan(values)]
        if len(defined):
            made[name] = _of(defined)
    return made


def _of(values: FloatArray) -> dict[str, float]:
    return {key: function(values) for key, function in STATISTICS.items()} if len(values) else {}


def _clients(inside: Sequence[SentRequest]) -> dict[str, ClientLatencies]:
    """By client, where there are several."""
    total = sum(item.num_tokens for item in inside)
    made: dict[str, ClientLatencies] = {}
    for client in sorted({item.client for item in inside}):
        own = [item for item in inside if item.client == client]
        tokens = sum(item.num_tokens for item in own)
        made[client] = ClientLatencies(
            num_requests=len(own),
            num_output_tokens=tokens,
            share=tokens / max(total, 1),
            latencies=_statistics(_latencies(own), np.zeros(0)),
        )
    return made if len(made) > 1 else {}


def _count(every: Sequence[SentRequest], reason: FinishReason) -> int:
    return sum(item.reason is reason for item in every)


def _problems(
    every: Sequence[SentRequest],
    inside: Sequence[SentRequest],
    late: FloatArray,
    loop_late: FloatArray,
) -> Iterator[str]:
    for reason, what in (
        (FinishReason.REFUSED, "were refused"),
        (FinishReason.SHED, "were turned away by 429"),
        (FinishReason.ERROR, "failed"),
    ):
        errors = [item.error for item in every if item.reason is reason]
        if errors:
            yield f"{len(errors)} requests {what}, the first with: {errors[0]}"
    joined = sum(item.num_tokens > item.num_events for item in inside)
    if joined:
        yield (
            f"{joined} answers had events of several tokens: ITL is the gap between events, TPOT "
            "counts tokens"
        )
    if other := [item for item in inside if item.num_tokens != item.num_wanted]:
        yield (
            f"{len(other)} answers had another number of tokens than was asked for "
            f"({other[0].num_tokens} instead of {other[0].num_wanted}, for example): figures of "
            "endpoints can be compared only if their answers are equally long"
        )
    if len(inside) and len(late):
        mean = float(np.mean([item.finished - item.arrival for item in inside]))
        worst = max(float(np.percentile(values, 99)) for values in (late, loop_late) if len(values))
        if worst > LATE_SHARE * mean:
            yield (
                f"the generator itself was late by {1e3 * worst:.1f} ms at the 99th percentile, "
                "which latencies include: give it a core of its own, or less to do"
            )
