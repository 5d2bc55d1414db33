"""The router of several engines: serves requests like one `Engine`, each on one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from nanofw.assembly import Selection
from nanofw.assembly.build import plugin_names
from nanofw.contracts.arrays import IntArray
from nanofw.contracts.clock import RealClock
from nanofw.contracts.outputs import RequestOutput, StepOutput
from nanofw.contracts.requests import FinishReason, Request
from nanofw.engine.base import BaseEngine
from nanofw.errors import ExecutorError, PluginError
from nanofw.replicas.actors import ReplicaActors
from nanofw.replicas.ledger import Ledger, RoutedRequest
from nanofw.replicas.messages import AbortRequest, AddRequest, FinishSample, ReplicaReady

POLL_S = 0.01
"""How long a step waits for a replica: new requests are handed on between two of them."""


class ReplicatedEngine(BaseEngine):
    """As many engines as `engine.replicas`, each in an actor of Ray.

    A request goes to the replica with the fewest outstanding tokens. Its seed comes from its
    place among all requests, so its tokens do not depend on the replica. Of a replica that dies,
    requests of which nothing was handed out are started once more on another one; the others
    end with reason `error`. When none is left and none is being started, `step` raises.

    Raises:
        NanofwError: what kept a replica from starting.
    """

    def __init__(self, selection: Selection) -> None:
        loaded, clock = selection.loaded, RealClock()
        executor = selection.components["executor"]
        self._actors = ReplicaActors(loaded, executor.options, selection.device, clock.now)
        try:
            self._check_origins(selection)
        except BaseException:
            self._actors.close()
            raise
        super().__init__(
            selection.spec,
            clock,
            self._ready_of(0).limits,
            seed=loaded.config.engine.seed,
            plugin_names=plugin_names(selection).all,
        )
        self._ledger = Ledger(loaded.config.engine.replicas)
        self._steps: deque[StepOutput] = deque()

    @property
    def pids(self) -> list[list[int]]:
        """By replica: its process, and those of its ranks; empty while it is gone."""
        return [
            [] if actor.ready is None else [actor.ready.pid, *actor.ready.rank_pids]
            for actor in self._actors.all
        ]

    @property
    def outstanding(self) -> list[int]:
        """By replica, the tokens that it may still compute."""
        return [self._ledger.outstanding(number) for number in range(len(self._actors.all))]

    # -- requests -------------------------------------------------------------------------

    def _has_request(self, request_id: str) -> bool:
        unseen = {end.id for step in self._steps for end in step.finished}
        return request_id in self._ledger or request_id in unseen

    def _queue_request(
        self, request: Request, tokens: IntArray, limit: int, index: int, seed: int
    ) -> None:
        """What only a replica can find out comes as a refused output."""
        plain = replace(
            request,
            prompt_token_ids=tokens,
            sampling=replace(request.sampling, seed=seed),
            arguments=dict(request.arguments),
            arrival=self.clock.now() if request.arrival is None else request.arrival,
        )
        self._send_to_replica(self._ledger.enter(plain, limit * request.sampling.n))

    def abort_request(self, request_id: str) -> bool:
        routed = self._ledger.get(request_id)
        if routed is None:
            return False
        routed.is_aborted = True
        if routed.replica is None:
            ends = self._ledger.give_up(routed, "", self.clock.now())
            self._steps.append(StepOutput(finished=ends))
        else:
            self._actors.send(routed.replica, AbortRequest(request_id))
        return True

    def _finish_sample(
        self, request_id: str, num_tokens: int, reason: FinishReason, sample_index: int
    ) -> bool:
        routed = self._ledger.get(request_id)
        if routed is None or sample_index not in routed.left or routed.replica is None:
            return False
        command = FinishSample(request_id, num_tokens, reason, sample_index)
        self._actors.send(routed.replica, command)
        return True

    def _send_to_replica(self, routed: RoutedRequest) -> None:
        """Give a request to a replica; it waits when all are being started again."""
        alive = self._actors.alive
        if not alive:
            return
        number = self._ledger.assign(routed, alive)
        self._actors.send(number, AddRequest(self._on_clock_of(number, routed.request)))

    def _on_clock_of(self, number: int, request: Request) -> Request:
        offset = self._actors.all[number].offset
        if not offset:
            return request
        return replace(
            request,
            arrival=_moved(request.arrival, -offset),
            deadline=_moved(request.deadline, -offset),
        )

    # -- the step -------------------------------------------------------------------------

    @property
    def has_unfinished(self) -> bool:
        return bool(self._ledger or self._steps)

    def step(self) -> StepOutput:
        """What one step of some replica brought; empty when none came within `POLL_S`.

        Raises:
            ExecutorError: all replicas are gone; `take_finished` has what had ended.
        """
        if self._failure is not None:
            raise ExecutorError("all replicas failed before; make a new engine") from self._failure
        if not self._steps and len(self._ledger):
            self._poll(POLL_S)
        return self._counted(self._steps.popleft()) if self._steps else StepOutput()

    def take_finished(self) -> list[RequestOutput]:
        steps = [self._counted(step) for step in self._steps]
        self._steps.clear()
        return [output for step in steps for output in step.finished]

    @property
    def is_watchable(self) -> bool:
        return True

    def check_alive(self) -> None:
        """Raise when all replicas are gone."""
        if self._failure is None:
            self._poll(0.0)

    def _poll(self, timeout_s: float) -> None:
        events = self._actors.poll(timeout_s)
        for number, output in events.outputs:
            moved = self._on_our_clock(number, output)
            self._steps.append(self._ledger.take(number, moved))
        for number, reason in events.gone:
            self._lose(number, reason)
        for routed in self._ledger.unassigned():
            self._send_to_replica(routed)
        if self._actors.is_hopeless:
            problems = [f"replica {n}: {a.problem}" for n, a in enumerate(self._actors.all)]
            self._failure = ExecutorError("\n".join(["all replicas are gone", *problems]))
            raise self._failure

    def _lose(self, number: int, reason: str) -> None:
        message = (
            f"replica {number} is gone, and the request could not be started again on another one, "
            f"because tokens had been handed out or it was tried before: {reason}"
        )
        self._steps.append(self._ledger.lose(number, message, self.clock.now()))

    def _on_our_clock(self, number: int, output: StepOutput) -> StepOutput:
        offset = self._actors.all[number].offset
        report = output.report
        if report is not None:
            report = replace(
                report,
                step=self._num_steps,
                planned=report.planned + offset,
                committed=report.committed + offset,
                admitted=tuple(
                    replace(one, arrival=one.arrival + offset, scheduled=one.scheduled + offset)
                    for one in report.admitted
                ),
            )
            self._num_steps += 1
        if not offset:
            return replace(output, report=report)
        times = ("arrival", "scheduled", "first_token", "finished")
        finished = [
            replace(end, **{name: _moved(getattr(end, name), offset) for name in times})
            for end in output.finished
        ]
        return StepOutput(finished=finished, deltas=output.deltas, report=report)

    def _counted(self, output: StepOutput) -> StepOutput:
        for end in output.finished:
            self._num_finished[end.finish_reason] += 1
        return output

    # -- facts ----------------------------------------------------------------------------

    def stats(self) -> Mapping[str, Any]:
        """Those of `Engine.stats`, summed over the replicas that are there."""
        total: dict[str, Any] = {}
        for stats in self._actors.stats():
            _add(total, stats)
        return MappingProxyType({**total, **self._request_stats()})

    def _close(self) -> None:
        self._actors.close()

    def _ready_of(self, number: int) -> ReplicaReady:
        ready = self._actors.all[number].ready
        assert ready is not None, f"replica {number} is not there"
        return ready

    def _check_origins(self, selection: Selection) -> None:
        """Every process of a run has the same plugins in the same versions."""
        ours = {(c.kind, c.name, c.origin) for c in selection.explanation.choices}
        for number in self._actors.alive:
            if others := set(self._ready_of(number).origins) ^ ours:
                named = ", ".join(sorted(f"{k} {n} of {o}" for k, n, o in others))
                raise PluginError(
                    f"replica {number} has other plugins than this process: {named}; install "
                    "the same versions on every node"
                )


def _moved(time: float | None, offset: float) -> float | None:
    return None if time is None else time + offset


def _add(total: dict[str, Any], stats: Mapping[str, Any]) -> None:
    for name, value in stats.items():
        if isinstance(value, Mapping):
            _add(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value
