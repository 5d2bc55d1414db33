"""Routers in virtual time: what they choose, what they are shown, and what a wrong one does."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nanofw import LLM, SamplingParams
from nanofw.contracts.limits import Limits
from nanofw.contracts.requests import FinishReason, Request
from nanofw.contracts.router import ReplicaView, RouterConfig
from nanofw.contracts.views import RequestView
from nanofw.errors import ConfigError, PluginLoadError
from nanofw.testing import construct, load_component

SIM: dict[str, Any] = {
    "device": "cpu", "executor": "sim", "max_num_seqs": 4, "max_model_len": 256, "replicas": 3,
    "kv_allocator": {"name": "paged_prefix", "num_blocks": 64, "block_size": 4},
}  # fmt: skip
SHORT = SamplingParams(max_tokens=8)
PLUGIN = """
from nanofw.plugins import Plugin, Router, hookimpl

class Wrong(Router):
    prefix_blocks = {blocks}

    def choose(self, request, replicas):
        {body}

@hookimpl
def router():
    return Plugin("wrong", ":Wrong", api="router/1")
"""


def make(name: str, **options: object) -> Any:
    limits = Limits(
        max_num_seqs=4, max_num_batched_tokens=64, max_model_len=256, num_blocks=64, block_size=4
    )
    config = RouterConfig(name=name, num_replicas=3, limits=limits)
    return construct(load_component("router", name, options), config)


def asked(client: str = "", tokens: int = 10) -> RequestView:
    request = Request(id="r", prompt_token_ids=[1] * tokens, client=client)
    return RequestView(request, max_tokens=20)


def replicas(*loads: int | None) -> list[ReplicaView]:
    """By their tokens; None: it is gone."""
    return [
        ReplicaView(n, is_ready=load is not None, num_tokens=load or 0)
        for n, load in enumerate(loads)
    ]


class Caching(ReplicaView):
    """A replica that has the beginning of every prompt."""

    def cached_tokens(self, request: RequestView) -> int:
        return 8


def test_the_least_loaded_of_those_that_are_there() -> None:
    router = make("least_loaded")
    assert router.choose(asked(), replicas(50, 20, 20)) == 1
    assert router.choose(asked(), replicas(50, None, 60)) == 0


def test_in_turn_without_those_that_are_gone() -> None:
    router = make("round_robin")
    assert [router.choose(asked(), replicas(9, 0, 0)) for _ in range(4)] == [0, 1, 2, 0]
    assert [router.choose(asked(), replicas(9, None, 0)) for _ in range(3)] == [2, 0, 2]


def test_a_client_stays_where_it_is_until_that_costs_too_much() -> None:
    router = make("client_affinity", spill=2)
    clients = [f"client {number}" for number in range(60)]
    homes = {client: router.choose(asked(client), replicas(0, 0, 0)) for client in clients}
    assert Counter(homes.values()).keys() == {0, 1, 2}
    assert homes == {c: router.choose(asked(c), replicas(40, 30, 50)) for c in clients}
    moved = {c: router.choose(asked(c), replicas(0, None, 0)) for c in clients}
    assert {c for c in clients if moved[c] != homes[c]} == {c for c in clients if homes[c] == 1}
    at_one = next(client for client in clients if homes[client] == 1)
    assert router.choose(asked(at_one), replicas(10, 1000, 5)) == 2
    assert router.choose(asked(), replicas(3, 2, 1)) == 2  # no client


def test_a_cached_beginning_is_weighed_against_the_load() -> None:
    router = make("prefix_affinity", load_weight=0.5)
    first, _, third = replicas(10, 0, 10)
    assert router.choose(asked(), [first, Caching(1, num_tokens=20), third]) == 1
    assert router.choose(asked(), [first, Caching(1, num_tokens=30), third]) == 0


def test_requests_go_where_their_beginning_was_sent() -> None:
    prefixes = [[number] * 40 for number in range(1, 6)]  # in turn a prefix meets all replicas
    prompts = [[*prefix, number] for number in range(10, 16) for prefix in prefixes]
    hits = {}
    for name in ("round_robin", "prefix_affinity"):
        with LLM("embedded:demo", **SIM, router=name) as llm:
            for start in range(0, len(prompts), 5):
                llm.generate(prompts[start : start + 5], SHORT)
            hits[name] = llm.engine.stats()["num_cached_tokens"]
    assert hits["prefix_affinity"] == 40 * (len(prompts) - 5)
    assert hits["round_robin"] < hits["prefix_affinity"]


def test_tokens_do_not_depend_on_the_router_and_no_replica_is_left_out() -> None:
    prompts = [[3, 5 + number, 8] * (number % 4 + 1) for number in range(30)]
    sampling = SamplingParams(max_tokens=9, n=2)
    one = SIM | {"replicas": 1}
    with LLM("embedded:demo", **one) as llm:
        expected = [[o.token_ids for o in r.outputs] for r in llm.generate(prompts, sampling)]
    for name in ("round_robin", "least_loaded", "prefix_affinity", "client_affinity"):
        with LLM("embedded:demo", **SIM, router=name) as llm:
            results = llm.generate(prompts, sampling)
            engine: Any = llm.engine
            replicas = engine.stats()["replicas"]
            served = [replica["stats"]["num_steps"] for replica in replicas]
            assert engine.outstanding == [0, 0, 0]
        assert [[o.token_ids for o in r.outputs] for r in results] == expected, name
        assert len(served) == 3
        assert all(served), (name, served)


WRONG = {
    "3": "choose() returned 3; it must be the number of a replica that is ready: 0, 1, 2",
    "-1": "choose() returned -1; it must be the number of a replica that is ready: 0, 1, 2",
    "None": "choose() returned None; it must be an integer",
    "True": "choose() returned True; it must be an integer",
    "replicas": "; it must be an integer",
    "odd[0]": "choose() raised NameError: name 'odd' is not defined (",
    "exit(3)": "choose() raised SystemExit: 3 (",
}
"""By expression: what is said of a router whose answer it is."""


def test_a_wrong_router_is_named_and_refuses_what_it_was_asked_about(tmp_path: Path) -> None:
    """The name of a client is what the router answers."""
    plugin = tmp_path / "wrong.py"
    body = "return eval(request.client, {'exit': exit}, {'replicas': replicas})"
    plugin.write_text(PLUGIN.format(blocks=0, body=body), encoding="utf-8")
    prompts = [{"prompt_token_ids": [1, 2], "client": name} for name in (*WRONG, "2", *WRONG, "0")]
    with LLM("embedded:demo", **SIM, router="wrong", plugins={"load": [str(plugin)]}) as llm:
        results = llm.generate(prompts, SHORT)
    for prompt, result in zip(prompts, results, strict=True):
        reason = WRONG.get(prompt["client"])
        if reason is None:
            assert result.finish_reason is FinishReason.LENGTH
        else:
            assert result.finish_reason is FinishReason.REFUSED
            assert str(result.error).startswith("router 'wrong' of ")
            assert reason in str(result.error)


def test_a_router_cannot_choose_a_replica_that_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The replica of the requests fails; those that are started again are told of the router."""
    caplog.set_level(logging.ERROR)
    plugin = tmp_path / "wrong.py"
    plugin.write_text(PLUGIN.format(blocks=0, body="return 0") + POISONED, encoding="utf-8")
    values = SIM | {"router": "wrong", "scheduler": "poisoned", "plugins": {"load": [str(plugin)]}}
    with LLM("embedded:demo", **values) as llm:
        poison = {"prompt_token_ids": [9], "priority": 13}
        results = llm.generate([{"prompt_token_ids": [1, 2]}, poison], SHORT)
        assert [r.finish_reason for r in results] == [FinishReason.ERROR] * 2
        for result in results:
            assert (
                "choose() returned 0; it must be the number of a replica that is ready: 1, 2"
                in (str(result.error))
            )
        engine: Any = llm.engine
        assert [bool(pids) for pids in engine.pids] == [False, True, True]


