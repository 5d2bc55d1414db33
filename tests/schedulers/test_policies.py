"""What the built-in policies do to real queues: engine, allocator and simulated executor."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from nanofw.assembly import select
from nanofw.config.load import load_config
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import Request
from nanofw.contracts.scheduler import Policy
from nanofw.engine.engine import Engine
from nanofw.errors import ConfigError
from nanofw.plugins import Plugin, load_target
from nanofw.schedulers import service
from nanofw.schedulers.earliest_deadline_first import EarliestDeadlineFirstOptions
from nanofw.schedulers.manifest import scheduler
from nanofw.schedulers.partitioned import PartitionedOptions
from tests.engine.sim_engines import Run, make_engine, make_request, run

PLUGINS: dict[str, Plugin] = {plugin.name: plugin for plugin in scheduler()}
STEP = 0.01


def policy(name: str, **options: Any) -> Policy:
    plugin = PLUGINS[name]
    assert isinstance(plugin.options, str)
    return load_target(plugin.target)(load_target(plugin.options)(**options))


def one_at_a_time(name: str, options: dict[str, Any] | None = None, **kwargs: Any) -> Engine:
    sizes: dict[str, Any] = {"max_num_seqs": 1} | kwargs
    return make_engine(policy(name, **(options or {})), **sizes)


def order(done: Run) -> list[str]:
    """Ids in the order in which they were started."""
    outputs = done.outputs.values()
    return [o.id for o in sorted(outputs, key=lambda o: o.scheduled if o.scheduled else 0.0)]


@pytest.mark.parametrize("name", PLUGINS)
@pytest.mark.parametrize("prefill_first", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_policy_batching_and_preemption_never_change_a_token(
    name: str, prefill_first: bool, overlap: bool
) -> None:
    requests = [
        make_request(
            f"r{i}", 3 + 5 * i % 23, max_tokens=4 + 3 * i % 17, client=f"c{i % 3}", priority=i % 2,
            deadline=0.1 * i, seed=i,
        )
        for i in range(24)
    ]  # fmt: skip
    alone = {r.id: run(make_engine(), r).tokens()[r.id] for r in requests}
    engine = make_engine(
        policy(name), num_blocks=14, overlap=overlap, prefill_first=prefill_first,
        chunk_tokens=8, sim={"eos_probability": 0.0},
    )  # fmt: skip
    done = run(engine, *requests)
    assert done.tokens() == alone
    assert engine.scheduler.counters.num_preemptions > 0 or name == "fcfs"


@pytest.mark.parametrize("name", PLUGINS)
def test_B029_a_prompt_too_long_for_the_pool_holds_nobody_up(name: str) -> None:
    engine = make_engine(policy(name), num_blocks=4, block_size=4, max_model_len=64)
    with pytest.raises(ValueError, match="needs 10 KV blocks of 4 tokens, the pool has 4"):
        engine.add_request(make_request("big", 40))
    done = run(engine, *(make_request(f"r{i}", 6, max_tokens=3) for i in range(3)))
    assert len(done.outputs) == 3
    assert all(len(o.token_ids) == 3 for o in done.outputs.values())


def test_fcfs_serves_in_order_of_arrival() -> None:
    engine = one_at_a_time("fcfs")
    sizes = (30, 5, 20, 1)
    done = run(engine, *(make_request(f"r{i}", n, arrival=0.0) for i, n in enumerate(sizes)))
    assert order(done) == ["r0", "r1", "r2", "r3"]


def test_fcfs_watermark_spares_preemptions() -> None:
    requests = [make_request(f"r{i}", 8, max_tokens=24) for i in range(12)]
    counts = {}
    for watermark in (0.0, 0.5):
        engine = make_engine(policy("fcfs", watermark=watermark), num_blocks=24, block_size=4)
        run(engine, *requests)
        counts[watermark] = engine.scheduler.counters.num_preemptions
    assert counts[0.5] < counts[0.0]


@pytest.mark.parametrize(("num_blocks", "max_tokens", "starts"), [(14, 3, True), (10, 1, False)])
def test_fcfs_watermark_counts_cached_blocks_that_no_request_uses(
    num_blocks: int, max_tokens: int, starts: bool
) -> None:
    """Hits take nothing from the free blocks only while another request runs on them."""
    engine = make_engine(policy("fcfs", watermark=0.5), num_blocks=num_blocks, block_size=4)
    prompt = list(range(1, 14))  # four blocks, three of them full
    engine.add_request(make_request("first", prompt, max_tokens=max_tokens))
    engine.add_request(make_request("other", 5, max_tokens=3))
    engine.step()
    engine.add_request(make_request("again", prompt, max_tokens=2))
    engine.step()
    running = {state.request.id for state in engine.scheduler.running.states()}
    assert ("again" in running) is starts


def test_sjf_serves_short_prompts_first_and_ageing_bounds_the_wait() -> None:
    sizes = {"long": 30, "short": 2}
    for ageing, expected in ((0.0, "long"), (1e4, "short")):
        engine = one_at_a_time("shortest_job_first", {"ageing": ageing})
        engine.add_request(make_request("first", 1, max_tokens=2))
        engine.add_request(make_request("long", sizes["long"], max_tokens=2))
        runner = Run(engine)
        for i in range(20):  # a stream of short ones, each later than the long one
            engine.add_request(make_request(f"short{i}", sizes["short"], max_tokens=2))
            runner.step()
        runner.to_end()
        last = order(runner)[-1]
        assert last.startswith(expected)


class TestPriority:
    def test_B017_a_preempted_request_is_back_before_one_that_never_started(self) -> None:
        """Equal priorities: the preempted one is served first, whatever arrived earlier."""
        started: list[str] = []
        ranked: Any = policy("priority")
        ranked.on_start = lambda row, request, now: started.append(request.id)
        engine = make_engine(ranked, num_blocks=6, block_size=4, max_num_seqs=2)
        runner = Run(engine)
        engine.add_request(make_request("first", 8, max_tokens=12))
        engine.add_request(make_request("victim", 8, max_tokens=12))
        runner.step()
        engine.add_request(make_request("waiting", 8, max_tokens=4, arrival=-5.0))
        runner.to_end()
        assert started[:4] == ["first", "victim", "victim", "waiting"]

    @pytest.mark.parametrize("overlap", [False, True])
    def test_B033_a_victim_of_this_step_leaves_its_tokens_and_its_place(
        self, overlap: bool
    ) -> None:
        engine = make_engine(
            policy("priority", preempt=True), num_blocks=8, block_size=4, max_num_seqs=3,
            max_num_batched_tokens=16, overlap=overlap,
        )  # fmt: skip
        runner = Run(engine)
        engine.add_request(make_request("low0", 8, max_tokens=12, priority=0))
        engine.add_request(make_request("low1", 8, max_tokens=12, priority=0))
        for _ in range(3):
            runner.step()
        engine.add_request(make_request("urgent", 12, max_tokens=12, priority=-1))
        while engine.has_unfinished:
            runner.step()
            engine.scheduler.allocator.check_integrity()
            if runner.reports:
                report = runner.reports[-1]
                assert report.num_prefill_tokens + report.num_decode_tokens <= 16
        assert runner.outputs["urgent"].num_preemptions == 0
        assert all(len(o.token_ids) == 12 for o in runner.outputs.values())
        assert sum(o.num_preemptions for o in runner.outputs.values()) > 0

    def test_preempting_for_a_waiting_request_serves_it_at_once(self) -> None:
        waits = {}
        for preempt in (False, True):
            engine = one_at_a_time("priority", {"preempt": preempt})
            runner = Run(engine)
            engine.add_request(make_request("low", 4, max_tokens=40, priority=1))
            runner.step()
            engine.add_request(make_request("urgent", 4, max_tokens=4, priority=0))
            runner.to_end()
            urgent = runner.outputs["urgent"]
            waits[preempt] = _scheduled(urgent) - urgent.arrival
            assert len(runner.outputs["low"].token_ids) == 40
        assert waits[False] > 0.3
        assert waits[True] <= 2 * STEP

    def test_ageing_lifts_a_low_class_in_the_time_that_it_says(self) -> None:
        engine = one_at_a_time("priority", {"ageing": 10.0})
        runner = Run(engine)
        engine.add_request(make_request("running", 4, max_tokens=30))
        engine.add_request(make_request("low", 4, max_tokens=2, priority=1))
        while engine.clock.now() < 0.15:
            runner.step()
        engine.add_request(make_request("high", 4, max_tokens=2, priority=0))
        runner.to_end()
        assert order(runner) == ["running", "low", "high"]


class TestDeadlines:
    def test_serves_the_earliest_deadline_and_those_without_last(self) -> None:
        engine = one_at_a_time("earliest_deadline_first")
        deadlines = {"none": None, "late": 9.0, "soon": 3.0}
        done = run(
            engine,
            *(make_request(name, 4, deadline=d, arrival=0.0) for name, d in deadlines.items()),
        )
        assert order(done) == ["soon", "late", "none"]

    def test_default_slack_counts_from_the_arrival(self) -> None:
        engine = one_at_a_time("earliest_deadline_first", {"default_slack_s": 1.0})
        done = run(
            engine, make_request("given", 4, deadline=3.0, arrival=0.0),
            make_request("slack", 4, arrival=0.0),
        )  # fmt: skip
        assert order(done) == ["slack", "given"]

    @pytest.mark.parametrize(("demote", "met"), [(True, 1), (False, 0)])
    def test_what_is_late_does_not_make_others_late(self, demote: bool, met: int) -> None:
        engine = one_at_a_time("earliest_deadline_first", {"demote_late": demote})
        requests = [
            make_request("running", 4, max_tokens=10, arrival=0.0, deadline=0.01),
            make_request("hopeless", 4, max_tokens=10, arrival=0.0, deadline=0.05),
            make_request("possible", 4, max_tokens=10, arrival=0.0, deadline=0.23),
        ]
        done = run(engine, *requests)
        in_time = [done.outputs[r.id].finished <= (r.deadline or 0) for r in requests]
        assert sum(in_time) == met

    def test_options_are_checked(self) -> None:
        with pytest.raises(ValidationError, match="default_slack"):
            EarliestDeadlineFirstOptions(default_slack_s=-1)


class TestLongestPrefixMatch:
    def _run(self, **options: Any) -> tuple[Engine, Run]:
        """A cold request among an endless stream of hot ones, one at a time."""
        engine = one_at_a_time("longest_prefix_match", options, num_blocks=16)
        hot = list(range(20))
        runner = Run(engine)
        engine.add_request(make_request("warm", [*hot, 50], max_tokens=2))
        runner.to_end()
        engine.add_request(make_request("hot-0", [*hot, 51], max_tokens=2))
        engine.add_request(make_request("cold", [60] * 20, max_tokens=2))
        for i in range(1, 120):
            engine.add_request(make_request(f"hot-{i}", [*hot, i % 50], max_tokens=2))
            runner.step()
            runner.step()
        return engine, runner.to_end()

    def test_B035_without_a_bound_hot_traffic_starves_a_cold_request(self) -> None:
        """As the option's text says; the largest wait is what shows it."""
        _, done = self._run(max_wait_s=None)
        assert order(done)[-1] == "cold"

    @pytest.mark.parametrize(
        "options", [{"max_wait_s": 0.2}, {"max_wait_s": None, "ageing": 100.0}]
    )
    def test_B035_with_a_bound_its_wait_is_bounded(self, options: dict[str, Any]) -> None:
        _, done = self._run(**options)
        cold = done.outputs["cold"]
        assert _scheduled(cold) - cold.arrival <= 0.25

    def test_hits_more_than_first_come_when_the_cache_is_short(self) -> None:
        groups = [[g] * 20 for g in range(6)]
        requests = [
            make_request(f"r{i}", [*groups[i * 7 % 6], 30 + i % 7, i % 5], max_tokens=2)
            for i in range(48)
        ]
        hits = {}
        for name in ("fcfs", "longest_prefix_match"):
            engine = one_at_a_time(name, num_blocks=12, max_num_batched_tokens=64)
            run(engine, *requests)
            hits[name] = engine.scheduler.counters.num_cached_tokens
        assert hits["longest_prefix_match"] > 1.5 * hits["fcfs"]

    @pytest.mark.parametrize(("window", "first"), [(2, "cold0"), (64, "hot")])
    def test_ranks_no_more_than_its_window(self, window: int, first: str) -> None:
        engine = one_at_a_time("longest_prefix_match", {"window": window})
        hot = list(range(20))
        run(engine, make_request("warm", [*hot, 50], max_tokens=2))
        colds = [make_request(f"cold{i}", [61 + i] * 20) for i in range(2)]
        started = order(run(engine, *colds, make_request("hot", [*hot, 51])))
        assert started[0] == first


