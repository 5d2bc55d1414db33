"""Workloads: rates, lengths, shared prefixes, and that all depends on options and seed alone."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from nanofw.assembly import build_workload, select
from nanofw.config.load import load_config
from nanofw.contracts.arrays import EMPTY_INT
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import FinishReason, Request
from nanofw.contracts.workload import Workload, WorkloadConfig
from nanofw.errors import ConfigError, PluginError
from nanofw.plugins import load_target
from nanofw.workloads.lengths import Lengths
from nanofw.workloads.manifest import workload
from nanofw.workloads.prompts import key_of, tokens_by_key

PLUGINS = {plugin.name: plugin for plugin in workload()}
TRACE = Path(__file__).parents[2] / "examples" / "traces" / "azure_2023_conv_excerpt.csv"
SMALL: dict[str, dict[str, Any]] = {
    "poisson": {"num_requests": 40},
    "gamma": {"num_requests": 40},
    "on_off": {"num_requests": 40},
    "streams": {
        "streams": [{"name": "poisson", "num_requests": 20}, {"name": "gamma", "num_requests": 20}]
    },
    "closed_loop": {"num_requests": 40, "concurrency": 4, "think_s": 1.0},
    "conversations": {"num_conversations": 10},
    "replay": {"file": TRACE, "num_requests": 40},
    "fixed": {"requests": [{"prompt_tokens": 4, "output_tokens": 2, "arrival": 1.5}]},
}  # fmt: skip


def make(name: str, options: dict[str, Any] | None = None, **config: Any) -> Workload:
    plugin = PLUGINS[name]
    assert isinstance(plugin.options, str)
    values = load_target(plugin.options)(**(SMALL[name] if options is None else options))
    facts: dict[str, Any] = {"vocab_size": 1000, "max_model_len": 4096} | config
    return load_target(plugin.target)(values, WorkloadConfig(**facts))


def answer(request: Request, took: float = 1.0) -> RequestOutput:
    num = request.sampling.max_tokens or 1
    return RequestOutput(
        id=request.id, token_ids=np.arange(num, dtype=np.int32), num_prompt_tokens=1,
        finish_reason=FinishReason.LENGTH, finished=(request.arrival or 0.0) + took,
    )  # fmt: skip


def everything(made: Workload) -> list[Request]:
    """All requests, when each is answered after one second."""
    found: list[Request] = []
    todo = list(made.initial())
    while todo:
        found.append(todo.pop(0))
        todo += made.follow(answer(found[-1]))
    return found


def facts(request: Request) -> tuple[Any, ...]:
    return (
        request.id, tuple(request.prompt_token_ids), request.sampling, request.arrival,
        request.client, request.priority, request.deadline, request.expected_output_tokens,
    )  # fmt: skip


@pytest.mark.parametrize("name", PLUGINS)
class TestEvery:
    def test_is_a_function_of_options_and_seed(self, name: str) -> None:
        first, again = ([facts(r) for r in everything(make(name, seed=3))] for _ in range(2))
        assert first == again
        other = [facts(r) for r in everything(make(name, seed=4))]
        assert other != first

    def test_arrivals_rise_and_ids_differ(self, name: str) -> None:
        made = make(name)
        arrivals: list[Any] = [r.arrival for r in make(name).initial()]
        assert arrivals == sorted(arrivals)
        ids = [r.id for r in everything(made)]
        assert len(set(ids)) == len(ids) <= made.num_requests

    def test_time_scale_and_start_move_arrivals_and_nothing_else(self, name: str) -> None:
        plain = list(make(name).initial())
        moved = list(make(name, time_scale=0.5, start=100.0).initial())
        for a, b in zip(plain, moved, strict=True):
            assert b.arrival == pytest.approx(100 + 0.5 * (a.arrival or 0.0))
            assert np.array_equal(a.prompt_token_ids, b.prompt_token_ids)
        once = make(name, time_scale=0.0).initial()
        assert {r.arrival for r in once} == {0.0}

    def test_what_is_too_long_is_cut_and_said(self, name: str) -> None:
        made = make(name, max_model_len=16)
        if name == "fixed":
            assert made.notes == ()
            return
        for request in everything(made):
            length = len(request.prompt_token_ids)
            assert length < 16
            assert length + (request.sampling.max_tokens or 0) <= 16
        assert any("cut to max_model_len 16" in note for note in made.notes)


@pytest.mark.parametrize("name", ["poisson", "gamma", "on_off"])
def test_open_loops_have_the_rate_that_they_say(name: str) -> None:
    made = make(name, {"num_requests": 20_000, "rate": 5.0})
    assert made.rate == 5.0
    arrivals = np.array([r.arrival for r in itertools.islice(made.initial(), 20_000)])
    assert len(arrivals) / arrivals[-1] == pytest.approx(5.0, rel=0.05)


def test_gamma_has_the_spread_that_it_says() -> None:
    made = make("gamma", {"num_requests": 20_000, "cv": 3.0})
    arrivals: list[Any] = [r.arrival for r in made.initial()]
    gaps = np.diff(arrivals)
    assert gaps.std() / gaps.mean() == pytest.approx(3.0, rel=0.1)


def test_on_off_is_silent_in_between() -> None:
    made = make("on_off", {"num_requests": 2000, "rate": 10.0, "on_s": 2.0, "off_s": 3.0})
    arrivals = np.array([r.arrival for r in made.initial()])
    assert (arrivals % 5.0 <= 2.0 + 1e-9).all()
    assert len(set((arrivals // 5.0).tolist())) > 20


def test_streams_keep_their_own_clients_and_rates() -> None:
    made = make("streams", {
        "streams": [
            {"name": "poisson", "rate": 10.0, "num_requests": 100, "clients": {"a": 1}},
            {"name": "gamma", "rate": 1.0, "num_requests": 10, "clients": {"b": 1}, "start_s": 3.0},
        ]
    })  # fmt: skip
    requests = list(made.initial())
    assert made.rate == 11.0
    assert min(r.arrival or 0 for r in requests if r.client == "b") > 3.0
    assert [r.client for r in requests].count("a") == 100


def test_closed_loop_keeps_its_concurrency() -> None:
    made = make("closed_loop", {"num_requests": 10, "concurrency": 3})
    first = list(made.initial())
    assert len(first) == 3
    (fourth,) = made.follow(answer(first[1], took=7.5))
    assert fourth.arrival == 7.5
    assert len(everything(make("closed_loop", {"num_requests": 10, "concurrency": 3}))) == 10


def test_conversations_send_all_that_was_said() -> None:
    made = make("conversations", {"num_conversations": 1, "turns": 3, "prompt": 10, "output": 5})
    (first,) = made.initial()
    (second,) = made.follow(answer(first))
    said = [*first.prompt_token_ids, *range(5)]
    assert list(second.prompt_token_ids[:15]) == said
    assert len(second.prompt_token_ids) == 25
    assert (second.arrival or 0) > (first.arrival or 0) + 1.0
    (third,) = made.follow(answer(second))
    assert len(third.prompt_token_ids) == 40
    assert made.follow(answer(third)) == ()


def test_a_conversation_ends_when_its_context_is_full() -> None:
    made = make(
        "conversations", {"num_conversations": 1, "turns": 50, "prompt": 10, "output": 5},
        max_model_len=64,
    )  # fmt: skip
    requests = everything(made)
    assert len(requests) == 4
    assert made.notes == (
        "1 of 1 conversations end early: 46 of 50 turns do not fit max_model_len 64",
    )
    assert all(len(r.prompt_token_ids) + (r.sampling.max_tokens or 0) <= 64 for r in requests)


class TestMix:
    def _requests(self, **options: Any) -> list[Request]:
        return list(make("poisson", {"num_requests": 2000, **options}).initial())

    def test_clients_priorities_and_deadlines(self) -> None:
        requests = self._requests(
            clients={"a": 3.0, "b": 1.0}, priorities={0: 1, 5: 1}, deadline_s=2.0,
            deadline_per_token_s=0.5, output=4,
        )  # fmt: skip
        assert [r.client for r in requests].count("a") == pytest.approx(1500, abs=80)
        assert [r.priority for r in requests].count(5) == pytest.approx(1000, abs=90)
        assert {round((r.deadline or 0) - (r.arrival or 0), 6) for r in requests} == {4.0}

    def test_an_option_changes_only_its_own_numbers(self) -> None:
        plain, clients = self._requests(), self._requests(clients={"a": 1, "b": 1})
        assert [r.arrival for r in plain] == [r.arrival for r in clients]
        assert [r.sampling for r in plain] == [r.sampling for r in clients]

    @pytest.mark.parametrize(("noise", "tau"), [(0.0, 1.0), (1.0, 0.5), (5.0, 0.13)])
    def test_guesses_have_the_rank_correlation_that_the_option_says(
        self, noise: float, tau: float
    ) -> None:
        output = {"distribution": "lognormal", "median": 1000, "sigma": 1.0}
        made = make(
            "poisson", {"num_requests": 1000, "output": output, "guess_noise": noise},
            max_model_len=1 << 20,
        )  # fmt: skip
        pairs = [(r.sampling.max_tokens, r.expected_output_tokens) for r in made.initial()]
        lengths, guesses = np.array(pairs, float).T
        signs = np.sign(lengths[:, None] - lengths) * np.sign(guesses[:, None] - guesses)
        assert signs.sum() / (1000 * 999) == pytest.approx(tau, abs=0.06)

    def test_no_guess_unless_asked_for(self) -> None:
        assert {r.expected_output_tokens for r in self._requests()} == {None}

    def test_groups_share_their_prefix_and_cold_ones_do_not(self) -> None:
        prefix = {"groups": 4, "length": 30, "zipf": 1.0, "cold": 0.1}
        requests = self._requests(prefix=prefix, prompt=8)
        heads = [tuple(r.prompt_token_ids[:30]) for r in requests]
        counts = sorted((heads.count(head) for head in set(heads)), reverse=True)
        assert {len(r.prompt_token_ids) for r in requests} == {38}
        assert counts[0] == pytest.approx(1800 * 12 / 25, abs=90)
        assert sum(counts[:4]) == pytest.approx(1800, abs=60)
        assert set(counts[4:]) == {1}

    def test_two_prompts_are_never_alike_by_chance(self) -> None:
        requests = self._requests(prompt=16)
        assert len({tuple(r.prompt_token_ids) for r in requests}) == 2000


@pytest.mark.parametrize(
    ("option", "low", "high", "mean"),
    [
        (7, 7, 7, 7),
        ({"distribution": "uniform", "low": 3, "high": 9}, 3, 9, 6),
        ({"distribution": "lognormal", "median": 100, "sigma": 0.5}, 5, 2000, 113.3),
        ({"distribution": "lognormal", "mean": 250, "sigma": 1.0}, 1, 50_000, 250),
        ({"distribution": "lognormal", "median": 90, "low": 80, "high": 100}, 80, 100, 90),
        ({"distribution": "empirical", "values": [1, 1, 4]}, 1, 4, 2),
        (
            {
                "distribution": "mixture",
                "parts": [
                    {"weight": 3, "length": {"distribution": "fixed", "tokens": 10}},
                    {"weight": 1, "length": {"distribution": "uniform", "low": 40, "high": 60}},
                ],
            },
            10, 60, 20,
        ),
    ],
)  # fmt: skip
def test_lengths(option: Any, low: int, high: int, mean: float) -> None:
    lengths = TypeAdapter(Lengths).validate_python(option)
    drawn = lengths.sample(np.random.default_rng(0), 40_000)
    assert drawn.min() >= low
    assert drawn.max() <= high
    assert drawn.mean() == pytest.approx(mean, rel=0.03)


@pytest.mark.parametrize(
    "option",
    [
        0, {"distribution": "uniform", "low": 5, "high": 4}, {"distribution": "lognormal"},
        {"distribution": "lognormal", "mean": 5, "median": 5}, {"distribution": "zipf"},
        {"distribution": "empirical", "values": []},
        {"distribution": "lognormal", "median": 50, "low": 100, "high": 10},
        {"distribution": "fixed", "tokens": 1 << 62},
    ],
)  # fmt: skip
def test_lengths_that_make_no_sense_are_refused(option: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Lengths).validate_python(option)


def test_workloads_know_whether_prompts_begin_alike() -> None:
    prefix = {"groups": 2, "length": 8}
    assert not make("poisson").shares_prefixes
    assert make("poisson", {"num_requests": 5, "prefix": prefix}).shares_prefixes
    assert not make("streams").shares_prefixes
    assert not make("closed_loop").shares_prefixes
    assert not make("replay").shares_prefixes
    assert make("conversations").shares_prefixes


def test_a_longer_prompt_of_a_key_begins_with_the_shorter() -> None:
    short, long = tokens_by_key(5, 10, 77), tokens_by_key(5, 30, 77)
    assert np.array_equal(short, long[:10])
    assert (long >= 0).all()
    assert (long < 77).all()
    assert key_of(1, 2) != key_of(2, 1)
    assert len(EMPTY_INT) == len(tokens_by_key(5, 0, 77))


@pytest.mark.parametrize(
    "output",
    [
        7, {"distribution": "empirical", "values": [3, 9]},
        {"distribution": "mixture", "parts": [{"length": {"distribution": "fixed", "tokens": 4}}]},
        {"distribution": "mixture", "parts": [{"length": 4}]},
    ],
)  # fmt: skip
def test_lengths_from_a_configuration(output: Any) -> None:
    values = {
        "model": {"path": "shape:qwen3-0.6b"},
        "executor": {"name": "sim"},
        "input": {"workload": {"name": "poisson", "num_requests": 5, "output": output}},
    }
    made = build_workload(select(load_config(None, values=values)))
    assert {r.sampling.max_tokens for r in made.initial()} <= {3, 4, 7, 9}


HUGE = {"distribution": "lognormal", "mean": 500, "sigma": 1e6}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("poisson", {"num_requests": 40, "prompt": HUGE, "output": HUGE}),
        ("poisson", {"num_requests": 40, "prompt": 1 << 30}),
        ("poisson", {"num_requests": 40, "prefix": {"groups": 3, "length": 1 << 30}}),
        ("poisson", {"num_requests": 40, "guess_noise": 1e9}),
        ("conversations", {"num_conversations": 2, "turns": 1 << 30, "prompt": 1 << 30}),
        ("fixed", {"requests": [{"prompt_tokens": 1 << 30, "output_tokens": 1 << 30}]}),
        (
            "fixed",
            {
                "requests": [
                    {"prompt_tokens": 1 << 30, "output_tokens": 1, "prefix_hashes": range(1000)}
                ],
                "prefix_block_tokens": 1 << 20,
            },
        ),
    ],
)
def test_what_does_not_fit_the_model_takes_no_memory(name: str, options: dict[str, Any]) -> None:
    made = make(name, options)
    tracemalloc.start()
    try:
        requests = everything(made)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert requests
    assert all(0 < len(request.prompt_token_ids) < 4096 for request in requests)
    assert all((request.expected_output_tokens or 1) >= 1 for request in requests)
    assert peak < 64 << 20


def test_shares_may_be_as_large_as_numbers_are() -> None:
    clients = {"a": 1e308, "b": 1e308}
    parts = [{"weight": 1.7e308, "length": length} for length in (3, 5)]
    prompt = {"distribution": "mixture", "parts": parts}
    made = make("poisson", {"num_requests": 50, "clients": clients, "prompt": prompt})
    requests = list(made.initial())
    assert {request.client for request in requests} == {"a", "b"}
    assert {len(request.prompt_token_ids) for request in requests} == {3, 5}


def test_an_arrival_that_a_clock_cannot_tell_apart_is_refused() -> None:
    loaded = load_config("sim", values={"input": {"workload": {"name": "poisson", "rate": 1e-14}}})
    with pytest.raises(PluginError, match="arrival .* s: after 1e.12 s a clock .* raise the rate"):
        list(build_workload(select(loaded)).initial())


@pytest.mark.parametrize("key", ["clients", "priorities"])
def test_shares_of_nobody_are_refused(key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        make("poisson", {key: {}})


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ("{name: poisson, prompt: {distribution: normal}}",
         r"prompt\.distribution: should be one of .*'uniform'.*, not the string 'normal'$"),
        ("{name: poisson, prompt: {tokens: 3}}", r"prompt\.distribution: is required: it says"),
        ("{name: poisson, prompt: 1.5}", r"prompt: should be .*a mapping, not 1\.5$"),
        ("{name: fixed, requests: []}", r"requests: needs at least one$"),
        ("{name: fixed, requests: [{prompt_tokens: 8}]}", r"^\S+ \S*output_tokens: is required$"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_told_once_and_by_its_key(
    tmp_path: Path, workload: str, message: str
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"base: sim\ninput:\n  workload: {workload}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        build_workload(select(load_config(path)))


@pytest.mark.parametrize("output", [1, 7, 300])
@pytest.mark.parametrize("prompt", [3, 40, 500])
def test_what_conversations_leave_out_is_noted(output: int, prompt: int) -> None:
    options = {
        "num_conversations": 20, "turns": {"distribution": "uniform", "low": 1, "high": 30},
        "prompt": {"distribution": "uniform", "low": 1, "high": prompt}, "output": output,
    }  # fmt: skip
    made = make("conversations", options, max_model_len=256)
    left_out = made.num_requests - len(everything(made))
    noted = [note for note in made.notes if "conversations end early" in note]
    assert noted or not left_out
    assert not noted or f": {left_out} of {made.num_requests} turns" in noted[0]
