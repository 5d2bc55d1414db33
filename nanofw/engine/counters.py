"""What an engine counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the engine was made.

    Attributes:
        num_prompt_tokens: of requests that were started.
        num_cached_tokens: of them, found in the prefix cache at first admission.
        num_recovered_tokens: of preempted requests, found in the cache on their return.
        num_recomputed_tokens: computed again after a preemption.
        num_output_tokens: of finished requests.
        num_waits: plans that had to wait for the step in flight.
        num_failed_rows: rows whose logits were not finite, or left no token.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_recovered_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_waits: int = 0
    num_failed_rows: int = 0
