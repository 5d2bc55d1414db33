"""Replicas in an experiment: in virtual time, as one engine where one of them has everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nanofw.assembly import select
from nanofw.compare.experiment import ExperimentOptions
from nanofw.compare.run import RunResult, run_once
from nanofw.config.load import load_config
from nanofw.errors import ConfigError

OPTIONS = ExperimentOptions(arms={"a": {}}, metrics=("queue.mean", "service.gap", "itl.p99"))
FIRST = """
from nanofw.plugins import Plugin, Router, hookimpl

class First(Router):
    def choose(self, request, replicas):
        return 0

@hookimpl
def router():
    return Plugin("first", ":First", api="router/1")
"""


def values(**engine: Any) -> dict[str, Any]:
    return {
        "model": {"path": "shape:qwen3-0.6b"},
        "engine": {"max_num_seqs": 4, "max_model_len": 512, **engine},
        "kv_allocator": {"num_blocks": 80},
        "executor": {"name": "sim", "cost_model": {"name": "roofline", "device": "h100-sxm"}},
        "input": {
            "workload": {
                "name": "conversations", "num_conversations": 30, "rate": 30, "think_s": 0.1,
                "prompt": {"distribution": "uniform", "low": 20, "high": 150},
                "output": {"distribution": "uniform", "low": 4, "high": 40},
                "clients": {"ann": 1, "bob": 1},
            }
        },
    }  # fmt: skip


def run(config: dict[str, Any]) -> RunResult:
    return run_once(select(load_config(values=config)), OPTIONS, seed=5, time_scale=1.0)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_replica_that_has_all_requests_takes_the_time_of_one_engine(
    overlap: bool, tmp_path: Path
) -> None:
    plugin = tmp_path / "first.py"
    plugin.write_text(FIRST, encoding="utf-8")
    one = run(values(overlap=overlap))
    chosen = {"router": {"name": "first"}, "plugins": {"load": [str(plugin)]}}
    two = run(values(overlap=overlap, replicas=2) | chosen)
    assert two.values == pytest.approx(one.values, nan_ok=True, rel=1e-9)
    assert two.seconds == pytest.approx(one.seconds, rel=1e-12)
    assert (two.num_steps, two.checksum) == (one.num_steps, one.checksum)
    assert not two.lagging


def test_more_replicas_serve_the_same_tokens_sooner() -> None:
    one, three = run(values()), run(values(replicas=3))
    assert three.checksum == one.checksum
    assert three.values["queue.mean"] < one.values["queue.mean"] / 2
    assert three.values["service.gap"] >= 0
    assert not three.lagging


def test_replicas_are_compared_in_virtual_time_alone() -> None:
    real = values(replicas=2, device="cpu") | {
        "model": {"path": "embedded:demo"}, "executor": {"name": "torch"},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"engine.replicas: must be 1 in real time"):
        run(real)
