"""Several engines that serve requests like one `Engine`, each on the one that the router chose."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from nanofw.assembly import Selection
from nanofw.assembly.build import plugin_names
from nanofw.contracts.arrays import IntArray
from nanofw.contracts.outputs import RequestOutput, StepOutput
from nanofw.contracts.requests import FinishReason, Request
from nanofw.contracts.router import ReplicaView, Router, RouterConfig
from nanofw.contracts.views import RequestView
from nanofw.engine.base import BaseEngine
from nanofw.engine.engine import Engine
from nanofw.errors import ExecutorError, PluginError, RouterError
from nanofw.narrowing import Stats
from nanofw.plugins import Component
from nanofw.replicas.ledger import Ledger, RoutedRequest
from nanofw.replicas.messages import AbortRequest, AddRequest, FinishSample, ReplicaReady
from nanofw.replicas.one_replica import origins
from nanofw.replicas.placement import Replicas
from nanofw.replicas.routing import RouterGuard
from nanofw.replicas.totals import Totals

POLL_S = 0.01
"""How long a step waits for a replica: new requests are handed on between two of them."""


class ReplicatedEngine(BaseEngine):
    """As many engines as `engine.replicas`.

    The router says which of them serves a request. The seed of a request comes from its
    place among all requests, so its tokens do not depend on the replica. Of a replica that dies,
    requests that handed out nothing yet are started once more on another one; the others
    end with reason `error`. When none is left and none is being started, `step` raises.

    Args:
        replicas: where they run; they are closed with the engine, and when it cannot be made.

    Raises:
        NanofwError: the replicas differ from this process, or the router cannot be made.
    """

    def __init__(self, selection: Selection, replicas: Replicas) -> None:
        self._replicas = replicas
        try:
            self._check_origins(selection)
            limits = self._ready_of(0).limits
            self._router = _make_router(
                selection,
                RouterConfig(
                    name=selection.components["router"].name,
                    num_replicas=len(replicas.all),
                    limits=limits,
                ),
            )
        except BaseException:
            replicas.close()
            raise
        self._names = plugin_names(selection)
        self._is_simulated = selection.virtual_time
        super().__init__(
            selection.spec,
            replicas.clock,
            limits,
            seed=selection.loaded.config.engine.seed,
            plugin_names=self._names.all,
        )
        self._ledger = Ledger(len(replicas.all))
        self._totals = Totals()
        self._steps: deque[StepOutput] = deque()

    @property
    def pids(self) -> list[list[int]]:
        """By replica: its process, and those of its ranks; empty while it is gone."""
        return [
            [] if replica.ready is None else [replica.ready.pid, *replica.ready.rank_pids]
            for replica in self._replicas.all
        ]

    @property
    def outstanding(self) -> list[int]:
        """By replica, the tokens that it may still compute."""
        return [self._ledger.outstanding(number) for number in range(len(self._replicas.all))]

    @property
    def engines(self) -> Sequence[Engine]:
        return self._replicas.engines

    @property
    def is_simulated(self) -> bool:
        return self._is_simulated

    @property
    def replica_problems(self) -> tuple[str | None, ...]:
        return tuple(
            None if replica.ready is not None else replica.problem or replica.why_not_ready
            for replica in self._replicas.all
        )

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
        view = RequestView(
            plain,
            index=index,
            arrival=plain.arrival or 0.0,
            max_tokens=limit - len(tokens),
            salt=self._names.salt(plain),
        )
        self._replicas.check(plain)
        routed = self._ledger.enter(plain, view, limit * request.sampling.n)
        try:
            self._send_to_replica(routed)
        except BaseException:
            self._ledger.drop(routed)
            raise

    def abort_request(self, request_id: str) -> bool:
        routed = self._ledger.get(request_id)
        if routed is None:
            return False
        routed.is_aborted = True
        if routed.replica is None:
            ends = self._ledger.give_up(routed, "", self.clock.now())
            self._steps.append(StepOutput(finished=ends))
        else:
            self._replicas.send(routed.replica, AbortRequest(request_id))
        return True

    def _finish_sample(
        self, request_id: str, num_tokens: int, reason: FinishReason, sample_index: int
    ) -> bool:
        routed = self._ledger.get(request_id)
        if routed is None or sample_index not in routed.left or routed.replica is None:
            return False
        command = FinishSample(request_id, num_tokens, reason, sample_index)
        self._replicas.send(routed.replica, command)
        return True

    def _send_to_replica(self, routed: RoutedRequest) -> None:
        """Give a request to a replica; it waits when all are being started again."""
        alive = set(self._replicas.alive)
        if not alive:
            return
        views = [
            self._router.view(number, is_ready=number in alive)
            for number in range(len(self._replicas.all))
        ]
        for view in views:
            self._ledger.fill(view)
        number = self._router.choose(routed.view, views)
        self._ledger.assign(routed, number)
        self._replicas.send(number, AddRequest(self._on_clock_of(number, routed.request)))

    def _on_clock_of(self, number: int, request: Request) -> Request:
        offset = self._replicas.all[number].offset
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
        self._replicas.watch(self._ledger.is_busy)
        events = self._replicas.poll(timeout_s)
        for number, output in events.outputs:
            moved = self._on_our_clock(number, output)
            self._steps.append(self._ledger.take(number, moved))
        for number, reason in events.gone:
            self._lose(number, reason)
        for routed in self._ledger.unassigned():
            self._send_again(routed)
        if self._replicas.is_hopeless:
            problems = [f"replica {n}: {a.problem}" for n, a in enumerate(self._replicas.all)]
            self._failure = ExecutorError("\n".join(["all replicas are gone", *problems]))
            raise self._failure

    def _lose(self, number: int, reason: str) -> None:
        message = (
            f"replica {number} is gone, and the request could not be started again on another one, "
            f"because tokens had been handed out or it was tried before: {reason}"
        )
        self._steps.append(self._ledger.lose(number, message, self.clock.now()))
        self._router.lost(number)
        self._totals.lost(number)

    def _send_again(self, routed: RoutedRequest) -> None:
        """Give a request to another replica after the first was lost, or was not there yet."""
        try:
            self._send_to_replica(routed)
        except RouterError as error:
            ends = self._ledger.give_up(routed, str(error), self.clock.now())
            self._steps.append(StepOutput(finished=ends))

    def _on_our_clock(self, number: int, output: StepOutput) -> StepOutput:
        offset, report = self._replicas.all[number].offset, output.report
        if report is not None:
            report.step = self._num_steps
            self._num_steps += 1
        if not offset:
            return output
        if report is not None:
            report = replace(
                report,
                planned=report.planned + offset,
                committed=report.committed + offset,
                admitted=tuple(
                    replace(one, arrival=one.arrival + offset, scheduled=one.scheduled + offset)
                    for one in report.admitted
                ),
            )
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

    def stats(self) -> Stats:
        """Those of `Engine.stats`, summed over the replicas; what lost ones counted stays.

        Under `replicas` each has its own: `number`, whether it is `ready`, `outstanding_tokens`,
        requests that it has by the count of this engine (`routed_running`, `routed_waiting`), and
        its `stats`, None where it is gone or does not answer.
        """
        found = self._replicas.stats()
        for number, stats in found.items():
            self._totals.saw(number, stats)
        total = self._totals.sums()
        alive = set(self._replicas.alive)
        total["replicas"] = tuple(
            self._record(number, number in alive, found.get(number))
            for number in range(len(self._replicas.all))
        )
        return MappingProxyType({**total, **self._request_stats()})

    def _record(self, number: int, is_ready: bool, stats: Stats | None) -> Stats:
        view = ReplicaView(number)
        self._ledger.fill(view)
        return MappingProxyType(
            {
                "number": number,
                "ready": is_ready,
                "outstanding_tokens": view.num_tokens,
                "routed_running": view.num_running,
                "routed_waiting": view.num_waiting,
                "stats": stats,
            }
        )

    def _close(self) -> None:
        self._replicas.close()

    def _ready_of(self, number: int) -> ReplicaReady:
        ready = self._replicas.all[number].ready
        assert ready is not None, f"replica {number} is not there"
        return ready

    def _check_origins(self, selection: Selection) -> None:
        """Every process of a run has the same plugins in the same versions."""
        ours = origins(selection)
        for number in self._replicas.alive:
            if others := set(self._ready_of(number).origins) ^ ours:
                named = ", ".join(sorted(f"{k} {n} of {o}" for k, n, o in others))
                raise PluginError(
                    f"replica {number} has other plugins than this process: {named}; install "
                    "the same versions on every node"
                )


def _moved(time: float | None, offset: float) -> float | None:
    return None if time is None else time + offset


def _make_router(selection: Selection, config: RouterConfig) -> RouterGuard:
    component: Component = selection.components["router"]
    router = component.make(Router, config)
    size = config.limits.block_size
    return RouterGuard(router, component.label, config.num_replicas, size)
