"""What a policy can say beyond an order: each row of the table of decision 0080 by use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from nanofw.contracts.observer import StepObserver
from nanofw.contracts.plan import StepPlan
from nanofw.contracts.requests import FinishReason, Request, SamplingParams
from nanofw.contracts.scheduler import Policy, Refuse, RequestView, SchedulerView, SortKey
from nanofw.errors import PolicyError, RequestError, RequestShed
from tests.engine.sim_engines import make_engine


def request(name: str, *, tokens: int = 4, prompt: int = 3, **fields: Any) -> Request:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return Request(id=name, prompt_token_ids=range(1, prompt + 1), sampling=sampling, **fields)


def run(engine: Any, *requests: Request) -> dict[str, Any]:
    """Outputs by id, in the order in which they finished; waits when the policy asks to."""
    for one in requests:
        engine.add_request(one)
    outputs: dict[str, Any] = {}
    while engine.has_unfinished:
        output = engine.step()
        if output.wake_at is not None:
            engine.clock.wait_until(output.wake_at)
        outputs |= {finished.id: finished for finished in output.finished}
        engine.scheduler.allocator.check_integrity()
    return outputs


class Fifo(Policy):
    def key(self, request: RequestView, view: SchedulerView) -> SortKey | Refuse:
        return request.arrival


@pytest.mark.parametrize("overlap", [False, True])
def test_arguments_reach_the_policy_by_its_name_and_are_checked_by_it(overlap: bool) -> None:
    class ByLevel(Fifo):
        def check(self, arguments: Any) -> None:
            if arguments is not None and not isinstance(arguments.get("level"), int):
                raise ValueError(f"level must be an integer, not {arguments.get('level')!r}")

        def key(self, request: RequestView, view: SchedulerView) -> SortKey:
            return (request.arguments or {"level": 9})["level"]

    engine = make_engine(ByLevel(), max_num_seqs=1, overlap=overlap, policy_name="by_level")
    requests = [
        request("plain"),
        request("low", arguments={"by_level": {"level": 2}}),
        request("high", arguments={"by_level": {"level": 1}}),
    ]
    assert list(run(engine, *requests)) == ["high", "low", "plain"]
    with pytest.raises(RequestError, match="level must be an integer, not 'x'"):
        engine.add_request(request("wrong", arguments={"by_level": {"level": "x"}}))
    with pytest.raises(RequestError, match="arguments are for 'other', which this run does not"):
        engine.add_request(request("foreign", arguments={"other": 1}))


def test_a_policy_without_arguments_refuses_them() -> None:
    engine = make_engine(Fifo(), policy_name="fifo")
    with pytest.raises(RequestError, match="takes no arguments"):
        engine.add_request(request("a", arguments={"fifo": {}}))


@pytest.mark.parametrize("overlap", [False, True])
def test_F012_a_policy_says_when_to_be_asked_again(overlap: bool) -> None:
    class Later(Fifo):
        def admit(self, request: RequestView, view: SchedulerView) -> bool:
            return view.now >= request.arrival + 5.0

        def wake(self, view: SchedulerView) -> float:
            return 5.0 if view.now < 5.0 else view.now + 5.0

    engine = make_engine(Later(), overlap=overlap)
    outputs = run(engine, request("a"), request("b"))
    assert [output.scheduled for output in outputs.values()] == [5.0, 5.0]
    assert engine.clock.now() < 6.0


@pytest.mark.parametrize("answer", [None, 0.0, -1.0])
def test_nothing_that_can_ever_change_is_an_error(answer: float | None) -> None:
    class Never(Fifo):
        def admit(self, request: RequestView, view: SchedulerView) -> bool:
            return False

        def wake(self, view: SchedulerView) -> float | None:
            return answer

    with pytest.raises(PolicyError, match="nothing can ever change"):
        run(make_engine(Never()), request("a"))


@pytest.mark.parametrize("overlap", [False, True])
def test_the_policy_refuses_at_the_door(overlap: bool) -> None:
    class Short(Fifo):
        def key(self, request: RequestView, view: SchedulerView) -> SortKey | Refuse:
            if request.num_prompt_tokens > 4:
                return Refuse("the prompt is too long", retry_after_s=3.0)
            return request.arrival

    engine = make_engine(Short(), overlap=overlap)
    with pytest.raises(RequestShed, match="the prompt is too long") as caught:
        engine.add_request(request("long", prompt=5))
    assert caught.value.retry_after_s == 3.0
    assert list(run(engine, request("short"))) == ["short"]
    assert engine.stats()["num_finished"]["shed"] == 1
    assert engine.stats()["num_finished"]["refused"] == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_the_policy_refuses_while_a_request_waits(overlap: bool) -> None:
    class Impatient(Fifo):
        max_rekeys = 8

        def __init__(self) -> None:
            super().__init__()
            self.waiting: dict[str, RequestView] = {}

        def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
            self.waiting[request.id] = request

        def on_start(self, row: int, request: RequestView, view: SchedulerView) -> None:
            self.waiting.pop(request.id)

        def on_finish(self, request: Any, reason: FinishReason, view: SchedulerView) -> None:
            self.waiting.pop(request.id, None)

        def rekey(self, view: SchedulerView) -> Iterable[RequestView]:
            return list(self.waiting.values())

        def key(self, request: RequestView, view: SchedulerView) -> SortKey | Refuse:
            late = request.deadline is not None and view.now > request.deadline
            return Refuse("its deadline has passed") if late else request.arrival

    engine = make_engine(Impatient(), max_num_seqs=1, overlap=overlap)
    outputs = run(engine, request("runs", tokens=30), request("late", deadline=0.05))
    assert outputs["late"].finish_reason is FinishReason.SHED
    assert outputs["late"].error == "its deadline has passed"
    assert list(outputs) == ["late", "runs"]


def test_admit_may_refuse() -> None:
    class Picky(Fifo):
        def admit(self, request: RequestView, view: SchedulerView) -> bool | Refuse:
            return Refuse("not today") if request.client == "b" else True

    outputs = run(make_engine(Picky()), request("a"), request("b", client="b"), request("c"))
    assert outputs["b"].finish_reason is FinishReason.SHED
    assert [outputs[name].finish_reason for name in "ac"] == [FinishReason.LENGTH] * 2


@pytest.mark.parametrize("overlap", [False, True])
def test_running_requests_get_new_keys_and_can_be_paused(overlap: bool) -> None:
    class RoundRobin(Fifo):
        """Two of all rows run in a step: those with the fewest tokens."""

        max_rekeys = 8

        def rekey(self, view: SchedulerView) -> Iterable[RequestView]:
            running = view.running
            return [running.request(row) for row in running.rows.tolist()]

        def key(self, request: RequestView, view: SchedulerView) -> SortKey:
            return request.num_computed_tokens

        def pause(self, view: SchedulerView) -> Iterable[int]:
            running = view.running
            return sorted(running.rows.tolist(), key=running.key)[2:]

    names = [f"r{i}" for i in range(6)]
    plain = run(make_engine(Fifo(), max_num_seqs=6), *(request(n, tokens=12) for n in names))
    engine, plans = make_engine(RoundRobin(), max_num_seqs=6, overlap=overlap), Plans()
    with engine.observed_by(plans):
        outputs = run(engine, *(request(name, tokens=12) for name in names))
    assert max(plan.num_decodes for plan in plans.seen[3:]) <= 2
    for name in names:
        assert np.array_equal(outputs[name].token_ids, plain[name].token_ids)
        assert outputs[name].num_preemptions == 0
    ends = [output.finished for output in outputs.values()]
    assert max(ends) - min(ends) < 0.1 * max(ends), "all of them had equal shares"


class Plans(StepObserver):
    """Keeps the plans of a run."""

    def __init__(self) -> None:
        self.seen: list[StepPlan] = []

    def submitted(self, plan: StepPlan, now: float) -> None:
        self.seen.append(plan)


def test_a_new_key_moves_a_waiting_request() -> None:
    class Promoted(Fifo):
        max_rekeys = 1

        def __init__(self) -> None:
            super().__init__()
            self.last: RequestView | None = None

        def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
            self.last = request

        def rekey(self, view: SchedulerView) -> Iterable[RequestView]:
            last, self.last = self.last, None
            return [] if last is None else [last]

        def key(self, request: RequestView, view: SchedulerView) -> SortKey:
            return request.index if self.last is not None else -1

    names = ["a", "b", "c", "d"]
    outputs = run(make_engine(Promoted(), max_num_seqs=1), *(request(name) for name in names))
    assert list(outputs) == ["d", "a", "b", "c"]


@pytest.mark.parametrize("overlap", [False, True])
def test_the_policy_sets_the_budget_of_a_step(overlap: bool) -> None:
    class Budget(Fifo):
        def step_budget(self, view: SchedulerView) -> int:
            return 3

    engine, plans = make_engine(Budget(), max_num_seqs=8, overlap=overlap), Plans()
    requests = [request(str(i), prompt=7, tokens=6) for i in range(8)]
    with engine.observed_by(plans):
        outputs = run(engine, *requests)
    assert max(plan.total_tokens for plan in plans.seen) <= 3
    plain = run(make_engine(Fifo(), max_num_seqs=8), *requests)
    for name, output in outputs.items():
        assert np.array_equal(output.token_ids, plain[name].token_ids)


def test_content_is_shown_read_only() -> None:
    seen: dict[str, Any] = {}

    class Reads(Fifo):
        def group(self, request: RequestView) -> int:
            return request.prefix_id(4)

        def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
            seen[request.id] = request.prefix_id(4)
            with pytest.raises(ValueError, match="read-only"):
                request.prompt_token_ids[0] = 7

    engine = make_engine(Reads())
    run(engine, request("a", prompt=9), request("b", prompt=5), request("c", prompt=3),
        request("d", prompt=9, cache_salt="x"))  # fmt: skip
    assert seen["a"] == seen["b"]
    assert len({seen["a"], seen["c"], seen["d"]}) == 3


def test_requests_of_different_salts_share_nothing_in_the_prefix_cache() -> None:
    engine = make_engine(Fifo(), max_num_seqs=1, allocator="paged_prefix")
    requests = [
        request("a", prompt=40, cache_salt="x"),
        request("b", prompt=40, cache_salt="y"),
        request("c", prompt=40),
        request("d", prompt=40, cache_salt="x"),
        request("e", prompt=40),
    ]
    outputs = run(engine, *requests)
    cached = {name: output.num_cached_tokens for name, output in outputs.items()}
    assert cached["a"] == cached["b"] == cached["c"] == 0
    assert cached["d"] == cached["e"] > 0


def test_arguments_for_the_model_keep_prefixes_apart() -> None:
    engine = make_engine(Fifo(), max_num_seqs=1, allocator="paged_prefix", model_name="adapted")
    requests = [
        request("base", prompt=40),
        request("one", prompt=40, arguments={"adapted": {"adapter": "one"}}),
        request("again", prompt=40, arguments={"adapted": {"adapter": "one"}}),
        request("two", prompt=40, arguments={"adapted": {"adapter": "two"}}),
    ]
    cached = {name: output.num_cached_tokens for name, output in run(engine, *requests).items()}
    assert cached["again"] > 0
    assert cached["base"] == cached["one"] == cached["two"] == 0


def test_F009_counts_of_a_running_request_are_right_in_every_hook() -> None:
    seen: list[tuple[int, int]] = []

    class Counts(Fifo):
        def on_progress(self, rows: Any, num_tokens: Any, num_decodes: int, view: Any) -> None:
            for row in rows.tolist():
                one = view.running.request(row)
                assert one.row == row
                assert one.is_running
                seen.append((one.num_output_tokens, view.blocks_needed(one)))

    run(make_engine(Counts(), block_size=4), request("a", prompt=6, tokens=9))
    assert [outputs for outputs, _ in seen] == sorted(outputs for outputs, _ in seen)
    assert seen[0] == (0, 2)
    assert seen[-1] == (8, 4)


@pytest.mark.parametrize("fault", ["sort", "zero", "reverse"])
def test_F008_arrays_that_a_policy_is_shown_cannot_be_written(fault: str) -> None:
    class Writes(Fifo):
        def on_progress(self, rows: Any, num_tokens: Any, num_decodes: int, view: Any) -> None:
            if fault == "sort":
                rows.sort()
            elif fault == "zero":
                num_tokens[:] = 0
            else:
                rows[:] = rows[::-1]

    with pytest.raises(PolicyError, match=r"on_progress\(\) raised ValueError"):
        run(make_engine(Writes()), request("a"), request("b"))


@pytest.mark.parametrize("answer", [np.array([True, True]), "no", object(), 1])
def test_F010_an_odd_answer_of_admit_is_named(answer: object) -> None:
    class Odd(Fifo):
        def admit(self, request: RequestView, view: SchedulerView) -> Any:
            return answer

    with pytest.raises(PolicyError, match=r"admit\(\) returned"):
        run(make_engine(Odd()), request("a"))


@pytest.mark.parametrize("answer", [np.array([0, 1]), "0", object(), True, 7, -1])
def test_F010_an_odd_answer_of_victim_is_named(answer: object) -> None:
    class Odd(Fifo):
        def victim(self, for_request: RequestView | None, view: SchedulerView) -> Any:
            return answer

    engine = make_engine(Odd(), num_blocks=4, block_size=4)
    with pytest.raises(PolicyError, match=r"victim\(\) (named row|raised)"):
        run(engine, request("a", prompt=6, tokens=8), request("b", prompt=6, tokens=8))


def hook(name: str, *parameters: str) -> type[Policy]:
    """A policy with one more method."""
    code = f"def {name}(self{''.join(', ' + one for one in parameters)}): return 0"
    space: dict[str, Any] = {}
    exec(code, space)
    return type("Odd", (Fifo,), {name: space[name]})


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (hook("on_finished", "request", "reason", "view"), "did you mean on_finish"),
        (hook("admitt", "request", "view"), "did you mean admit"),
        (hook("window_key", "requests", "view"), "never called without window"),
        (type("Odd", (Fifo,), {"window": 4}), r"window is set, but window_key\(\) is not written"),
        (hook("group_key", "group", "view"), "never called without group"),
        (hook("rekey", "view"), "never called without max_rekeys"),
        (hook("key", "request"), r"cannot be called as key\(self, request, view\)"),
        (hook("victim", "running", "for_request", "view"), "cannot be called as victim"),
    ],
)
def test_F011_misspelt_and_misshapen_hooks_are_told_at_the_start(
    policy: type[Policy], text: str
) -> None:
    with pytest.raises(PolicyError, match=text):
        make_engine(policy())


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit(7), GeneratorExit(), BaseException()])
def test_F047_a_hook_that_exits_is_a_failing_hook(error: BaseException) -> None:
    class Exits(Fifo):
        def admit(self, request: RequestView, view: SchedulerView) -> bool:
            raise error

    with pytest.raises(PolicyError, match=rf"admit\(\) raised {type(error).__name__}"):
        run(make_engine(Exits()), request("a"))


def test_F014_an_allocator_that_always_refuses_is_named() -> None:
    engine = make_engine(Fifo())
    allocator: Any = engine.scheduler.allocator
    allocator.acquire = lambda *args: None
    with pytest.raises(Exception, match="kv_allocator .* gives no blocks to <request 'a'"):
        run(engine, request("a"))


def test_keys_that_cannot_be_compared_are_named_where_paused_rows_give_way() -> None:
    class Mixed(Fifo):
        max_rekeys = 8

        def rekey(self, view: SchedulerView) -> Iterable[RequestView]:
            running = view.running
            return [running.request(row) for row in running.rows.tolist()]

        def key(self, request: RequestView, view: SchedulerView) -> SortKey:
            return str(request.index) if request.is_running and request.index else request.index

        def pause(self, view: SchedulerView) -> Iterable[int]:
            return view.running.rows.tolist()[2:]

    requests = [request(str(i), prompt=6, tokens=30) for i in range(4)]
    engine = make_engine(Mixed(), num_blocks=10, block_size=4, max_num_seqs=4)
    with pytest.raises(PolicyError, match="key"):
        run(engine, *requests)
