"""Decides a log again, with another policy or another version, up to the first difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nanofw.assembly.build import build_on
from nanofw.assembly.selection import Selection, select
from nanofw.config.load import load_config
from nanofw.contracts.arrays import BoolArray, IntArray
from nanofw.contracts.executor import Executor
from nanofw.contracts.observer import StepObserver
from nanofw.contracts.plan import Capacity, HostMasks, StepPlan, StepResult
from nanofw.contracts.requests import FinishReason, Request, SamplingParams
from nanofw.decisions.log import DecisionLog
from nanofw.decisions.plans import PlanReader
from nanofw.decisions.records import FinishRequestRecord, RequestRecord, StepRecord, token_ids
from nanofw.engine.engine import Engine
from nanofw.engine.request_checks import by_token_id
from nanofw.errors import NanofwError, RequestError
from nanofw.narrowing import is_list


@dataclass(frozen=True, slots=True)
class Ranked:
    """A waiting request on both sides. Ranks are from 1; None: it has no key there.

    Attributes:
        before, after: rank in the log, and now.
        key_before, key_after: keys of the policies.
    """

    id: str
    before: int | None
    key_before: object
    after: int | None
    key_after: object


@dataclass(frozen=True, slots=True)
class Difference:
    """The first plan that differs.

    Attributes:
        call: number of the plan call; `planned`: its time.
        before, after: what the log has, and what was decided now; `after` None: nothing, since
            an error ended the replay.
        ranks: of the requests that waited, by their rank in the log.
        error: of the replay.
        refusals: the request whose refusal differs, in place of a plan.
    """

    call: int
    planned: float
    before: StepRecord | None
    after: StepRecord | None
    ranks: tuple[Ranked, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay came to.

    Attributes:
        num_calls: plans that are the same, up to the first difference.
    """

    num_calls: int
    difference: Difference | None


def replay_log(log: DecisionLog, overrides: Sequence[str] = ()) -> Replayed:
    """Decide the log again with changes of its configuration, `scheduler.name=...`.

    Requests, times and sampled tokens are those of the log; the policy, the allocator and the
    scheduler are made anew. Nothing is computed.

    Raises:
        NanofwError: the configuration cannot be used here.
    """
    selection = replay_selection(log, overrides)
    clock = _LogClock()
    executor = _LogExecutor(log, clock)
    engine = build_on(selection, executor, clock)
    comparison = _Comparison(log, engine, clock)
    engine.scheduler.journal.is_read = True
    with engine, engine.observed_by(comparison):
        try:
            _drive(log, engine, comparison, clock)
        except _Differs:
            pass
        except NanofwError as error:
            comparison.fail(str(error))
    return Replayed(comparison.call, comparison.difference)


def replay_selection(log: DecisionLog, overrides: Sequence[str] = ()) -> Selection:
    """The components of the log's run with changes, on a simulated device of the same pool."""
    limits, config = log.run.limits, dict(log.run.config)
    config["executor"] = {"name": "sim"}
    config["attention_backend"] = {"name": "auto"}
    config["engine"] = {
        **config.get("engine", {}),
        "device": "cpu", "overlap": log.run.overlap, "tensor_parallel_size": 1,
        "max_model_len": limits["max_model_len"], "cuda_graphs": False,
    }  # fmt: skip
    config["kv_allocator"] = {
        **config.get("kv_allocator", {}),
        "num_blocks": limits["num_blocks"], "block_size": limits["block_size"],
    }  # fmt: skip
    config["input"], config["output"] = {}, {}
    return select(load_config(None, overrides, values=config))


class _Differs(Exception):
    """The first difference was found; nothing after it means anything."""


class _LogClock:
    """Stands where the log says."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wait_until(self, deadline: float) -> None:
        """The log alone says what time it is."""


class _LogExecutor(Executor):
    """Answers with the tokens and at the times of a log."""

    def __init__(self, log: DecisionLog, clock: _LogClock) -> None:
        self._log, self._clock = log, clock
        self._pending: list[StepPlan] = []
        self._ids: dict[int, str] = {}
        self._prompts: dict[int, int] = {}
        self._outputs: dict[str, IntArray] = {}
        self._errors: set[str] = set()
        for name, life in log.lives.items():
            if life.finished is not None:
                self._outputs[name] = token_ids(life.finished.tokens)
                if life.finished.reason == FinishReason.ERROR:
                    self._errors.add(name)

    def capacity(self) -> Capacity:
        limits = self._log.run.limits
        return Capacity(
            num_blocks=limits["num_blocks"], block_size=limits["block_size"], max_in_flight=2
        )

    def submit(self, plan: StepPlan) -> None:
        for new in plan.new:
            self._ids[new.row], self._prompts[new.row] = new.request_id, new.num_prompt_tokens
        self._pending.append(plan)

    def provide(self, masks: HostMasks) -> None:
        """The tokens are known already."""

    def collect(self) -> StepResult:
        plan = self._pending.pop(0)
        if plan.step < len(self._log.collected):
            self._clock.time = self._log.collected[plan.step]
        ends = (plan.starts + plan.num_tokens)[plan.samples].tolist()
        rows = plan.sampled_rows.tolist()
        tokens, failed = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.bool_)
        for place, (row, end) in enumerate(zip(rows, ends, strict=True)):
            tokens[place], failed[place] = self._sampled(row, end - self._prompts[row])
        failures: BoolArray | None = failed if failed.any() else None
        return StepResult(step=plan.step, token_ids=tokens, failed=failures)

    def _sampled(self, row: int, number: int) -> tuple[int, bool]:
        """The token of that number in the request's output, and whether its logits failed."""
        name = self._ids[row]
        output = self._outputs.get(name)
        if output is None or number >= len(output):  # surplus, or not finished in the log
            return 0, name in self._errors
        return int(output[number]), False


