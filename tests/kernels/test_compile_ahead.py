"""Kernels are compiled in threads before they are launched.

In another process: Triton must not be in its interpreter. The compiler is the real one
where it says so, else a stand-in that tests can hold up.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.absent_gpu import AbsentGpu

pytest.importorskip("triton")


CHECKS = (
    "compiles_for_a_gpu",
    "compiled_variants_are_launched",
    "equal_launches_are_looked_at_once",
    "errors_surface",
    "cancelled_variants_are_forgotten",
    "other_threads_launch",
    "dry_runs_may_fail",
)


def test_compile_ahead(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.kernels.test_compile_ahead", *CHECKS]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]


def succeeds(check: str) -> bool:
    """Run a check in a fork, since it replaces Triton's compiler."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    code = 1
    try:
        globals()[check]()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class Compiled:
    """What launches do with a `CompiledKernel`."""

    function = packed_metadata = None

    def __init__(self) -> None:
        self.num_launches = 0

    def launch_metadata(self, *_: Any) -> None: ...

    def run(self, *_: Any) -> None:
        self.num_launches += 1


class Compiler:
    """Stands for Triton's. Begins and ends when the test lets it."""

    def __init__(self, *, fails: bool = False) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.fails = fails
        self.made: list[Compiled] = []

    def __call__(self, source: Any, target: Any, options: Any, **_: Any) -> Compiled:
        self.begun.set()
        assert self.may_end.wait(20)
        if self.fails:
            raise ValueError("cannot compile")
        self.made.append(Compiled())
        return self.made[-1]


def launch(*sizes: int, device: str = "meta") -> None:
    import torch

    from nanofw.kernels.triton.activation import silu_and_mul

    for size in sizes:
        silu_and_mul(torch.empty(3, 2 * size, device=device, dtype=torch.bfloat16))


def no_thread_is_left() -> bool:
    return threading.active_count() == 1


def started(compiler: Any, *sizes: int, threads: int = 1) -> Any:
    """An `AheadCompiler` whose dry run launches such sizes."""
    import triton.compiler

    from nanofw.kernels.aot.compiler import AheadCompiler

    if compiler is not None:
        triton.compiler.compile = compiler
    return AheadCompiler(lambda: launch(*sizes), None, threads)


def compiles_for_a_gpu() -> None:
    """Triton's own compiler, two variants at once."""
    import triton.compiler.compiler

    loaded: list[str] = []
    kernels: Any = triton.compiler.compiler.CompiledKernel
    kernels.run = property(lambda kernel: loaded.append(kernel.name))
    started(None, 64, 80, 64, threads=2).close()
    assert loaded == ["_gated_kernel"] * 2
    from nanofw.kernels.triton.activation import _gated_kernel

    for kernel in _gated_kernel.device_caches[0][0].values():
        assert ".target sm_90" in kernel.asm["ptx"]
    assert no_thread_is_left()


def compiled_variants_are_launched() -> None:
    """What was compiled ahead is not compiled again; `close` waits for it."""
    compiler = Compiler()
    ahead = started(compiler, 64)
    assert compiler.begun.wait(20)
    assert not compiler.made
    threading.Timer(0.2, compiler.may_end.set).start()
    assert ahead.close() > 0.1
    assert ahead.problem is None
    (made,) = compiler.made
    assert made.num_launches == 0
    launch(64, 64, device="cpu")
    assert (len(compiler.made), made.num_launches) == (1, 2)
    assert no_thread_is_left()
    ahead.cancel()
    launch(64, device="cpu")
    assert (len(compiler.made), made.num_launches) == (1, 3)


def equal_launches_are_looked_at_once() -> None:
    """Equal to Triton: types, numbers and alignments; tensors themselves may be others."""
    compiler = Compiler()
    compiler.may_end.set()
    ahead = started(compiler, 64, 80, 64, 80, 64)
    ahead.close()
    assert ahead.num_variants == 2
    assert len(compiler.made) == 2


def errors_surface() -> None:
    """At each launch of what could not be compiled; a later one may succeed."""
    compiler = Compiler(fails=True)
    compiler.may_end.set()
    started(compiler, 64).close()
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot compile"):
            launch(64, device="cpu")
    compiler.fails = False
    launch(64, device="cpu")
    assert compiler.made[0].num_launches == 1


def cancelled_variants_are_forgotten() -> None:
    """A start that failed leaves nothing behind: the next launch compiles."""
    compiler = Compiler()
    ahead = started(compiler, *range(64, 96, 4))
    assert compiler.begun.wait(20)
    threading.Timer(0.2, compiler.may_end.set).start()
    ahead.cancel()
    assert no_thread_is_left()
    num_made = len(compiler.made)
    assert num_made < 8
    launch(*range(64, 96, 4), device="cpu")
    assert len(compiler.made) == num_made + 8
    assert all(made.num_launches == 1 for made in compiler.made[num_made:])


def other_threads_launch() -> None:
    """While a dry run goes on, as if there were none."""
    import triton.compiler

    from nanofw.kernels.aot.compiler import AheadCompiler

    triton.compiler.compile = compiler = Compiler()
    compiler.may_end.set()
    runs, may_end = threading.Event(), threading.Event()

    def work() -> None:
        runs.set()
        assert may_end.wait(20)
        launch(64)

    ahead = AheadCompiler(work, None, 1)
    assert runs.wait(20)
    launch(80, device="cpu")
    assert [made.num_launches for made in compiler.made] == [1]
    may_end.set()
    ahead.close()
    assert [made.num_launches for made in compiler.made] == [1, 0]


def dry_runs_may_fail() -> None:
    """What came before is compiled; what did not, by its launch."""
    import triton.compiler

    from nanofw.kernels.aot.compiler import AheadCompiler

    triton.compiler.compile = compiler = Compiler()
    compiler.may_end.set()

    def work() -> None:
        launch(64)
        raise RuntimeError("not on meta")

    ahead = AheadCompiler(work, None, 1)
    ahead.close()
    assert str(ahead.problem) == "not on meta"
    launch(64, 80, device="cpu")
    assert [made.num_launches for made in compiler.made] == [1, 1]


if __name__ == "__main__":
    from triton.runtime.driver import driver

    driver.set_active(AbsentGpu())  # pyright: ignore[reportArgumentType]
    for name in ("aot.compiler", "triton.activation"):
        importlib.import_module(f"nanofw.kernels.{name}")  # once, before the forks
    failed = [check for check in sys.argv[1:] if not succeeds(check)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