class TestFairShare:
    def _gap(self, name: str, horizon: float = 3.0) -> float:
        """Service of two backlogged clients, one of which sends ten times as much."""
        engine = make_engine(policy(name), max_num_seqs=4, num_blocks=256, max_model_len=64)
        for i in range(600):
            engine.add_request(make_request(f"a{i}", 8, max_tokens=8, client="a"))
        for i in range(60):
            engine.add_request(make_request(f"b{i}", 8, max_tokens=8, client="b"))
        served = {"a": 0, "b": 0}
        runner = Run(engine)
        while engine.clock.now() < horizon:
            runner.step()
        for output in runner.outputs.values():
            served[output.id[0]] += len(output.token_ids)
        return abs(served["a"] - served["b"])

    def test_the_gap_between_backlogged_clients_is_bounded(self) -> None:
        assert self._gap("fair_share", 1.0) <= 40
        assert self._gap("fair_share", 1.4) <= 40
        assert self._gap("fcfs", 1.4) > 300

    def test_a_pause_earns_no_credit(self) -> None:
        engine = one_at_a_time("fair_share")
        runner = Run(engine)
        for i in range(40):
            engine.add_request(make_request(f"a{i}", 8, max_tokens=4, client="a"))
        engine.add_request(make_request("b0", 8, max_tokens=4, client="b"))
        for _ in range(100):
            runner.step()
        assert "b0" in runner.outputs
        for i in range(1, 11):  # b was away for a while; it gets half from now on, not all
            engine.add_request(make_request(f"b{i}", 8, max_tokens=4, client="b"))
        started = engine.clock.now()
        while engine.clock.now() < started + 0.4:
            runner.step()
        since = [o.id[0] for o in runner.outputs.values() if o.finished > started + 0.05]
        assert abs(since.count("a") - since.count("b")) <= 2

    def test_names_without_end_are_forgotten_and_gain_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "MAX_GROUPS", 8)
        chosen = policy("fair_share")
        engine = make_engine(chosen, max_num_seqs=1)
        runner = Run(engine)
        for i in range(100):  # a client who comes under a new name each time
            engine.add_request(make_request(f"b{i}", 8, max_tokens=4, client=f"b{i}"))
            while engine.has_unfinished:
                runner.step()
        kept: Any = chosen
        assert len(kept._index) <= 8
        for i in range(20):
            engine.add_request(make_request(f"a{i}", 8, max_tokens=4, client="a"))
        for i in range(20):
            engine.add_request(make_request(f"c{i}", 8, max_tokens=4, client="b99"))
        begun = len(runner.outputs)
        while engine.has_unfinished:
            runner.step()
        after = [o.id[0] for o in list(runner.outputs.values())[begun:]]
        assert after[:20].count("a") in (10, 11)

    def test_weights_divide_the_service(self) -> None:
        engine = one_at_a_time("fair_share", {"weights": {"a": 3.0}})
        runner = Run(engine)
        for i in range(100):
            engine.add_request(make_request(f"a{i}", 8, max_tokens=4, client="a"))
            engine.add_request(make_request(f"b{i}", 8, max_tokens=4, client="b"))
        for _ in range(160):
            runner.step()
        clients = [o.id[0] for o in runner.outputs.values()]
        assert clients.count("a") == pytest.approx(3 * clients.count("b"), abs=3)

    @pytest.mark.parametrize("overlap", [False, True])
    @pytest.mark.parametrize("preempt", [False, True])
    def test_a_flood_gives_way_to_another_client(self, preempt: bool, overlap: bool) -> None:
        flood = [make_request(f"a{i}", 8, max_tokens=40, client="a", seed=i) for i in range(12)]
        late = [make_request(f"b{i}", 8, max_tokens=20, client="b", seed=i) for i in range(4)]
        alone = {r.id: run(make_engine(max_model_len=64), r).tokens()[r.id] for r in flood + late}
        sizes = {"max_num_seqs": 4, "num_blocks": 256, "max_model_len": 64, "overlap": overlap}
        engine = make_engine(policy("fair_share", preempt=preempt), **sizes)
        for request in flood:
            engine.add_request(request)
        runner = Run(engine)
        for _ in range(10):
            runner.step()
        came = engine.clock.now()
        for request in late:
            engine.add_request(request)
        runner.to_end()
        assert runner.tokens() == alone
        waits = sorted(runner.outputs[r.id].scheduled - came for r in late)
        if preempt:  # two of the four rows are b's at once; the others wait for an end
            assert waits[1] <= 3.01 * STEP
            assert waits[2] > 5 * STEP
        else:
            assert waits[0] > 5 * STEP
        assert engine.scheduler.counters.num_preemptions == (2 if preempt else 0)

    def test_serves_a_lone_client_at_once(self) -> None:
        engine = one_at_a_time("fair_share")
        done = run(engine, *(make_request(f"a{i}", 4, max_tokens=5, client="a") for i in range(10)))
        assert max(o.finished for o in done.outputs.values()) == pytest.approx(10 * 5 * STEP)


