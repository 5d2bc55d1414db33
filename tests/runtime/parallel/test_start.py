"""Engines that start together, and what a start refuses."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import ValidationError

from nanofw import LLM, SamplingParams
from nanofw.errors import ConfigError, ExecutorError
from nanofw.runtime.options import TorchOptions
from nanofw.runtime.parallel.executor import ParallelExecutor
from tests.runtime.parallel.ranks import engine_over, executor_of, run, tokens_of
from tests.runtime.parallel.test_parity import DEMO, greedy


def start_together(count: int) -> list[ParallelExecutor]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda _: executor_of(DEMO, 2), range(count)))


def test_B074_two_engines_that_start_at_once_do_not_collide() -> None:
    executors = start_together(2)
    try:
        engines = [engine_over(executor, DEMO) for executor in executors]
        with ThreadPoolExecutor(2) as pool:
            tokens = list(pool.map(lambda e: tokens_of(run(e, [[1, 2, 3]], greedy(1, 8))), engines))
        assert tokens[0] == tokens[1]
        assert all(ready.weight_bytes > 0 for e in executors for ready in e.ranks)
        assert executors[0].facts().graph_steps == {}  # a CPU has none
    finally:
        for executor in executors:
            executor.close()


@pytest.mark.slow
def test_B074_twenty_times() -> None:
    for _ in range(20):
        for executor in start_together(2):
            executor.close()


def test_a_start_that_takes_too_long_names_its_own_option() -> None:
    with pytest.raises(ExecutorError, match=r"within 0\.01 s \(executor\.start_timeout_s\)"):
        executor_of(DEMO, 2, options=TorchOptions(start_timeout_s=0.01))


@pytest.mark.parametrize("option", ["step_timeout_s", "start_timeout_s"])
@pytest.mark.parametrize("value", [1e308, 1e20, float("inf"), float("nan"), 0.0])
def test_a_timeout_is_one_that_can_be_waited_for(option: str, value: float) -> None:
    with pytest.raises(ValidationError, match=option):
        TorchOptions.model_validate({option: value})


@pytest.mark.slow
def test_the_longest_timeouts_work() -> None:
    options = TorchOptions(step_timeout_s=1e6, start_timeout_s=1e6)
    executor = executor_of(DEMO, 2, options=options)
    try:
        assert run(engine_over(executor, DEMO), [[1, 2, 3]], greedy(1, 2))
    finally:
        executor.close()


def test_plugins_reach_every_rank_by_name_and_options(tmp_path: Path) -> None:
    """A sampler from a local file, with an option, through the Python API."""
    plugin = tmp_path / "constant.py"
    plugin.write_text(CONSTANT, encoding="utf-8")
    with LLM(
        str(DEMO),
        device="cpu",
        tensor_parallel_size=2,
        max_num_seqs=4,
        sampler={"name": "constant", "token": 77},
        plugins={"load": [str(plugin)]},
    ) as llm:
        (result,) = llm.generate([{"prompt_token_ids": [1, 2]}], SamplingParams(max_tokens=3))
    assert result.outputs[0].token_ids == (77, 77, 77)


def test_masks_of_the_host_reach_every_rank() -> None:
    """Two requests with masks, one without, beside a processor on the device."""
    prompts = ["The son of", "Is it so?", "And it came to pass"]
    arguments = [{"structured": {"choice": ["yea", "nay"]}}, {"structured": {"regex": "[0-9]{4}"}}]
    texts = []
    for size in (1, 2):
        with LLM(
            str(DEMO),
            device="cpu",
            tensor_parallel_size=size,
            max_num_seqs=4,
            overlap=True,
            logits_processors=[
                {"name": "structured"},
                {"name": "suppress_tokens", "token_ids": [7]},
            ],
        ) as llm:
            asked = [
                {"prompt": prompt, "arguments": some}
                for prompt, some in zip(prompts, [*arguments, {}], strict=True)
            ]
            results = llm.generate(asked, SamplingParams(max_tokens=12, seed=5))
        texts.append([result.outputs[0].text for result in results])
    assert texts[0] == texts[1]
    assert texts[1][0] in ("yea", "nay")
    assert texts[1][1].isdigit()


CONSTANT = """
import torch
from nanofw.plugins import Options, Plugin, SampledTokens, Sampler, hookimpl

class Settings(Options):
    token: int

class Constant(Sampler):
    def sample(self, logits, rows, positions, *, scaled=False, sharded=False):
        tokens = torch.full((len(rows),), self.options.token, dtype=torch.int32)
        return SampledTokens(token_ids=tokens, failed=torch.zeros(len(rows), dtype=torch.bool))

@hookimpl
def sampler():
    return Plugin("constant", ":Constant", api="sampler/2", options=Settings,
                  capabilities={"devices": ("cpu",), "tensor_parallel": True})
"""


def test_sums_that_only_gpus_make_are_refused_on_a_cpu() -> None:
    with pytest.raises(ConfigError, match=r"executor\.all_reduce: one_shot needs NVIDIA GPUs"):
        executor_of(DEMO, 2, options=TorchOptions(all_reduce="one_shot"))


def listening(pid: int) -> list[str]:
    """Addresses, as the kernel writes them, at which a process listens."""
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    found: list[str] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in links:
                found.append(local.partition(":")[0])
    return found


def test_F044_ranks_leave_no_meeting_place_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left listens on the loopback interface: a socket of gloo's for each rank."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    executor = executor_of(DEMO, 2)
    try:
        places = [listening(pid) for pid in executor.facts().process_ids]
        assert places == [["0100007F"], ["0100007F"]]
        assert not list(tmp_path.glob("nanofw-ranks-*"))
    finally:
        executor.close()