class _Comparison(StepObserver):
    """Holds each plan against the log's, and moves the clock to the next one."""

    phases = ("commit",)

    def __init__(self, log: DecisionLog, engine: Engine, clock: _LogClock) -> None:
        self._log, self._clock, self._reader = log, clock, PlanReader(engine)
        self._keys: dict[str, object] = {}
        self.call = 0
        self.difference: Difference | None = None

    def began(self, phase: str) -> None:
        pass

    def ended(self, phase: str) -> None:
        """A plan may be made in the same step again: at the log's time."""
        self.set_clock()

    def set_clock(self) -> None:
        """Move the clock to the next plan call."""
        if self.call < len(self._log.calls):
            self._clock.time = self._log.calls[self.call].planned

    def planned(self, plan: StepPlan | None, now: float) -> None:
        record = self._reader.record(plan, now)
        for note in record.keys:
            self._keys[note.id] = note.key
        if self.difference is not None or self.call >= len(self._log.calls):
            return
        expected = self._log.calls[self.call]
        if record.choice != expected.record.choice:
            self.difference = Difference(
                self.call, expected.planned, expected.record, record, self._ranks()
            )
            return
        self.call += 1

    def fail(self, error: str) -> None:
        """The replay cannot go on."""
        if self.difference is None and self.call < len(self._log.calls):
            expected = self._log.calls[self.call]
            self.difference = Difference(
                self.call, expected.planned, expected.record, None, self._ranks(), error
            )

    def _ranks(self) -> tuple[Ranked, ...]:
        waiting = self._log.waiting_at(self.call)
        arrivals = {life.id: life.arrival for life in waiting}
        before: dict[str, object] = {}
        for life in waiting:
            key = life.key_at(self.call)
            if key is not None:
                before[life.id] = key.key
        after = {name: self._keys[name] for name in arrivals if name in self._keys}
        ranks_before, ranks_after = _order(before, arrivals), _order(after, arrivals)
        found = [
            Ranked(name, ranks_before.get(name), before.get(name), ranks_after.get(name),
                   after.get(name))
            for name in arrivals
        ]  # fmt: skip
        return tuple(sorted(found, key=lambda item: (item.before is None, item.before)))


def _order(keys: dict[str, object], arrivals: dict[str, float]) -> dict[str, int]:
    """Ranks from 1; none where keys cannot be compared."""
    try:
        ordered = sorted(keys, key=lambda name: (_number(keys[name]), arrivals[name]))
    except TypeError:
        return {}
    return {name: rank for rank, name in enumerate(ordered, 1)}


def _number(key: object) -> object:
    """Infinities as numbers again."""
    if isinstance(key, list):
        parts: list[object] = key  # pyright: ignore[reportUnknownVariableType]
        return [_number(part) for part in parts]
    return float(key) if key in ("inf", "-inf") else key


def _drive(log: DecisionLog, engine: Engine, comparison: _Comparison, clock: _LogClock) -> None:
    """Requests as they came, and a step wherever the log has a plan."""
    events = iter([*log.events, (len(log.calls) + 1, None)])
    at, event = next(events)
    while comparison.call < len(log.calls):
        while at <= comparison.call and event is not None:
            clock.time = event.now
            _take(engine, event, comparison)
            at, event = next(events)
        comparison.set_clock()
        before = comparison.call
        engine.step()
        if comparison.difference is not None:
            raise _Differs
        assert comparison.call > before, "a step asks for a plan"


def _take(
    engine: Engine, event: RequestRecord | FinishRequestRecord, comparison: _Comparison
) -> None:
    if isinstance(event, FinishRequestRecord):
        reason, index = FinishReason(event.reason), event.sample_index
        if event.num_tokens is None:
            engine.abort_request(event.id)
        else:
            engine.finish_request(event.id, event.num_tokens, reason, index or 0)
        return
    try:
        engine.add_request(logged_request(event))
    except RequestError as error:
        if event.refused is None:
            comparison.fail(f"request {event.id} is refused now: {error.reason}")
            raise _Differs from error
        return
    if event.refused is not None:
        comparison.fail(f"request {event.id} was refused ({event.refused}) and is accepted now")
        raise _Differs


def logged_request(record: RequestRecord) -> Request:
    """The request that a line keeps."""
    given = dict(record.sampling)
    if given.get("logit_bias"):
        given["logit_bias"] = by_token_id(given["logit_bias"])
    for name in ("bad_words", "stop_token_ids"):
        if name in given:
            items: list[object] = given[name]
            given[name] = tuple(tuple(item) if is_list(item) else item for item in items)
    return Request(
        id=record.id,
        prompt_token_ids=token_ids(record.prompt),
        sampling=SamplingParams(**given),
        arrival=record.now if record.arrival is None else record.arrival,
        client=record.client,
        priority=record.priority,
        deadline=record.deadline,
        expected_output_tokens=record.expected_output_tokens,
        arguments=record.arguments,
        cache_salt=record.cache_salt,
    )
