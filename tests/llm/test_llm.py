"""`LLM`, on the simulated executor."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanofw import LLM, SamplingParams
from nanofw.config.load import load_config
from nanofw.contracts.requests import FinishReason
from nanofw.errors import ConfigError, NanofwError
from nanofw.llm.interrupt import postponed
from tests.spawn import run_python

SHORT = SamplingParams(max_tokens=5)


@pytest.fixture
def llm() -> LLM:
    return LLM.from_config("sim")


def test_what_python_code_names_wrongly_is_not_put_down_to_a_command_line() -> None:
    with pytest.raises(ConfigError, match=r"^python: no such file: '.*nope\.yaml'$"):
        LLM.from_config("nope.yaml")
    with pytest.raises(ConfigError, match=r"^python: engine\.seedd: no such key"):
        LLM.from_config("sim", "engine.seedd=1")


def test_results_come_in_input_order_in_the_shape_that_people_know(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=number) for number in (9, 2, 5)]
    results = llm.generate(["one", "two", [5, 6, 7]], params)
    assert [result.prompt for result in results] == ["one", "two", None]
    assert [len(result.outputs[0].token_ids) for result in results] == [9, 2, 5]
    assert results[2].prompt_token_ids == (5, 6, 7)
    assert all(result.outputs[0].finish_reason == "length" for result in results)
    assert all(result.finished and result.outputs[0].text for result in results)
    assert len({result.request_id for result in results}) == 3


def test_B040_every_call_gives_its_own_results(llm: LLM) -> None:
    for _ in range(2):
        results = llm.generate(["a", "b", "c"], SHORT)
        assert [result.prompt for result in results] == ["a", "b", "c"]


def test_B030_a_refused_prompt_does_not_stop_the_others(llm: LLM) -> None:
    results = llm.generate(["good", "", [], {"prompt": "x", "foo": 1}, "good"], SHORT)
    reasons = [str(result.outputs[0].finish_reason) for result in results]
    assert reasons == ["length", "refused", "refused", "refused", "length"]
    assert "empty" in str(results[1].error)
    assert "unknown key 'foo'" in str(results[3].error)


def test_one_prompt_is_a_list_of_one(llm: LLM) -> None:
    assert len(llm.generate("one", SHORT)) == 1
    assert len(llm.generate([1, 2, 3], SHORT)) == 1
    assert llm.generate([], SHORT) == []


def test_arrays_are_prompts_as_lists_are(llm: LLM) -> None:
    ids: Any = np.array([5, 6, 7])
    tensor: Any = torch.tensor([5, 6])
    rows: Any = np.array([[5, 6], [7, 8]])
    several = [ids, [5, 6, 7], torch.tensor([5, 6, 7])]
    found = llm.generate([*several, {"prompt_token_ids": ids}], SamplingParams(seed=1))
    assert [result.error for result in found] == [None] * 4
    assert len({result.outputs[0].token_ids for result in found}) == 1
    assert len(llm.generate(ids, SHORT)) == len(llm.generate(tensor, SHORT)) == 1
    assert len(llm.generate(rows, SHORT)) == 2


def test_an_id_that_a_later_prompt_brings_is_given_to_no_other(llm: LLM) -> None:
    prompts = ["a", {"prompt": "b", "id": "request-0"}, {"prompt": "c", "id": "request-0"}]
    results = llm.generate(prompts, SHORT)
    assert [str(result.outputs[0].finish_reason) for result in results] == [
        "length", "length", "refused",
    ]  # fmt: skip
    assert results[1].request_id == "request-0" != results[0].request_id


def test_sampling_of_the_configuration_is_the_default() -> None:
    with LLM.from_config("sim", "sampling.max_tokens=3") as llm:
        assert len(llm.generate("one")[0].outputs[0].token_ids) == 3


def test_as_many_parameters_as_prompts(llm: LLM) -> None:
    with pytest.raises(ValueError, match="2 prompts, but 1 sampling parameters"):
        llm.generate(["a", "b"], [SHORT])


def test_a_stream_joined_is_the_text(llm: LLM) -> None:
    events = list(llm.stream("hello", SamplingParams(max_tokens=30)))
    result = events[-1].result
    assert result is not None
    assert "".join(event.text for event in events) == result.outputs[0].text
    token_ids = [token_id for event in events for token_id in event.token_ids]
    assert tuple(token_ids) == result.outputs[0].token_ids
    assert all(event.result is None for event in events[:-1])


def test_streams_and_calls_share_the_engine(llm: LLM) -> None:
    first, second = llm.stream("a", SamplingParams(max_tokens=20)), llm.stream("b", SHORT)
    next(first)
    next(second)
    assert llm.generate("c", SHORT)[0].ok
    assert list(first)[-1].result.ok
    assert list(second)[-1].result.ok


def test_closing_a_stream_aborts_its_request(llm: LLM) -> None:
    stream: Any = llm.stream("a", SamplingParams(max_tokens=1000))
    next(stream)
    stream.close()
    assert llm.generate("b", SHORT)[0].ok
    assert llm.engine.stats()["num_running"] == 0
    assert not llm.engine.has_unfinished


def test_a_refused_stream_says_so(llm: LLM) -> None:
    (event,) = llm.stream("")
    assert event.result is not None
    assert event.result.outputs[0].finish_reason is FinishReason.REFUSED


def test_chat_without_a_template_is_refused_with_a_reason(llm: LLM) -> None:
    (result,) = llm.chat([{"role": "user", "content": "Hi"}], SHORT)
    assert "no chat template" in str(result.error)


def test_keywords_are_keys_of_the_configuration() -> None:
    llm = LLM(
        "embedded:demo",
        executor="sim",
        max_num_seqs=7,
        dtype="float32",
        scheduler="shortest_job_first",
        kv_allocator={"name": "paged", "num_blocks": 150},
        sampling={"max_tokens": 4},
    )
    config = llm.loaded.config
    assert config.engine.max_num_seqs == 7
    assert config.model.dtype == "float32"
    assert config.scheduler.name == "shortest_job_first"
    assert llm.engine.stats()["blocks"]["num_blocks"] == 150
    assert llm.sampling.max_tokens == 4


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"max_num_seq": 3}, "did you mean 'max_num_seqs'"),
        ({"gpu_memory_utilization": 0.5}, "here it is memory_utilization"),
        ({"max_num_seqs": "many"}, "engine.max_num_seqs"),
    ],
)
def test_a_wrong_keyword_says_what_is_meant(keywords: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LLM("embedded:demo", executor="sim", **keywords)


def test_a_loaded_configuration_is_enough() -> None:
    loaded = load_config("sim")
    assert LLM(loaded).generate("a", SHORT)[0].ok
    with pytest.raises(ValueError, match="takes no keywords"):
        LLM(loaded, max_num_seqs=3)


def test_a_closed_llm_says_so(llm: LLM) -> None:
    llm.close()
    llm.close()
    with pytest.raises(ValueError, match="closed"):
        llm.generate("a")


def test_a_stream_of_a_closed_llm_says_so() -> None:
    with LLM.from_config("sim") as llm:
        stream = llm.stream("a")
        next(stream)
    with pytest.raises(ValueError, match="closed"):
        list(stream)


@pytest.mark.parametrize("prompts", [None, 5, b"abc", {1, 2}])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(ValueError, match="prompts are a text"):
        llm.generate(prompts)


@pytest.mark.parametrize("params", [{"max_tokens": 3}, ["max_tokens"], [None], "x"])
def test_what_is_no_sampling_parameters_is_refused(llm: LLM, params: Any) -> None:
    with pytest.raises(ValueError, match="sampling parameters are SamplingParams objects"):
        llm.generate("a", params)


@pytest.mark.parametrize("params", [{"max_tokens": 3}, "x"])
def test_a_stream_without_sampling_parameters_is_refused(llm: LLM, params: Any) -> None:
    (event,) = llm.stream("a", params)
    assert event.result is not None
    assert "are a SamplingParams object" in str(event.result.error)


FAILING = """
from nanofw.plugins import Plugin, Policy, hookimpl


