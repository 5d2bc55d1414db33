"""A start on an NVIDIA GPU with an empty cache of kernels: who compiles, and when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


@pytest.mark.parametrize("threads", [None, 0])
def test_kernels_are_compiled_in_threads_and_before_the_run(
    threads: int | None, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.runtime.test_gpu_start", str(tmp_path)]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [*command, json.dumps(threads)], env=environment, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["compiled"]["run"] == {}, found
    assert not found["threads left"], found
    by_whom = found["compiled"]["start"]
    assert sum(by_whom.values()) > 8, found
    if threads == 0:
        assert by_whom.keys() == {"MainThread"}, found
        assert "memory profile" in found["seconds"]
    else:
        assert "MainThread" not in by_whom, found
        assert "waiting for compilers" in found["seconds"]
    assert found["tokens"] == 40


def main(folder: Path, threads: int | None) -> None:
    """Start, serve, and say which thread compiled how many variants in either phase."""
    from triton import knobs

    from nanofw.contracts.requests import SamplingParams
    from nanofw.models import manifest as models
    from nanofw.plugins import Component
    from nanofw.runtime.executor import TorchExecutor
    from nanofw.runtime.options import TorchOptions
    from nanofw.samplers import manifest as samplers
    from tests.runtime.captured import prompt
    from tests.runtime.checkpoints import write_qwen3
    from tests.runtime.driver import Driver, executor_config

    phase = "start"
    compiled: dict[str, Counter[str]] = {"start": Counter(), "run": Counter()}

    def heard(*, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            compiled[phase][threading.current_thread().name.partition("_")[0]] += 1

    knobs.compilation.listener = heard
    write_qwen3(folder, head_dim=64, num_attention_heads=4, hidden_size=128, vocab_size=2048)
    before = threading.active_count()
    config = executor_config(
        folder, dtype="bfloat16", device="cuda", cuda_graphs=True, prefill_graphs=True,
        block_size=64, num_blocks=None, max_num_seqs=16, max_num_batched_tokens=1024,
        memory_utilization=0.2,
        components={
            "model": next(
                Component(plugin=one) for one in models.model() if one.name == "Qwen3ForCausalLM"
            ),
            "attention_backend": _triton_backend(),
            "sampler": Component(plugin=samplers.sampler()),
        },
    )  # fmt: skip
    executor = TorchExecutor(TorchOptions(compile_threads=threads), config)
    left = threading.active_count() - before
    phase = "run"
    driver = Driver(executor)
    rows = [
        driver.add(row, prompt(20 + 90 * row, row), sampling=SamplingParams(top_p=0.9))
        for row in range(4)
    ]
    driver.step([(row, row.known) for row in rows])
    driver.decode(*rows, steps=9)
    tokens = sum(len(row.outputs) for row in rows)
    executor.close()
    print(
        json.dumps(
            {"compiled": compiled, "threads left": left, "tokens": tokens,
             "seconds": executor.facts().start_seconds}
        )
    )  # fmt: skip


def _triton_backend() -> Any:
    from nanofw.attention_backends import gpu_manifest
    from nanofw.plugins import Component

    plugins = {plugin.name: plugin for plugin in gpu_manifest.attention_backend()}
    return Component(plugin=plugins["triton"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
