"""Which replica serves what, and what becomes of the requests of one that is gone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nanofw.contracts.arrays import EMPTY_INT, IntArray
from nanofw.contracts.outputs import RequestOutput, StepOutput
from nanofw.contracts.requests import FinishReason, Request

MAX_TRIES = 2
"""A request whose replica died is begun once more: it may be what killed it."""


@dataclass(slots=True)
class Served:
    """A request that has not ended.

    Attributes:
        num_tokens: most tokens that it will compute, over all samples.
        replica: its number; None: none has it now.
        left: samples that have not ended.
        shown: tokens of samples that were handed out while they ran.
    """

    request: Request
    num_tokens: int
    replica: int | None = None
    num_tries: int = 0
    left: set[int] = field(default_factory=set[int])
    shown: dict[int, list[IntArray]] = field(default_factory=dict[int, list[IntArray]])
    is_aborted: bool = False

    @property
    def can_begin_anew(self) -> bool:
        """Nobody has seen anything of it, and it was not tried too often."""
        untouched = not self.shown and len(self.left) == self.request.sampling.n
        return untouched and self.num_tries < MAX_TRIES and not self.is_aborted


class Ledger:
    """All requests that have not ended, by id."""

    def __init__(self, num_replicas: int) -> None:
        self._served: dict[str, Served] = {}
        self._outstanding = [0] * num_replicas

    def __len__(self) -> int:
        return len(self._served)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._served

    def get(self, request_id: str) -> Served | None:
        return self._served.get(request_id)

    def enter(self, request: Request, num_tokens: int) -> Served:
        """A new request, at no replica yet."""
        served = Served(request, num_tokens, left=set(range(request.sampling.n)))
        self._served[request.id] = served
        return served

    def assign(self, served: Served, candidates: list[int]) -> int:
        """Give it to the candidate with the fewest outstanding tokens; the first of equals."""
        replica = min(candidates, key=lambda number: self._outstanding[number])
        served.replica = replica
        served.num_tries += 1
        self._outstanding[replica] += served.num_tokens
        return replica

    def outstanding(self, replica: int) -> int:
        """Tokens that a replica may still compute for its requests."""
        return self._outstanding[replica]

    def take(self, replica: int, output: StepOutput) -> StepOutput:
        """Note what a step brought; leaves out what the caller no longer waits for."""
        deltas = [delta for delta in output.deltas if self._is_at(replica, delta.id)]
        for delta in deltas:
            shown = self._served[delta.id].shown
            shown.setdefault(delta.sample_index, []).append(delta.token_ids)
        finished = [end for end in output.finished if self._is_at(replica, end.id)]
        for end in finished:
            self._end(self._served[end.id], end.sample_index)
        return StepOutput(finished=finished, deltas=deltas, report=output.report)

    def lose(self, replica: int, reason: str, now: float) -> StepOutput:
        """A replica is gone: ends of its requests that cannot begin anew; no one has the others."""
        theirs = [served for served in self._served.values() if served.replica == replica]
        output = StepOutput()
        for served in theirs:
            self._outstanding[replica] -= served.num_tokens
            served.replica = None
            if not served.can_begin_anew:
                output.finished += self.give_up(served, reason, now)
        return output

    def unassigned(self) -> list[Served]:
        """Requests that no replica has."""
        return [served for served in self._served.values() if served.replica is None]

    def give_up(self, served: Served, reason: str, now: float) -> list[RequestOutput]:
        """Ends of the samples that have none, with the tokens that were handed out."""
        aborted = served.is_aborted
        outputs = [
            RequestOutput.of_unserved(
                served.request,
                FinishReason.ABORT if aborted else FinishReason.ERROR,
                now,
                error=None if aborted else reason,
                sample_index=index,
                token_ids=_joined(served.shown.get(index, [])),
            )
            for index in sorted(served.left)
        ]
        for output in outputs:
            self._end(served, output.sample_index)
        return outputs

    def _is_at(self, replica: int, request_id: str) -> bool:
        served = self._served.get(request_id)
        return served is not None and served.replica == replica

    def _end(self, served: Served, sample_index: int) -> None:
        served.left.discard(sample_index)
        if not served.left:
            del self._served[served.request.id]
            if served.replica is not None:
                self._outstanding[served.replica] -= served.num_tokens


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else EMPTY_INT
