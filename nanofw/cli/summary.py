"""What a run did, in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nanofw.cli.tables import readable_number, readable_percent
from nanofw.contracts.outputs import StepReport
from nanofw.contracts.requests import FinishReason
from nanofw.llm.results import RequestResult, Timings
from nanofw.measure.latencies import PER_REQUEST, title
from nanofw.narrowing import Stats

PERCENTILES = (50, 90, 99)


@dataclass(slots=True)
class Summary:
    """Collects results and steps of one run.

    Attributes:
        num_output_tokens: of requests that finished.
        by_reason: number of requests by the reason for their end.
        num_cut: requests that `max_model_len` ended before their own `max_tokens`.
        timings: of the requests that were served to their end.
        max_used_blocks: most KV blocks owned by running requests after any step.
    """

    by_reason: dict[FinishReason, int] = field(
        default_factory=lambda: dict.fromkeys(FinishReason, 0)
    )
    timings: list[Timings] = field(default_factory=list[Timings])
    num_cut: int = 0
    num_steps: int = 0
    num_prefill_tokens: int = 0
    num_output_tokens: int = 0
    max_used_blocks: int = 0
    start: float | None = None
    end: float = 0.0

    def add(self, result: RequestResult) -> None:
        """Count a request that finished."""
        self.by_reason[result.finish_reason] += 1
        self.num_cut += any(output.limit == "max_model_len" for output in result.outputs)
        self.num_output_tokens += result.num_output_tokens
        if result.ok and result.timings is not None:
            self.timings.append(result.timings)

    def add_step(self, report: StepReport) -> None:
        """Count a step."""
        self.num_steps += 1
        self.num_prefill_tokens += report.num_prefill_tokens
        self.max_used_blocks = max(self.max_used_blocks, report.num_used_blocks)
        if self.start is None:
            self.start = report.planned
        self.end = report.committed

    @property
    def num_requests(self) -> int:
        return sum(self.by_reason.values())

    @property
    def num_served(self) -> int:
        """Requests that finished with `stop` or `length`."""
        return sum(count for reason, count in self.by_reason.items() if reason.is_served)

    @property
    def seconds(self) -> float:
        """From the first plan to the last commit, on the engine's clock."""
        return 0.0 if self.start is None else self.end - self.start

    def lines(
        self, stats: Mapping[str, object], *, virtual: bool, num_unfinished_tokens: int = 0
    ) -> list[str]:
        """The summary for reading.

        Args:
            stats: `Engine.stats()`.
            virtual: the seconds are those of a simulated run.
            num_unfinished_tokens: generated for requests that have not finished.
        """
        return [
            self._requests_line(),
            *self._throughput_lines(virtual, self.num_output_tokens + num_unfinished_tokens),
            *_latency_lines(self.timings),
            *self._kv_lines(stats),
        ]

    def _requests_line(self) -> str:
        parts = [f"{count} {reason}" for reason, count in self.by_reason.items() if count]
        cut = f"; {self.num_cut} reached max_model_len" if self.num_cut else ""
        return f"requests    {self.num_requests}: {', '.join(parts) or 'none'}{cut}"

    def _throughput_lines(self, virtual: bool, num_output_tokens: int) -> list[str]:
        seconds = self.seconds
        unit = "virtual s" if virtual else "s"
        steps = f"steps       {self.num_steps} in {readable_number(seconds)} {unit}"
        if not seconds:
            return [steps]
        rates = (
            f"{readable_number(self.num_served / seconds)} requests/s, "
            f"prefill {readable_number(self.num_prefill_tokens / seconds)} tokens/s, "
            f"output {readable_number(num_output_tokens / seconds)} tokens/s"
        )
        return [steps, f"throughput  {rates}"]

    def _kv_lines(self, stats: Stats) -> list[str]:
        num_blocks = stats["blocks"]["num_blocks"]
        used = readable_percent(self.max_used_blocks / num_blocks if num_blocks else 0.0)
        prompt, cached = stats["num_prompt_tokens"], stats["num_cached_tokens"]
        hits = readable_percent(cached / prompt if prompt else 0.0)
        return [
            f"KV          at most {self.max_used_blocks} of {num_blocks} blocks "
            f"({used}); preemptions {stats['num_preemptions']}",
            f"            prefix hits {cached:,} of {prompt:,} prompt tokens ({hits})",
        ]


def _latency_lines(timings: Sequence[Timings]) -> list[str]:
    lines: list[str] = []
    for name in PER_REQUEST:
        values = [value for item in timings if (value := getattr(item, f"{name}_s")) is not None]
        if values:
            shares = np.percentile(values, PERCENTILES)
            pairs = zip(PERCENTILES, shares, strict=True)
            parts = [f"p{percent} {1e3 * seconds:,.1f} ms" for percent, seconds in pairs]
            lines.append(f"{title(name):<12}{', '.join(parts)}")
    return lines
