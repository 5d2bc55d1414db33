"""Contract `workload/1` (stable): where requests come from, and when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import Request, SamplingParams


class Workload(ABC):
    """Base of workloads. Constructed as `target(options, WorkloadConfig)`, once for each run.

    Requests depend only on the options, on `seed` and on the arguments of `follow`. So every arm of
    a comparison gets the same prompts, lengths and seeds.

    Attributes:
        notes: sentences for the report, such as how many prompts had to be cut.
        shares_prefixes: whether prompts may have a common beginning. If not, a hit in the prefix
            cache shows that the cache was not empty at the start.
    """

    notes: tuple[str, ...] = ()
    shares_prefixes: bool = True

    @property
    @abstractmethod
    def num_requests(self) -> int:
        """How many requests there will be altogether."""

    @property
    def rate(self) -> float | None:
        """How many requests arrive per second on average, at time scale 1.

        None: arrivals depend on when requests finish.
        """
        return None

    @abstractmethod
    def initial(self) -> Iterator[Request]:
        """Requests whose arrival is known beforehand, made one by one; arrivals do not decrease."""

    def follow(self, output: RequestOutput) -> Sequence[Request]:
        """Requests that arrive because this one finished: closed loops, turns of a conversation."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """Facts that a workload is constructed with, beside its options.

    Attributes:
        vocab_size: token ids are below it.
        max_model_len: prompt and output together are cut to it, the output first.
        seed: start of all random numbers.
        start: the time of the engine's clock at time 0 of the workload, in seconds.
        time_scale: factor for all times between arrivals, periods of the workload included; 0: all
            requests arrive at once.
        sampling: how tokens are sampled; `max_tokens`, `seed` and `ignore_eos` are replaced.
    """

    vocab_size: int
    max_model_len: int
    seed: int = 0
    start: float = 0.0
    time_scale: float = 1.0
    sampling: SamplingParams = field(default_factory=SamplingParams)