class Fragile(Policy):
    num_finished = 0

    def key(self, request, view):
        return request.arrival

    def on_finish(self, request, reason, view):
        self.num_finished += 1

    def on_progress(self, *arrays):
        if self.num_finished:
            raise RuntimeError("asleep")


@hookimpl
def scheduler():
    return Plugin("fragile", ":Fragile", api="scheduler/2")
"""


def test_what_a_failed_call_had_finished_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "fragile.py"
    path.write_text(FAILING, encoding="utf-8")
    llm = LLM.from_config("sim", f"plugins.load=[{path}]", "scheduler.name=fragile")
    params = [SamplingParams(max_tokens=number) for number in (50, 3)]
    with pytest.raises(NanofwError, match="asleep"):
        llm.generate(["a", "b"], params)
    long, short = llm.partial_results
    assert long is None
    assert short is not None
    assert short.ok


def test_a_policy_that_fails_on_the_end_of_a_request_costs_no_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "fragile.py"
    at_the_end = FAILING.replace(
        "self.num_finished += 1",
        "self.num_finished -= 1\n        if self.num_finished == -1: raise RuntimeError('asleep')",
    )
    path.write_text(at_the_end.replace("if self.num_finished:", "if False:"), encoding="utf-8")
    caplog.set_level(logging.WARNING, logger="nanofw.plugin_calls")  # whatever other tests chose
    llm = LLM.from_config("sim", f"plugins.load=[{path}]", "scheduler.name=fragile")
    long, short = llm.generate(["a", "b"], [SamplingParams(max_tokens=n) for n in (50, 3)])
    assert long.ok
    assert short.ok
    assert "scheduler 'fragile' of" in caplog.text
    assert "on_finish() raised RuntimeError: asleep (fragile.py, line" in caplog.text
    assert llm.generate("a", SHORT)[0].ok


def generate_for_ever(llm: LLM, params: list[SamplingParams]) -> None:
    while True:
        llm.generate(["a", "b"], params)


def test_an_interrupt_leaves_the_engine_usable(llm: LLM) -> None:
    """The signal comes in the middle of a step, and is felt at its end."""
    params = [SamplingParams(max_tokens=number) for number in (3, 1900)]
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        generate_for_ever(llm, params)
    assert len(llm.partial_results) <= 2
    assert llm.generate("c", SHORT)[0].ok
    assert llm.engine.stats()["num_running"] == 0


def test_postponed_holds_one_signal_back() -> None:
    order: list[str] = []

    def interrupted_block() -> None:
        with postponed():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            order.append("the block went on")

    with pytest.raises(KeyboardInterrupt):
        interrupted_block()
    assert order == ["the block went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_importing_nanofw_imports_nothing_heavy() -> None:
    code = (
        "import sys, nanofw; nanofw.SamplingParams; assert 'LLM' in dir(nanofw); "
        "heavy = {'torch', 'transformers', 'triton', 'pydantic', 'tokenizers'}; "
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    run_python("-c", code)


def test_an_unknown_name_is_an_attribute_error() -> None:
    import nanofw

    with pytest.raises(AttributeError, match="Llm"):
        nanofw.Llm  # noqa: B018


def test_B084_engines_come_and_go_in_one_process() -> None:
    texts = []
    for _ in range(2):
        with LLM("embedded:demo", max_num_seqs=2, device="cpu") as llm:
            texts.append(llm.generate("And it came to pass", None)[0].outputs[0].text)
        llm.close()  # idempotent
    assert texts[0] == texts[1]
