"""The front of several engines: looks like one `Engine`, and shares the requests out."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from nanofw.assembly import Selection
from nanofw.contracts.clock import Clock, RealClock
from nanofw.contracts.outputs import RequestOutput, StepOutput
from nanofw.contracts.requests import FinishReason, Request
from nanofw.engine import request_checks as accept
from nanofw.engine.request_state import derive_seed
from nanofw.errors import ExecutorError, PluginError, RequestError
from nanofw.replicas.actors import Actors
from nanofw.replicas.ledger import Ledger, Served
from nanofw.replicas.messages import Abort, Add, Finish

POLL_S = 0.01
"""How long a step waits for a replica: new requests are handed on between two of them."""


class ReplicatedEngine:
    """As many engines as `engine.replicas`, each in an actor of Ray.

    A request goes to the replica with the fewest outstanding tokens. Its seed comes from its
    place among all requests, so its tokens do not depend on the replica. Of a replica that dies,
    requests of which nothing was seen yet are begun once more on another one; the others end
    with reason `error`. When none is left and none is being started, `step` raises.

    Attributes:
        spec, clock: as of `Engine`.

    Raises:
        NanofwError: what kept a replica from starting.
    """

    def __init__(self, selection: Selection) -> None:
        loaded = selection.loaded
        engine = loaded.config.engine
        self.spec = selection.spec
        self.clock: Clock = RealClock()
        executor = selection.components["executor"]
        self._actors = Actors(loaded, executor.options, selection.device, self.clock.now)
        self._ledger = Ledger(engine.replicas)
        self._steps: deque[StepOutput] = deque()
        self._names = {item.name for item in selection.components["logits_processor"]}
        self._seed, self._num_submitted, self._num_steps = engine.seed, 0, 0
        self._by_reason = dict.fromkeys(FinishReason, 0)
        self._failure: ExecutorError | None = None
        self._is_closed = False
        try:
            self._limits = self._facts_of(0).limits
            self._check_origins(selection)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[list[int]]:
        """By replica: its process, and those of its ranks; empty while it is gone."""
        return [
            [] if actor.facts is None else [actor.facts.pid, *actor.facts.rank_pids]
            for actor in self._actors.all
        ]

    @property
    def outstanding(self) -> list[int]:
        """By replica, the tokens that it may still compute."""
        return [self._ledger.outstanding(number) for number in range(len(self._actors.all))]

    # -- requests -------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """As `Engine.add_request`; what only a replica can find out comes as a refused output."""
        index = self._num_submitted
        self._num_submitted += 1
        try:
            served = self._accept(request, index)
        except ValueError as error:
            self._by_reason[FinishReason.REFUSED] += 1
            raise RequestError(str(request.id), str(error)) from error
        self._place(served)

    def abort_request(self, request_id: str) -> bool:
        """As `Engine.abort_request`."""
        served = self._ledger.get(request_id)
        if served is None:
            return False
        served.is_aborted = True
        if served.replica is None:
            ends = self._ledger.give_up(served, "", self.clock.now())
            self._steps.append(StepOutput(finished=ends))
        else:
            self._actors.send(served.replica, Abort(request_id))
        return True

    def finish_request(
        self, request_id: str, num_tokens: int, reason: FinishReason, sample_index: int = 0
    ) -> bool:
        """As `Engine.finish_request`."""
        if num_tokens < 0:
            raise ValueError(f"num_tokens is {num_tokens}; it must be at least 0")
        served = self._ledger.get(request_id)
        if served is None or sample_index not in served.left or served.replica is None:
            return False
        self._actors.send(served.replica, Finish(request_id, num_tokens, reason, sample_index))
        return True

    def _accept(self, request: Request, index: int) -> Served:
        accept.check_id(request.id)
        unseen = {end.id for step in self._steps for end in step.finished}
        if request.id in self._ledger or request.id in unseen:
            raise ValueError(
                "a request of this id is waiting or running, or its output was not handed out "
                "yet; ids must be unique"
            )
        tokens = accept.prompt_tokens(request.prompt_token_ids, self.spec.vocab_size)
        accept.check_sampling(request.sampling, self.spec.vocab_size)
        accept.check_fields(request)
        accept.check_arguments(request, self._names)
        limit = accept.token_limit(len(tokens), request.sampling, self._limits)
        sampling = request.sampling
        if sampling.seed is None:
            sampling = replace(sampling, seed=derive_seed(self._seed, index))
        plain = replace(
            request,
            prompt_token_ids=tokens,
            sampling=sampling,
            arguments=dict(request.arguments),
            arrival=self.clock.now() if request.arrival is None else request.arrival,
        )
        return self._ledger.enter(plain, limit * sampling.n)

    def _place(self, served: Served) -> None:
        """Give it to a replica; it waits when all are being started anew."""
        alive = self._actors.alive
        if not alive:
            return
        number = self._ledger.assign(served, alive)
        self._actors.send(number, Add(self._on_clock_of(number, served.request)))

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
        """As of `Engine`."""
        return bool(self._ledger or self._steps)

    @property
    def has_failed(self) -> bool:
        """As of `Engine`."""
        return self._failure is not None

    def step(self) -> StepOutput:
        """What one step of some replica brought; empty when none came within `POLL_S`.

        Raises:
            ExecutorError: all replicas are gone; `take_finished` has what had ended.
        """
        if self._failure is not None:
            raise ExecutorError("all replicas failed before; make a new engine") from self._failure
        if not self._steps and len(self._ledger):
            self._look(POLL_S)
        return self._counted(self._steps.popleft()) if self._steps else StepOutput()

    def take_finished(self) -> list[RequestOutput]:
        """As of `Engine`: outputs that no step handed out."""
        steps = [self._counted(step) for step in self._steps]
        self._steps.clear()
        return [output for step in steps for output in step.finished]

    @property
    def is_watchable(self) -> bool:
        """As of `Engine`."""
        return True

    def check_alive(self) -> None:
        """As of `Engine`: raises when all replicas are gone."""
        if self._failure is None:
            self._look(0.0)

    def _look(self, timeout_s: float) -> None:
        arrivals = self._actors.look(timeout_s)
        for number, output in arrivals.outputs:
            moved = self._on_our_clock(number, output)
            self._steps.append(self._ledger.take(number, moved))
        for number, reason in arrivals.gone:
            self._lose(number, reason)
        for served in self._ledger.unassigned():
            self._place(served)
        if self._actors.is_hopeless:
            problems = [f"replica {n}: {a.problem}" for n, a in enumerate(self._actors.all)]
            self._failure = ExecutorError("\n".join(["all replicas are gone", *problems]))
            raise self._failure

    def _lose(self, number: int, reason: str) -> None:
        message = (
            f"replica {number} is gone, and the request could not be begun anew on another one, "
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
            self._by_reason[end.finish_reason] += 1
        return output

    # -- facts ----------------------------------------------------------------------------

    def stats(self) -> Mapping[str, Any]:
        """As `Engine.stats`, summed over the replicas that are there."""
        total: dict[str, Any] = {}
        for stats in self._actors.stats():
            _add(total, stats)
        ours = {
            "num_submitted": self._num_submitted,
            "num_finished": {reason.value: count for reason, count in self._by_reason.items()},
        }
        return MappingProxyType({**total, **ours})

    def close(self) -> None:
        """End the replicas. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._actors.close()

    def __enter__(self) -> ReplicatedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _facts_of(self, number: int) -> Any:
        return self._actors.all[number].facts

    def _check_origins(self, selection: Selection) -> None:
        """Every process of a run has the same plugins in the same versions."""
        ours = {(c.kind, c.name, c.origin) for c in selection.explanation.choices}
        for number in self._actors.alive:
            if others := set(self._facts_of(number).origins) ^ ours:
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
