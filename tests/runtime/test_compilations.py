"""A run waits for no compiler: what it launches was compiled when it started.

Without a GPU: kernels are not launched, but their arguments are looked at as a launch does, for
which compiled variant they need.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
MAX_VARIANTS = 2  # of one kernel: with and without a residual stream or a cut distribution


@pytest.mark.parametrize("sampling", ["plain", "cut"])
def test_no_kernel_is_compiled_after_the_start(sampling: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.runtime.test_compilations"]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, sampling, str(tmp_path)], env=environment, capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


class Variants:
    """Stands for the launch of every kernel; notes which variants are asked for, and when."""

    def __init__(self) -> None:
        from triton.backends.compiler import GPUTarget
        from triton.compiler import make_backend

        self.phase = "start"
        self.found: dict[tuple[str, str], str] = {}
        self._backend = make_backend(GPUTarget("cuda", 90, 32))
        self._binders: dict[Any, Any] = {}

    def run(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        from triton.runtime.jit import create_function_from_signature

        if kernel not in self._binders:
            self._binders[kernel] = create_function_from_signature(
                kernel.signature, kernel.params, self._backend
            )
        bound, specialization, rest = self._binders[kernel](*args, **options, debug=False)
        name = kernel.fn.__name__
        self.found.setdefault((name, f"{specialization} {rest}"), self.phase)
        for key in {"_pick_kernel": ["token_ids_ptr", "failed_ptr"]}.get(name, []):
            bound[key].zero_()  # what is read again afterwards


def main(sampling: str, folder: Path) -> None:
    """Start an executor, let it serve many mixes of rows, and look at what came late."""
    import torch
    from triton.runtime.jit import JITFunction

    from nanofw.runtime import profiling
    from tests.runtime.checkpoints import write_qwen3
    from tests.runtime.driver import Driver, make_executor
    from tests.runtime.recorded import COMPONENTS, EagerRecorder

    variants = Variants()
    JITFunction.run = lambda kernel, *args, **options: variants.run(kernel, *args, **options)
    sizes = {"head_dim": 64, "num_attention_heads": 4, "hidden_size": 128, "vocab_size": 2048}
    write_qwen3(folder, num_hidden_layers=1, **sizes)
    executor = make_executor(
        folder, components=COMPONENTS, device="cpu", max_num_seqs=64, num_blocks=400,
        block_size=64, max_model_len=512, max_num_batched_tokens=2048,
    )  # fmt: skip
    for module in list(sys.modules.values()):
        if module.__name__.startswith("nanofw.") and hasattr(module, "uses_triton"):
            module.uses_triton = lambda tensor: True  # pyright: ignore[reportAttributeAccessIssue]
    with torch.inference_mode():
        runner = executor._runner
        assert runner is not None
        plan = profiling.largest_plan(runner._config)
        runner.apply(plan)
        runner.sample(*runner.forward(plan), None, plan.host_rows)
        runner.apply(profiling._empty_plan(plan.rows))
        runner.capture(EagerRecorder(), 512)
    variants.phase = "run"
    serve(Driver(executor), sampling)
    counts = Counter(name for name, _ in variants.found)
    assert len(counts) > 8, counts
    assert max(counts.values()) <= MAX_VARIANTS, counts
    late = [key for key, phase in variants.found.items() if phase == "run"]
    assert not late, late


def serve(driver: Any, sampling: str) -> None:
    """Prompts together and one by one, decoding rows beside them, replayed and eager."""
    from nanofw.core.types import SamplingParams
    from tests.runtime.recorded import prompt

    generator = np.random.default_rng(0)
    kinds = {
        "plain": [SamplingParams(temperature=0.6), SamplingParams(temperature=0)],
        "cut": [SamplingParams(temperature=0.6, top_p=0.9)],
    }[sampling]
    for _ in range(12):
        count = int(generator.integers(2, 40))
        rows = [
            driver.add(
                i, prompt(int(generator.integers(3, 200)), i), sampling=kinds[i % len(kinds)]
            )
            for i in range(count)
        ]
        half = min(count // 2, 10)  # 2,000 tokens at most
        driver.step([(row, row.known) for row in rows[:half]])
        for row in rows[half:]:
            driver.step([(row, row.known), *((other, 1) for other in rows[:half])])
        driver.decode(*rows, steps=2)
        for row in rows:
            driver.remove(row)
    reasons = driver.executor.graph_steps
    assert reasons["replayed with prefill"] > 0
    assert len(reasons) > 2, reasons


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
