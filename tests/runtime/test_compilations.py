"""A run waits for no compiler: what it launches was compiled ahead, and nothing else was.

Without a GPU: Triton's own launches go their way up to the compiler, which is a stand-in, and so
is what it compiles.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.absent_gpu import AbsentGpu

pytest.importorskip("triton")
MAX_VARIANTS = 2  # of one kernel: with and without a residual stream or a cut distribution
MAX_VARIANTS_OF = {"_one_row_kernel": 3}  # by the sizes of weights, and biases
MOST = 20  # of all kernels, on one GPU without windows; two of them for few rows alone

Case = tuple[str, dict[str, Any], dict[str, Any]]
SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 128, "vocab_size": 2048}
CASES: dict[str, Case] = {
    "bfloat16, heads of 64": ("Qwen3", {"head_dim": 64}, {}),
    "float16, heads of 128": ("Llama", {"head_dim": 128}, {"dtype": "float16"}),
    "float32, heads of 80": ("Qwen3", {"head_dim": 80}, {"dtype": "float32"}),
    "groups of 4, heads of 256": ("Qwen3", {"head_dim": 256, "num_key_value_heads": 1}, {}),
    "odd vocabulary, biases, 37 rows": (
        "Qwen2", {"head_dim": 32, "vocab_size": 2051}, {"max_num_seqs": 37},
    ),
    "windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 90, "max_window_layers": 1},
        {},
    ),
    "pages of 16": ("Qwen3", {"head_dim": 64}, {"block_size": 16, "num_blocks": 1600}),
    "no prefill captured": ("Qwen3", {"head_dim": 64}, {"prefill_graphs": False}),
    "nothing captured": ("Qwen3", {"head_dim": 64}, {"cuda_graphs": False}),
    "flash_attn": ("Qwen3", {"head_dim": 64}, {"backend": "flash_attn"}),
    "two ranks": ("Qwen3", {"head_dim": 64}, {"ranks": 2}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])
def test_a_run_launches_what_was_compiled_ahead(half: int, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.runtime.test_compilations"]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, str(half), str(tmp_path)], env=environment, capture_output=True, text=True,
        timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("family", ["Qwen3", pytest.param("Qwen2", marks=pytest.mark.slow)])
def test_a_dry_run_does_not_import_half_of_pytorch(family: str, tmp_path: Path) -> None:
    """Imports hold up all other threads: here, two seconds."""
    from tests.runtime.checkpoints import write_model

    sizes: dict[str, Any] = SMALL
    write_model(tmp_path, family, **sizes, head_dim=64)
    command = [sys.executable, "-W", "ignore", "-m", "tests.runtime.test_compilations", "imports"]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]


class Variants:
    """Stands for Triton's compiler; notes which variants it is asked for, and when.

    Attributes:
        phase: what goes on.
        compiled: (kernel, variant) -> the phase.
        launched: how often.
    """

    def __init__(self) -> None:
        self.phase = "ahead"
        self.compiled: dict[tuple[str, str], str] = {}
        self.launched: Counter[tuple[str, str]] = Counter()

    def compile(self, source: Any, target: Any, options: Any, **_: Any) -> Compiled:
        name = (source.fn.fn.__name__, f"{source.signature} {source.constants} {source.attrs}")
        name = (name[0], f"{name[1]} {options}")
        assert name not in self.compiled, name
        self.compiled[name] = self.phase
        return Compiled(name, source.fn.arg_names, self.launched)


class Compiled:
    """What launches do with a `CompiledKernel`."""

    function = packed_metadata = None

    def __init__(
        self, name: tuple[str, str], arguments: list[str], launched: Counter[tuple[str, str]]
    ) -> None:
        self._name, self._arguments, self._launched = name, arguments, launched

    def launch_metadata(self, *_: Any) -> None: ...

    def run(self, *args: Any) -> None:
        self._launched[self._name] += 1
        bound = dict(zip(self._arguments, args[-len(self._arguments) :], strict=True))
        for key in {"_pick_kernel": ["token_ids_ptr", "failed_ptr"]}.get(self._name[0], []):
            bound[key].zero_()  # what is read again afterwards


def main(half: int, folder: Path) -> None:
    """Start an executor, let it serve many mixes of rows, and look at what came late."""
    import torch
    import triton.compiler
    from triton.runtime.driver import driver

    driver.set_active(AbsentGpu())  # pyright: ignore[reportArgumentType]
    for number, (name, case) in enumerate(CASES.items()):
        if number % 2 == half:
            variants = Variants()
            triton.compiler.compile = variants.compile
            print(name, file=sys.stderr)
            with torch.inference_mode():
                check(variants, folder / str(number), *case)
            forget()


def imports(folder: Path) -> None:
    """A dry run of one rank and of two, with nothing loaded before."""
    import torch
    import triton.compiler
    from triton.runtime.driver import driver

    from nanofw.contracts.communicator import SingleRank
    from nanofw.kernels.aot.communicator import on_meta
    from nanofw.kernels.aot.compiler import AheadCompiler
    from nanofw.kernels.aot.start import dry_config
    from nanofw.runtime.profiling import carry_out_steps
    from tests.runtime.captured import COMPONENTS
    from tests.runtime.driver import executor_config

    driver.set_active(AbsentGpu())  # pyright: ignore[reportArgumentType]
    triton.compiler.compile = Variants().compile
    for ranks in (1, 2):
        config = executor_config(
            folder, components=COMPONENTS, ranks=ranks, dtype="bfloat16", cuda_graphs=True
        )
        communicator = two_ranks(config.spec.hidden_size) if ranks > 1 else SingleRank()
        with torch.inference_mode():
            work = partial(
                carry_out_steps, dry_config(config), on_meta(communicator), prefill_tokens=128
            )
            compiler = AheadCompiler(work, None, 1)
            compiler.close()
        if compiler.problem is not None:
            raise compiler.problem
        for module in ("sympy", "torch._dynamo", "torch._inductor", "transformers"):
            assert module not in sys.modules, (module, ranks)


def forget() -> None:
    """The next case meets Triton as a new process does."""
    from triton.runtime.jit import JITFunction

    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("nanofw.kernels.triton."):
            for kernel in vars(module).values():
                if isinstance(kernel, JITFunction):
                    kernel.device_caches.clear()


def check(
    variants: Variants, folder: Path, family: str, sizes: dict[str, Any], changes: dict[str, Any]
) -> None:
    from nanofw.attention_backends import gpu_manifest
    from nanofw.contracts.communicator import SingleRank
    from nanofw.kernels.aot.communicator import on_meta
    from nanofw.kernels.aot.compiler import AheadCompiler
    from nanofw.kernels.aot.start import dry_config
    from nanofw.plugins import Component
    from nanofw.runtime import executor as executors
    from tests.runtime import captured, driver
    from tests.runtime.checkpoints import write_model

    write_model(folder, family, **{**SMALL, **sizes})
    changes = {"dtype": "bfloat16", "cuda_graphs": True, "prefill_graphs": True, **changes}
    ranks, backend = changes.pop("ranks", 1), changes.pop("backend", None)
    components = dict(captured.COMPONENTS)
    if backend is not None:
        plugins = {plugin.name: plugin for plugin in gpu_manifest.attention_backend()}
        components["attention_backend"] = Component(plugin=plugins[backend])
    config = driver.executor_config(
        folder, components=components, ranks=ranks,
        **{"block_size": 64, "num_blocks": 400, "max_num_seqs": 64, "max_model_len": 512,
           "max_num_batched_tokens": 2048, **changes},
    )  # fmt: skip
    prefill_tokens = 512 if config.prefill_graphs and config.cuda_graphs else 0
    communicator = two_ranks(config.spec.hidden_size) if ranks > 1 else SingleRank()

    ahead, compilers = config, list[AheadCompiler]()

    def start_compiling(config: Any, communicator: Any, steps: Any, threads: Any) -> AheadCompiler:
        work = partial(steps, dry_config(ahead), on_meta(communicator))
        compilers.append(AheadCompiler(work, None, 2))
        return compilers[0]

    use_triton_on_a_cpu()
    executors.start_compiling = start_compiling
    if backend is not None:
        stand_in = dry_config(config).components.attention_backend  # without what is not ours
        chosen = replace(config.components, attention_backend=stand_in)
        config = replace(config, components=chosen)
    executor = executors.TorchExecutor(None, config, communicator)
    if compilers[0].problem is not None:
        raise compilers[0].problem
    assert compilers[0].num_variants == len(variants.compiled)
    assert "waiting for compilers" in executor.facts().start_seconds
    runner = executor._runner
    assert runner is not None
    variants.phase = "profile"
    start(runner, prefill_tokens)
    needless = set(variants.compiled) - set(variants.launched)
    if config.cuda_graphs:
        assert not needless, needless
    variants.phase = "run"
    serve(driver.Driver(executor), graphs=prefill_tokens > 0)
    late = {key: phase for key, phase in variants.compiled.items() if phase != "ahead"}
    assert not late, late
    counts = Counter(name for name, _ in variants.compiled)
    windows = len(set(config.spec.sliding_windows)) or 1
    assert len(counts) > (5 if backend else 8), counts
    for kernel, count in counts.items():
        assert count <= max(MAX_VARIANTS_OF.get(kernel, MAX_VARIANTS), windows), counts
    assert len(variants.compiled) <= MOST + 4 * (windows - 1) + (ranks - 1), counts


def use_triton_on_a_cpu() -> None:
    from nanofw.models.layers import linear

    linear.is_chosen = lambda weight: False
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "")  # parts of extension modules have none
        if name.startswith("nanofw.") and hasattr(module, "uses_triton"):
            module.uses_triton = lambda tensor: True  # pyright: ignore[reportAttributeAccessIssue]


def two_ranks(width: int) -> Any:
    """The first of two ranks, whose sums are kernels; the other is not there."""
    import torch

    from nanofw.kernels.all_reduce import Inboxes, all_reduce_add_rms_norm
    from nanofw.kernels.aot.communicator import MetaCommunicator

    class Alone(MetaCommunicator):
        inboxes = Inboxes(
            0, 2, 64, width, torch.bfloat16,
            torch.zeros(2, dtype=torch.int64), torch.zeros(64, dtype=torch.int32),
        )  # fmt: skip

        def all_reduce_add_rms_norm(self, *args: Any) -> Any:
            return all_reduce_add_rms_norm(self, self.inboxes, *args)

    return Alone(0, 2)


def start(runner: Any, prefill_tokens: int) -> None:
    """What an executor does on a GPU."""
    from nanofw.runtime import profiling
    from nanofw.runtime.graphs.capture import EagerCapturer

    plan = profiling.largest_plan(runner._config)
    pool = runner.pool
    runner.allocate(1 + max(int(new.block_ids.max()) for new in plan.new))
    runner.apply(plan)
    runner.step_sampler.sample(*runner.forward(plan), None, plan.host_rows)
    runner.apply(profiling.empty_plan(plan.rows))
    runner.pool = pool
    if runner._config.cuda_graphs:
        runner.capture(EagerCapturer(), prefill_tokens)


def serve(driver: Any, *, graphs: bool) -> None:
    """Prompts together and one by one, decoding rows beside them, replayed and eager."""
    from nanofw.contracts.requests import SamplingParams
    from tests.runtime.captured import prompt

    generator = np.random.default_rng(0)
    kinds = [
        SamplingParams(temperature=0.6),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.6, top_p=0.9),
    ]
    for turn in range(8):
        count = int(generator.integers(2, 36))
        some = kinds[: 2 + turn % 2]
        rows = [
            driver.add(i, prompt(int(generator.integers(3, 200)), i), sampling=some[i % len(some)])
            for i in range(count)
        ]
        half = min(count // 2, 10)  # 2,000 tokens at most
        driver.step([(row, row.known) for row in rows[:half]])
        for row in rows[half:]:
            driver.step([(row, row.known), *((other, 1) for other in rows[:half])])
        driver.decode(*rows, steps=2)
        for row in rows:
            driver.remove(row)
    if graphs:
        reasons = driver.executor.facts().graph_steps
        assert reasons["replayed with prefill"] > 0
        assert len(reasons) > 2, reasons


if __name__ == "__main__":
    if sys.argv[1] == "imports":
        imports(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]), Path(sys.argv[2]))