def test_a_failed_engine_ends_alone_and_its_requests_start_again(tmp_path: Path) -> None:
    plugin = tmp_path / "poisoned.py"
    plugin.write_text("from nanofw.plugins import Plugin, hookimpl\n" + POISONED, encoding="utf-8")
    values = SIM | {"scheduler": "poisoned", "plugins": {"load": [str(plugin)]}}
    prompts: list[Any] = [{"prompt_token_ids": [1, 2, number]} for number in range(6)]
    with LLM("embedded:demo", **SIM) as llm:
        expected = [r.outputs[0].token_ids for r in llm.generate([*prompts, [7]] * 2, SHORT)]
    with LLM("embedded:demo", **values) as llm:
        poison = {"prompt_token_ids": [7], "priority": 13}
        results = llm.generate([*prompts, poison], SHORT)
        results += llm.generate([*prompts, [7]], SHORT)
        engine: Any = llm.engine
        assert len([pids for pids in engine.pids if pids]) == 1  # it was tried twice
    bad = results.pop(6)
    assert bad.finish_reason is FinishReason.ERROR
    assert "tried before" in str(bad.error)
    assert "that is poison" in str(bad.error)
    del expected[6]
    served = [r.outputs[0].token_ids if r.ok else None for r in results]
    assert sum(tokens is None for tokens in served) <= 3  # those that ran beside it both times
    assert all(t in (e, None) for t, e in zip(served, expected, strict=True))


def test_what_cannot_be_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"router.spil: no such key; did you mean 'spill'"):
        LLM("embedded:demo", **SIM, router={"name": "client_affinity", "spil": 2})
    plugin = tmp_path / "wrong.py"
    for body, blocks, reason in (
        ("return 0", "-1", "prefix_blocks() returned -1; it must be an integer, 0 or greater"),
        ("return 0", "'many'", "prefix_blocks() returned 'many'; it must be an integer"),
    ):
        plugin.write_text(PLUGIN.format(blocks=blocks, body=body), encoding="utf-8")
        with pytest.raises(Exception, match="router 'wrong' of ") as caught:
            LLM("embedded:demo", **SIM, router="wrong", plugins={"load": [str(plugin)]})
        assert reason in str(caught.value)
    text = PLUGIN.format(blocks=0, body="return 0").replace("def choose", "def chose")
    plugin.write_text(text, encoding="utf-8")
    with pytest.raises(PluginLoadError, match="does not implement Router: it lacks choose"):
        LLM("embedded:demo", **SIM, router="wrong", plugins={"load": [str(plugin)]})


POISONED = """
from nanofw.plugins import Policy

class Poisoned(Policy):
    def key(self, request, view):
        return request.arrival

    def chunk(self, request, view):
        if request.priority == 13:
            raise RuntimeError("that is poison")

@hookimpl
def scheduler():
    return Plugin("poisoned", ":Poisoned", api="scheduler/2", capabilities={"overlap": True})
"""