class TestPartitioned:
    def _requests(self) -> list[Request]:
        long = [make_request(f"long{i}", 48, max_tokens=4) for i in range(20)]
        short = [make_request(f"short{i}", 4, max_tokens=4) for i in range(20)]
        return [*long, *short]

    def test_both_classes_are_served_while_both_wait(self) -> None:
        engine = one_at_a_time(
            "partitioned", {"limits": [8], "shares": [1, 1]}, max_num_batched_tokens=64
        )
        started = order(run(engine, *self._requests()))
        assert sum(name.startswith("short") for name in started[:12]) >= 8
        assert any(name.startswith("long") for name in started[:12])

    def test_a_share_moves_the_balance(self) -> None:
        longs = []
        for share in (0.1, 0.9):
            engine = one_at_a_time(
                "partitioned", {"limits": [8], "shares": [1 - share, share]},
                max_num_batched_tokens=64,
            )  # fmt: skip
            started = order(run(engine, *self._requests()))
            longs.append(sum(name.startswith("long") for name in started[:16]))
        assert longs[0] < longs[1]

    def test_a_long_prefill_leaves_room_for_short_ones_that_wait(self) -> None:
        engine = make_engine(
            policy("partitioned", limits=(8,)), max_num_seqs=1 + 1, max_num_batched_tokens=16,
            num_blocks=64,
        )  # fmt: skip
        runner = Run(engine)
        engine.add_request(make_request("long", 48, max_tokens=2))
        runner.step()
        engine.add_request(make_request("short", 4, max_tokens=2))
        runner.to_end()
        first = {name: o.first_token or 0.0 for name, o in runner.outputs.items()}
        assert first["short"] < first["long"]

    @pytest.mark.parametrize(
        "options",
        [{"limits": (9, 9)}, {"limits": (0,)}, {"shares": (1.0,)}, {"shares": (1.0, 1.0, 1.0)}],
    )
    def test_options_are_checked(self, options: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            PartitionedOptions(**options)


def test_random_depends_on_its_seed_alone() -> None:
    def started(seed: int) -> list[str]:
        engine = one_at_a_time("random", {"seed": seed})
        return order(run(engine, *(make_request(f"r{i}", 4, max_tokens=1) for i in range(12))))

    assert started(1) == started(1)
    assert started(1) != started(2)
    assert sorted(started(1)) == sorted(f"r{i}" for i in range(12))


@settings(max_examples=25)
@given(
    name=st.sampled_from(sorted(PLUGINS)),
    specs=st.lists(
        st.tuples(
            st.integers(1, 30), st.integers(1, 12), st.sampled_from("abc"), st.integers(-2, 2),
            st.none() | st.floats(0, 2), st.integers(0, 6),
        ),
        min_size=1, max_size=25,
    ),
    aborts=st.sets(st.integers(0, 24)),
    num_blocks=st.integers(8, 24),
    overlap=st.booleans(),
)  # fmt: skip
def test_everybody_ends_under_every_policy(
    name: str, specs: list[Any], aborts: set[int], num_blocks: int, overlap: bool
) -> None:
    options = {"preempt": True} if name == "priority" else {}
    engine = make_engine(
        policy(name, **options), num_blocks=num_blocks, overlap=overlap, max_model_len=48
    )
    runner = Run(engine)
    for i, (prompt, tokens, client, priority, deadline, steps) in enumerate(specs):
        engine.add_request(
            make_request(
                f"r{i}", prompt, tokens, client=client, priority=priority, deadline=deadline
            )
        )
        for _ in range(steps):
            runner.step()
            engine.scheduler.allocator.check_integrity()
        if i in aborts:
            engine.abort_request(f"r{i // 2}")
    runner.to_end()
    assert len(runner.outputs) == len(specs)
    stats = engine.scheduler.allocator.stats()
    assert stats.num_used == 0
    assert stats.num_free + stats.num_cached == num_blocks


def _scheduled(output: RequestOutput) -> float:
    assert output.scheduled is not None
    return output.scheduled


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("shortest_job_first", "ageing"), ("shortest_job_first", "prompt_weight"),
        ("priority", "ageing"), ("longest_prefix_match", "ageing"), ("partitioned", "ageing"),
        ("earliest_deadline_first", "default_slack_s"), ("longest_prefix_match", "max_wait_s"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_options_without_an_order_are_refused(name: str, option: str, value: str) -> None:
    """Infinity times no time at all is no number: every request would be refused for it."""
    with pytest.raises(ConfigError, match=f"scheduler.{option}: should be a finite number"):
        select(load_config("sim", [f"scheduler.name={name}", f"scheduler.{option}=.{value}"]))
