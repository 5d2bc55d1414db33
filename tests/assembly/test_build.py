from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nanofw.assembly import DowngradeWarning, Selection, assemble, build
from nanofw.assembly.build import PluginSettingWarning
from nanofw.config.load import LoadedConfig, load_config
from nanofw.contracts.clock import RealClock, VirtualClock
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.requests import FinishReason, Request, SamplingParams
from nanofw.engine.engine import Engine
from nanofw.errors import ConfigError, ExecutorError, PluginLoadError
from tests.assembly.local_plugins import OPTIONS, PLAIN_POLICY

Choose = Callable[..., Selection]
Load = Callable[..., LoadedConfig]
Local = Callable[[str], Path]


def run(engine: Engine, num_requests: int = 3) -> list[RequestOutput]:
    for index in range(num_requests):
        sampling = SamplingParams(max_tokens=4)
        engine.add_request(Request(id=str(index), prompt_token_ids=[1, 2, 3], sampling=sampling))
    finished: list[RequestOutput] = []
    while engine.has_unfinished:
        finished += engine.step().finished
    return finished


def test_a_configuration_becomes_an_engine_that_serves(load: Load) -> None:
    with assemble(load()) as engine:
        outputs = run(engine)
    assert [output.finish_reason for output in outputs] == [FinishReason.LENGTH] * 3
    assert all(len(output.token_ids) == 4 for output in outputs)
    assert isinstance(engine.clock, VirtualClock)
    assert engine.overlap


def test_settings_of_the_engine_reach_the_scheduler(load: Load) -> None:
    engine = assemble(
        load(
            "engine.max_num_seqs=3",
            "engine.max_num_batched_tokens=40",
            "engine.chunk_tokens=5",
            "engine.batching=prefill_first",
            "engine.max_partial_prefills=2",
            "engine.max_model_len=99",
            "kv_allocator.block_size=8",
        )
    )
    limits = engine.scheduler.limits
    assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.chunk_tokens) == (3, 40, 5)
    assert (limits.prefill_first, limits.max_partial_prefills) == (True, 2)
    assert (limits.max_model_len, limits.block_size, limits.num_blocks) == (99, 8, 64)


def test_policies_are_constructed_as_their_contract_says(load: Load, local: Local) -> None:
    loaded = load("scheduler.weight=3", plugins=[local(OPTIONS)], scheduler={"name": "weighted"})
    assert assemble(loaded).scheduler.policy.options.weight == 3.0
    loaded = load(plugins=[local(PLAIN_POLICY)], scheduler={"name": "plain"})
    assert len(run(assemble(loaded))) == 3


def test_B037_a_downgrade_is_said_when_the_engine_starts(load: Load, local: Local) -> None:
    loaded = load("engine.overlap=true", "scheduler.name=plain", plugins=[local(PLAIN_POLICY)])
    with pytest.warns(DowngradeWarning, match="overlap is off: .*scheduler 'plain'"):
        engine = assemble(loaded)
    assert not engine.overlap


def test_overlap_follows_what_the_executor_takes(load: Load) -> None:
    assert not assemble(load("executor.max_in_flight=1")).overlap
    with pytest.raises(ExecutorError, match="set engine.overlap to false"):
        assemble(load("executor.max_in_flight=1", "engine.overlap=true"))


def test_a_clock_may_be_given(choose: Choose) -> None:
    clock = VirtualClock(5.0)
    assert build(choose(), clock=clock).clock is clock
    assert isinstance(build(choose(), clock=RealClock()).clock, RealClock)


def test_what_a_constructor_raises_names_the_component(load: Load, local: Local) -> None:
    broken = local(
        PLAIN_POLICY.replace(
            "def key", "def __init__(self, options, config): 1 / 0\n        def key"
        )
    )
    with pytest.raises(PluginLoadError) as caught:
        assemble(load(plugins=[broken], scheduler={"name": "plain"}))
    text = str(caught.value)
    assert f"scheduler 'plain' of {broken} failed to start: ZeroDivisionError" in text
    assert "in __init__" in text


def test_an_object_that_does_not_keep_the_contract_is_refused(load: Load, local: Local) -> None:
    stranger = local(
        PLAIN_POLICY.replace("(Policy)", "(dict)").replace(
            "def key", "def __init__(self, *_): ...\n        def key"
        )
    )
    with pytest.raises(PluginLoadError, match="does not implement Policy: it lacks .*admit"):
        assemble(load(plugins=[stranger], scheduler={"name": "plain"}))


def test_host_processors_run_in_yaml_order(load: Load, local: Local) -> None:
    source = """
        class Host(HostProcessor):
            def __init__(self, options, facts):
                self.words = -(-facts.vocab_size // 32)
            def check(self, arguments): ...
            def start(self, request_id, arguments, prompt):
                return True
            def advance(self, request_id, token_ids): ...
            def mask(self, request_id, bits):
                assert len(bits) == self.words
                bits[:] = 0
                bits[0] = BITS
            def finish(self, request_id): ...

        @hookimpl
        def logits_processor():
            return Plugin("NAME", ":Host", api="logits_processor/2", capabilities={
                "devices": ("*",), "overlap": True, "needs_history": "host"})
    """
    first = local(source.replace("NAME", "a").replace("BITS", "0b1100"))
    second = local(source.replace("NAME", "b").replace("BITS", "0b1000"))
    loaded = load(plugins=[first, second], logits_processors=[{"name": "a"}, {"name": "b"}])
    with assemble(loaded) as engine:
        outputs = run(engine)
    assert {int(token) for output in outputs for token in output.token_ids} == {3}


def test_a_cost_model_is_built_by_the_simulated_executor(load: Load) -> None:
    slow = {"name": "sim", "cost_model": {"name": "constant", "seconds_per_step": 2.0}}
    with assemble(load(executor=slow)) as engine:
        outputs = run(engine)
    assert outputs[0].finished == pytest.approx(8.0)


def test_a_batch_that_no_memory_holds_is_a_config_error_with_ways_out() -> None:
    words = ["engine.max_num_seqs=1000000000000", "engine.max_num_batched_tokens=1000000000000"]
    with pytest.raises(ConfigError, match=r"sampler 'standard' .* more memory .*max_num_seqs"):
        assemble(load_config("qwen3-demo", words))


def test_a_run_tells_of_a_name_in_disable_that_nothing_bears(load: Load) -> None:
    with pytest.warns(PluginSettingWarning, match=r"plugins\.disable: 'scheduler\.fcsf'.*fcfs"):
        engine = assemble(load("plugins.disable=[scheduler.fcsf, scheduler.random]"))
    engine.close()
