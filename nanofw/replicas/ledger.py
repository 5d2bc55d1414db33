"""Which replica has which request, and what becomes of those of a lost replica."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nanofw.contracts.arrays import EMPTY_INT, IntArray
from nanofw.contracts.outputs import RequestOutput, StepOutput
from nanofw.contracts.requests import FinishReason, Request
from nanofw.contracts.router import ReplicaView
from nanofw.contracts.views import RequestView

MAX_TRIES = 2
"""A request whose replica died is started only once more: it may be what killed it."""


@dataclass(slots=True)
class RoutedRequest:
    """A request that has not ended.

    Attributes:
        view: what a router sees of it.
        num_tokens: most tokens that it will compute, over all samples.
        replica: its number; None: none has it now.
        is_running: a step of its replica ran it.
        left: samples that have not ended.
        shown: tokens of samples that were handed out while they ran.
    """

    request: Request
    view: RequestView
    num_tokens: int
    replica: int | None = None
    is_running: bool = False
    num_tries: int = 0
    left: set[int] = field(default_factory=set[int])
    shown: dict[int, list[IntArray]] = field(default_factory=dict[int, list[IntArray]])
    is_aborted: bool = False

    @property
    def can_start_again(self) -> bool:
        """Whether nothing of it was handed out and it may be tried once more."""
        untouched = not self.shown and len(self.left) == self.request.sampling.n
        return untouched and self.num_tries < MAX_TRIES and not self.is_aborted


class Ledger:
    """All requests that have not ended, by id."""

    def __init__(self, num_replicas: int) -> None:
        self._routed: dict[str, RoutedRequest] = {}
        self._unassigned: dict[str, RoutedRequest] = {}
        self._outstanding = [0] * num_replicas
        self._num_requests = [0] * num_replicas
        self._num_running = [0] * num_replicas

    def __len__(self) -> int:
        return len(self._routed)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._routed

    def get(self, request_id: str) -> RoutedRequest | None:
        return self._routed.get(request_id)

    def enter(self, request: Request, view: RequestView, num_tokens: int) -> RoutedRequest:
        """A new request, at no replica yet."""
        routed = RoutedRequest(request, view, num_tokens, left=set(range(request.sampling.n)))
        self._routed[request.id] = self._unassigned[request.id] = routed
        return routed

    def assign(self, routed: RoutedRequest, replica: int) -> None:
        """A replica has a request now."""
        del self._unassigned[routed.request.id]
        routed.replica = replica
        routed.num_tries += 1
        self._outstanding[replica] += routed.num_tokens
        self._num_requests[replica] += 1

    def drop(self, routed: RoutedRequest) -> None:
        """A request that was not sent is refused after all."""
        del self._routed[routed.request.id]
        self._unassigned.pop(routed.request.id, None)
        self._leave(routed)

    def fill(self, view: ReplicaView) -> None:
        """Write the load of a replica into what a router is shown of it."""
        number = view.number
        view.num_tokens = self._outstanding[number]
        view.num_running = self._num_running[number]
        view.num_waiting = self._num_requests[number] - view.num_running

    def is_busy(self, replica: int) -> bool:
        """Whether a replica has requests."""
        return self._num_requests[replica] > 0

    def outstanding(self, replica: int) -> int:
        """Tokens that a replica may still compute for its requests."""
        return self._outstanding[replica]

    def take(self, replica: int, output: StepOutput) -> StepOutput:
        """Note what a step brought; leaves out requests that this replica no longer has."""
        deltas = [delta for delta in output.deltas if self._is_at(replica, delta.id)]
        for delta in deltas:
            shown = self._routed[delta.id].shown
            shown.setdefault(delta.sample_index, []).append(delta.token_ids)
        if output.report is not None:
            for admitted in output.report.admitted:
                self._note_running(replica, admitted.id)
        finished = [end for end in output.finished if self._is_at(replica, end.id)]
        for end in finished:
            self._end(self._routed[end.id], end.sample_index)
        return StepOutput(finished=finished, deltas=deltas, report=output.report)

    def lose(self, replica: int, reason: str, now: float) -> StepOutput:
        """Outputs of a lost replica's requests that cannot start again; none has the others."""
        theirs = [routed for routed in self._routed.values() if routed.replica == replica]
        output = StepOutput()
        for routed in theirs:
            self._leave(routed)
            self._unassigned[routed.request.id] = routed
            if not routed.can_start_again:
                output.finished += self.give_up(routed, reason, now)
        return output

    def unassigned(self) -> list[RoutedRequest]:
        """Requests that no replica has, in the order in which they came or were lost."""
        return list(self._unassigned.values())

    def give_up(self, routed: RoutedRequest, reason: str, now: float) -> list[RequestOutput]:
        """Outputs of the samples that have none, with the tokens that were handed out."""
        aborted = routed.is_aborted
        outputs = [
            RequestOutput.of_unserved(
                routed.request,
                FinishReason.ABORT if aborted else FinishReason.ERROR,
                now,
                error=None if aborted else reason,
                sample_index=index,
                token_ids=_joined(routed.shown.get(index, [])),
            )
            for index in sorted(routed.left)
        ]
        for output in outputs:
            self._end(routed, output.sample_index)
        return outputs

    def _is_at(self, replica: int, request_id: str) -> bool:
        routed = self._routed.get(request_id)
        return routed is not None and routed.replica == replica

    def _end(self, routed: RoutedRequest, sample_index: int) -> None:
        routed.left.discard(sample_index)
        if not routed.left:
            del self._routed[routed.request.id]
            self._unassigned.pop(routed.request.id, None)
            self._leave(routed)

    def _note_running(self, replica: int, request_id: str) -> None:
        routed = self._routed.get(request_id)
        if routed is not None and routed.replica == replica and not routed.is_running:
            routed.is_running = True
            self._num_running[replica] += 1

    def _leave(self, routed: RoutedRequest) -> None:
        """The replica that has a request has it no longer."""
        if routed.replica is not None:
            self._outstanding[routed.replica] -= routed.num_tokens
            self._num_requests[routed.replica] -= 1
            self._num_running[routed.replica] -= routed.is_running
        routed.replica, routed.is_running = None, False


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else EMPTY_INT
