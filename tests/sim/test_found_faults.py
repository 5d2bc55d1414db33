"""Faults of the simulation that people found from outside, by their ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanofw.cli.main import main

PLUGIN = """
from nanofw.plugins import Plugin, hookimpl
@hookimpl
def cost_model():
    return Plugin("broken", ":Broken", api="cost_model/1")
class Broken:
    def __init__(self, options, config):
        pass
    def seconds(self, plan):
        return {seconds}
    def kv_bytes(self):
        return {kv_bytes}
"""


def run(folder: Path, *, seconds: str = "0.01", kv_bytes: str = "None", host: str = "") -> int:
    text = PLUGIN.format(seconds=seconds, kv_bytes=kv_bytes)
    if host:
        text += f"    def host_seconds(self, plan):\n        return {host}\n"
    (folder / "broken.py").write_text(text, encoding="utf-8")
    return main(
        [
            "run", "sim", f"plugins.load=[{folder / 'broken.py'}]",
            "executor.cost_model.name=broken", "sampling.max_tokens=3",
            "input.workload={name: poisson, num_requests: 3}",
        ]
    )  # fmt: skip


BAD_TIMES = ["-1", "-1e-12", "float('nan')", "float('inf')", "'1'", "None", "1e300", "1/0", "True"]


@pytest.mark.parametrize("value", BAD_TIMES)
@pytest.mark.parametrize("method", ["seconds", "host"])
def test_F019_a_time_that_cannot_be_ends_the_run_by_the_cost_models_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str, method: str
) -> None:
    assert run(tmp_path, **{method: value}) == 3
    said = capsys.readouterr().err
    assert "cost_model 'broken'" in said
    if value == "1/0":
        assert "raised ZeroDivisionError" in said
    else:
        assert f"seconds() returned {eval(value)!r}; it must be a number of seconds" in said


@pytest.mark.parametrize("value", ["-5", "float('nan')", "float('inf')", "'much'"])
def test_F019_memory_that_cannot_be_is_told_with_the_cost_models_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    assert run(tmp_path, kv_bytes=value) == 3
    said = capsys.readouterr().err
    assert "cost_model 'broken'" in said
    assert f"kv_bytes() returned {eval(value)!r}" in said


def test_F019_times_of_numpy_and_whole_numbers_are_times(tmp_path: Path) -> None:
    assert run(tmp_path, seconds="__import__('numpy').float64(0.01)", host="0") == 0
