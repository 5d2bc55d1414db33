"""Contract `workload/1` (stable): where requests come from, and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import Request, SamplingParams


class Workload(ABC):
    """Base of workloads. Constructed as `target(options, WorkloadConfig)`, once for each run.

    Requests are a function of the options, `seed` and what `follow` was told: every arm of a
    comparison gets the same prompts, lengths and seeds.

    Attributes:
        notes: sentences for the report, such as how many prompts had to be cut.
        shares_prefixes: whether prompts may begin alike; if not, any hit in the prefix cache
            means that the cache was not empty.
    """

    notes: tuple[str, ...] = ()
    shares_prefixes: bool = True

    @property
    @abstractmethod
    def num_requests(self) -> int:
        """How many requests there will be in all."""

    @property
    def rate(self) -> float | None:
        """Mean arrivals per second at time scale 1; None: arrivals depend on what finishes."""
        return None

    @abstractmethod
    def initial(self) -> Iterator[Request]:
        """Requests whose arrival is known beforehand, by rising arrival, made one by one."""

    def follow(self, output: RequestOutput) -> Sequence[Request]:
        """Requests that come because this one finished: closed loops, turns of a conversation."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """Facts that a workload is built with, beside its options.

    Attributes:
        vocab_size: token ids are below it.
        max_model_len: prompt and output together are cut to it, the output first.
        seed: start of all random numbers.
        start: the engine's clock at time 0 of the workload, in seconds.
        time_scale: what times between arrivals are multiplied with; 0: all at once.
        sampling: how tokens are sampled; `max_tokens`, `seed` and `ignore_eos` are replaced.
    """

    vocab_size: int
    max_model_len: int
    seed: int = 0
    start: float = 0.0
    time_scale: float = 1.0
    sampling: SamplingParams = field(default_factory=SamplingParams)
