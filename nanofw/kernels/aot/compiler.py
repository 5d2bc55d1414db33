"""The threads that compile what dry runs would launch.

Triton offers both halves: `JITFunction.warmup` compiles the variant of a launch without running
it, and inside `AsyncCompileMode` an executor of ours does the compiling. Triton compiles without
the GIL but for its first pass, in processes of its own at the end; then the variant's launcher,
which Triton up to 3.6 has compiled by a C compiler, and the binary are loaded too.

While the dry run goes on, Triton's cache of a kernel has no entry for its variants (Triton 3.6) or
one that launches wait for (3.7): launch when `close` has returned.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import torch
from triton import AsyncCompileMode
from triton.runtime import cache
from triton.runtime.driver import driver

from nanofw.errors import ExecutorError
from nanofw.kernels.aot.meta_device import dry_run
from nanofw.kernels.aot.meta_shapes import MetaShapes
from nanofw.machine import num_usable_cores

MAX_THREADS = 16
"""More variants are seldom needed, and the first passes take turns anyway."""

_ALIGNMENT = 16  # Triton has a variant for pointers that are multiples of it

logger: logging.Logger = logging.getLogger(__name__)


def default_threads(num_ranks: int) -> int:
    """Threads of one rank where all ranks share a host."""
    return max(1, min(MAX_THREADS, num_usable_cores() // num_ranks))


class AheadCompiler:
    """A pool of threads that compile what a piece of work launches. Close it before it does.

    Args:
        work: runs in one of the threads; its launches are compiled and not run.
        device: index of the CUDA device; None: the one that Triton's driver names.
        num_threads: that compile at once.

    Attributes:
        problem: what ended the dry run early, if anything.
    """

    def __init__(self, work: Callable[[], object], device: int | None, num_threads: int) -> None:
        self.problem: Exception | None = None
        self._device = device
        # One more, for the dry run.
        self._pool = ThreadPoolExecutor(num_threads + 1, "nanofw-compile", self._enter_thread)
        self._variants = _Variants(self._pool)
        self._ready = [self._pool.submit(_load_driver), self._pool.submit(_find_cache)]
        self._kernels: set[Any] = set()
        self._launches: set[Any] = set()
        self._dry_run = self._pool.submit(self._run, work)

    @property
    def num_variants(self) -> int:
        """How many variants were handed to the threads so far."""
        return len(self._variants.futures)

    def beside(self, work: Callable[[], object]) -> None:
        """Do `work` in one of the threads too. Code that needs what failed there does it again."""
        self._pool.submit(work)

    def close(self) -> float:
        """Wait until everything is compiled, and end the threads. Idempotent.

        Returns:
            Seconds waited.
        """
        started = time.perf_counter()
        self._dry_run.result()  # it hands work to the threads, and ends when all is compiled
        self._pool.shutdown()
        if self._variants.any_failed():
            # Launches compile again, and raise what Triton has to say.
            for kernel in self._kernels:
                kernel.device_caches.clear()
        return time.perf_counter() - started

    def cancel(self) -> None:
        """End the threads; what was not begun is left out. Idempotent."""
        self._variants.is_cancelled.set()
        self.close()

    def _enter_thread(self) -> None:
        if self._device is not None:
            torch.cuda.set_device(self._device)

    def _run(self, work: Callable[[], object]) -> None:
        mode = AsyncCompileMode(self._variants, ignore_errors=True)
        try:
            with mode, torch.inference_mode(), MetaShapes(), dry_run(self._warm_up):
                work()
        except Exception as error:
            self.problem = error
            logger.warning(
                "not all kernels are compiled ahead, the others at their first launch: %s: %s",
                type(error).__name__, error, exc_info=logger.isEnabledFor(logging.DEBUG),
            )  # fmt: skip

    def _warm_up(
        self, kernel: Any, grid: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        """Layers and steps launch the same again and again: each launch is looked at once."""
        launch = (kernel, *map(_described, args), *map(_described, options.items()))
        if launch in self._launches:
            return
        for one in self._ready:
            one.result()
        self._launches.add(launch)
        self._kernels.add(kernel)
        kernel.warmup(*args, grid=grid, **options)


class _Variants(Executor):
    """Compiles in a pool, and loads what was compiled.

    Attributes:
        futures: of all variants so far.
        is_cancelled: what was not begun fails at once.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.futures: list[Future[Any]] = []
        self.is_cancelled = threading.Event()
        self._pool = pool

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = self._pool.submit(self._compile, fn, *args, **kwargs)
        self.futures.append(future)
        return future

    def any_failed(self) -> bool:
        """Whether a variant is missing. All must be through."""
        return any(future.exception() is not None for future in self.futures)

    def _compile(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.is_cancelled.is_set():
            raise ExecutorError("the start was given up before the kernel was compiled")
        compiled = fn(*args, **kwargs)
        compiled.run  # noqa: B018  # loads launcher and binary
        return compiled


def _described(argument: Any) -> Any:
    """What Triton may look at, or more: equal launches need the same variant."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % _ALIGNMENT
    if hasattr(argument, "base"):  # a tensor descriptor
        sizes = (argument.shape, argument.strides, argument.block_shape)
        return _described(argument.base), *map(tuple, sizes)
    return type(argument), argument


def _load_driver() -> None:
    """Triton compiles a part of its driver, too."""
    driver.active.get_current_target()


def _find_cache() -> None:
    """Triton's cache goes by a hash of Triton itself, of hundreds of MB: not in the dry run.

    Where this Triton has another name for it, it is computed later.
    """
    hash_itself = getattr(cache, "triton_key", None)
    if hash_itself is not None:
        hash_itself()
