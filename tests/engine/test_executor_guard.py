"""An executor that fails, in any method and in any way, ends the run in its plugin's name."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from nanofw.assembly import assemble
from nanofw.config.load import load_config
from nanofw.contracts.executor import ExecutorFacts
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.contracts.router import ReplicaView
from nanofw.errors import (
    ExecutorError,
    NanofwError,
    PluginLoadError,
    RequestError,
    RouterError,
)
from nanofw.plugin_calls import PluginCalls

PLUGIN = """
    from nanofw.plugins import Plugin, Executor, hookimpl
    from nanofw.sim import manifest
    from nanofw.sim.executor import SimExecutor

    class Failing(SimExecutor):
        def __init__(self, options, config):
            self.countdown = {countdown}
            super().__init__(options, config)
            self.fail("__init__")

        def fail(self, method):
            if method == "{method}":
                self.countdown -= 1
                if self.countdown < 0:
                    {deed}

        def capacity(self):
            self.fail("capacity")
            return super().capacity()

        def check(self, request):
            self.fail("check")

        def submit(self, plan):
            self.fail("submit")
            super().submit(plan)

        def collect(self):
            self.fail("collect")
            return super().collect()

        def check_alive(self):
            self.fail("check_alive")

        def close(self):
            self.fail("close")
            super().close()

    @hookimpl
    def executor():
        return Plugin("failing", ":Failing", api="executor/{version}",
                      options="nanofw.sim.options:SimOptions",
                      capabilities=dict(manifest.executor().capabilities))
"""
LABEL = r"executor 'failing' of \S*failing\.py"


def engine_with(
    folder: Path, method: str, deed: str = "raise RuntimeError('no power')", **values: Any
) -> Any:
    file = folder / "failing.py"
    text = textwrap.dedent(PLUGIN)
    file.write_text(
        text.format(**{"method": method, "deed": deed, "countdown": 0, "version": 2, **values}),
        encoding="utf-8",
    )
    return assemble(load_config("sim", [f"plugins.load=[{file}]", "executor.name=failing"]))


def request(name: str) -> Request:
    return Request(id=name, prompt_token_ids=[1, 2, 3], sampling=SamplingParams(max_tokens=20))


def step_on(engine: Any) -> None:
    while engine.has_unfinished:
        engine.step()


@pytest.mark.parametrize("deed", ["raise RuntimeError('no power')", "raise SystemExit(0)",
                                  "raise GeneratorExit"])  # fmt: skip
@pytest.mark.parametrize("method", ["submit", "collect"])
def test_a_failing_step_names_plugin_and_method(tmp_path: Path, method: str, deed: str) -> None:
    engine = engine_with(tmp_path, method, deed, countdown=3)
    for name in "abc":
        engine.add_request(request(name))
    with pytest.raises(ExecutorError, match=rf"{LABEL}.*: {method}\(\) raised"):
        step_on(engine)
    assert engine.has_failed
    engine.close()


def test_what_collect_answers_is_checked(tmp_path: Path) -> None:
    engine = engine_with(tmp_path, "none")
    engine.executor.collect = lambda: "done"
    engine.add_request(request("a"))
    with pytest.raises(ExecutorError, match=rf"{LABEL}.* returned 'done'; it must be a StepResult"):
        step_on(engine)


def test_what_an_executor_tells_of_itself_is_checked(tmp_path: Path) -> None:
    engine = engine_with(tmp_path, "none")
    assert engine.executor_facts().process_ids == ()
    seven: Any = 7
    pids: Any = [1]
    told = (ExecutorFacts(graph_steps=seven), ExecutorFacts(process_ids=pids))
    for facts in (None, "facts", *told):
        engine.executor.facts = lambda facts=facts: facts
        with pytest.raises(ExecutorError, match=rf"{LABEL}.*facts\(?\)? .*; it must be"):
            engine.executor_facts()
    engine.executor.facts = lambda: 1 / 0
    with pytest.raises(ExecutorError, match=rf"{LABEL}.*: facts\(\) raised ZeroDivisionError"):
        engine.executor_facts()


def test_a_failing_check_refuses_its_request_alone(tmp_path: Path) -> None:
    engine = engine_with(tmp_path, "check", countdown=1)
    engine.add_request(request("a"))
    with pytest.raises(RequestError, match=rf"{LABEL}.*: check\(\) raised RuntimeError: no power"):
        engine.add_request(request("b"))
    finished = []
    while engine.has_unfinished:
        finished += engine.step().finished
    assert [output.id for output in finished] == ["a"]


def test_a_failure_while_idle_is_named(tmp_path: Path) -> None:
    engine = engine_with(tmp_path, "check_alive")
    assert engine.is_watchable
    with pytest.raises(ExecutorError, match=rf"{LABEL}.*: check_alive\(\) raised"):
        engine.check_alive()
    assert engine.has_failed


@pytest.mark.parametrize("method", ["__init__", "capacity"])
def test_a_failing_start_is_named(tmp_path: Path, method: str) -> None:
    with pytest.raises(NanofwError, match=LABEL):
        engine_with(tmp_path, method)


def test_version_1_is_refused_with_where_to_read(tmp_path: Path) -> None:
    with pytest.raises(NanofwError, match=r"executor/1; .*executor/2(.|\n)*migrating\.md"):
        engine_with(tmp_path, "none", version=1)


def test_what_does_not_derive_from_the_contract_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plain.py"
    file.write_text(
        textwrap.dedent(
            """
            from nanofw.plugins import Plugin, hookimpl

            class Plain:
                def __init__(self, options, config): ...
                def capacity(self): ...

            @hookimpl
            def executor():
                return Plugin("plain", ":Plain", api="executor/2",
                              capabilities={"devices": ("*",), "needs": (), "virtual_time": True})
            """
        ),
        encoding="utf-8",
    )
    words = [f"plugins.load=[{file}]", "executor.name=plain"]
    with pytest.raises(PluginLoadError, match="executor 'plain' .*does not implement Executor"):
        assemble(load_config("sim", words))


def test_an_attribute_that_is_not_there_comes_with_the_nearest_name() -> None:
    calls = PluginCalls("router 'mine'", RouterError)
    with pytest.raises(RouterError, match="no attribute 'num_token'; did you mean 'num_tokens"):
        calls.call("choose", lambda view: view.num_token, ReplicaView(0))
    name = "x"
    with pytest.raises(RouterError, match=r"no attribute 'x' \("):
        calls.call("choose", lambda: getattr(None, name))
