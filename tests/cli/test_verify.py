from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from nanofw.bench.verify import FLOAT32_BOUND, Text, compare_one
from nanofw.cli.main import main

QUICK = ["--max-tokens", "4", "engine.max_num_batched_tokens=16", "kv_allocator.num_blocks=64"]


def test_a_right_model_is_within_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "embedded:demo", *QUICK, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["dtype"], found["attention_backend"]) == ("float32", "sdpa")
    assert found["is_within"]
    assert [item["num_prompt_tokens"] for item in found["prompts"]] == [1, 7, 24, 61]
    for item in found["prompts"]:
        assert item["num_positions"] == item["num_greedy"] == item["num_equal"] == 4
        assert 0 < item["error"] < FLOAT32_BOUND == item["bound"]


def test_in_low_precision_the_bound_is_the_references_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [*QUICK, "model.dtype=bfloat16", "--prompt", "In the beginning"]
    assert main(["verify", "embedded:demo", *arguments]) == 0
    text = capsys.readouterr().out
    assert "bfloat16 on cpu" in text
    assert "within bounds" in text


def test_a_wrong_model_is_outside(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plugin = tmp_path / "wrong.py"
    plugin.write_text(
        "from nanofw.models.qwen3 import Qwen3ForCausalLM\n"
        "from nanofw.plugins import Plugin, hookimpl\n"
        "class Wrong(Qwen3ForCausalLM):\n"
        "    def logits(self, hidden):\n"
        "        return super().logits(hidden * 1.001)\n"
        "@hookimpl\n"
        "def model():\n"
        "    claims = {'devices': ('*',), 'dtypes': ('*',), 'rope_types': ('*',)}\n"
        "    return Plugin('Qwen3ForCausalLM', ':Wrong', api='model/2', capabilities=claims)\n",
        encoding="utf-8",
    )
    wrong = [f"plugins.load=[{plugin}]", "plugins.override={model.Qwen3ForCausalLM: wrong}"]
    assert main(["verify", "embedded:demo", *QUICK, *wrong]) == 1
    text = capsys.readouterr().out
    assert "OUTSIDE" in text
    assert "outside bounds" in text


def test_without_transformers_the_install_line_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["verify", "embedded:demo"]) == 3
    assert "pip install 'nanofw[verify]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["executor.name=sim"], "a simulated run computes no logits"),
        (["engine.max_model_len=4", "--max-tokens", "4"], "4 tokens do not fit in 4"),
        (["--reference-device", "nope"], "--reference-device: transformers cannot run on 'nope'"),
        (["--reference-device", "cuda:77"], "transformers cannot run on 'cuda:77' here"),
        (["--reference-device", "meta"], "transformers cannot run on 'meta' here"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["verify", "embedded:demo", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-tokens", "0"], "--max-tokens: should be at least 1, not 0"),
        (["--seed", "-4"], "--seed: should be at least 0, not -4"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["verify", "embedded:demo", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def text_of(logits: np.ndarray, outputs: list[int]) -> Text:
    return Text([0, *outputs], 1, logits.astype(np.float32))


def test_ties_are_told_from_differences() -> None:
    """The second token is drawn against the reference, the first where it cannot be told."""
    theirs = np.zeros((3, 50), np.float32)
    theirs[:, 10] = 5.0
    theirs[0, 20] = 5.0 - 1e-5
    ours = theirs.copy()
    found = compare_one(text_of(ours, [20, 20, 10]), theirs, FLOAT32_BOUND)
    assert (found.num_greedy, found.num_equal, found.num_ties) == (3, 1, 1)
    assert found.differences == [(1, 20, 10)]
    assert found.error == 0
    assert not found.is_within


def test_nan_is_not_within_bounds() -> None:
    theirs = np.random.default_rng(0).normal(size=(1, 50)).astype(np.float32)
    ours = theirs.copy()
    ours[0, 3] = np.nan
    best = int(theirs.argmax())
    assert not compare_one(text_of(ours, [best]), theirs, FLOAT32_BOUND).is_within
    assert compare_one(text_of(theirs, [best]), theirs, FLOAT32_BOUND).is_within
