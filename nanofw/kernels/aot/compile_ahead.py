"""Compiling Triton kernels in threads, before they are launched.

What has to be compiled is found by a *rehearsal*: the very code that will launch the kernels runs
on tensors of the device `meta`, and each launch only hands the variant that it needs to a pool of
threads. Shapes, strides and alignments of meta tensors are those of real ones, so the variants are
the same, and no kernel has to be registered.

Triton compiles without the GIL but for its first pass, in processes of its own at the end; then
the variant's launcher, which Triton up to 3.6 has compiled by a C compiler, and the binary are
loaded too. A launch that comes while its variant is being compiled finds a stand-in, and waits. One
whose variant could not be compiled ahead compiles it again and raises what Triton has to say.

While a rehearsal runs, two methods of Triton's `JITFunction` are replaced; afterwards launches are
what they were.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from triton import knobs
from triton.runtime import cache
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from nanofw.kernels.aot.dry_run import current, rehearsing
from nanofw.kernels.aot.meta_shapes import MetaShapes

MAX_THREADS = 16
"""More variants than so many are seldom needed, and the first passes take turns anyway."""

logger = logging.getLogger(__name__)
_lock = threading.Lock()
_originals: dict[str, Any] = {}
_num_rehearsals = 0

T = TypeVar("T")


def default_threads(num_ranks: int) -> int:
    """Threads of one rank where all ranks share a host."""
    return max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)) // num_ranks))


def is_possible() -> bool:
    """Whether this Triton has the seams that are used, and nobody else listens at them."""
    runtime = knobs.runtime
    return (
        hasattr(JITFunction, "_do_compile")
        and runtime.jit_cache_hook is None
        and runtime.jit_post_compile_hook is None
    )


class AheadCompiler:
    """A pool of threads that compile for one device. Close it before work is captured.

    Args:
        device: index of the CUDA device; None: whichever Triton's driver names.
        num_threads: that compile at once.

    Attributes:
        waited_s: seconds that launches and `wait_rehearsed` waited.
        problem: what ended a rehearsal early, if anything.
    """

    def __init__(self, device: int | None, num_threads: int) -> None:
        self.waited_s = 0.0
        self.problem: Exception | None = None
        self._device = device
        # One more, for the rehearsal.
        self._pool = ThreadPoolExecutor(num_threads + 1, "nanofw-compile", self._enter_thread)
        self._rehearsals: list[Future[None]] = []
        self._pending: list[_Pending] = []
        self._driver = self._pool.submit(_load_driver)
        self._cache = self._pool.submit(_find_cache)

    @property
    def num_variants(self) -> int:
        """How many were handed to the threads so far."""
        return len(self._pending)

    def rehearse(self, work: Callable[[], object]) -> None:
        """Start `work` in a thread; what it launches is compiled and not run."""
        self._rehearsals.append(self._pool.submit(self._rehearse, work))

    def beside(self, work: Callable[[], object]) -> None:
        """Do `work` in one of the threads too. Whoever needs what failed there does it again."""
        self._pool.submit(work)

    def wait_rehearsed(self) -> None:
        """Wait until it is known what has to be compiled: call it before the first launch."""
        for rehearsal in self._rehearsals:
            self.wait(rehearsal)
        self._rehearsals.clear()

    def wait(self, future: Future[T]) -> T:
        """Its result; the time is counted."""
        started = time.perf_counter()
        try:
            return future.result()
        finally:
            self.waited_s += time.perf_counter() - started

    def submit(self, kernel: Any, key: Any, device: Any, *arguments: Any) -> _Pending:
        """Have a variant compiled that launches do not find yet; arguments of `_do_compile`."""
        kernels = kernel.device_caches[device][0]
        pending = kernels[key] = _Pending(self, kernels, key)
        try:
            pending.future = self._pool.submit(self._compile, kernel, key, device, *arguments)
        except RuntimeError:  # cancelled meanwhile
            del kernels[key]
            raise
        self._pending.append(pending)
        return pending

    def close(self) -> None:
        """Wait until everything is compiled, and end the threads. Idempotent."""
        self.wait_rehearsed()
        started = time.perf_counter()
        self._pool.shutdown()
        self.waited_s += time.perf_counter() - started

    def cancel(self) -> None:
        """End the threads; what was not begun is left out. Idempotent."""
        self._pool.shutdown(cancel_futures=True)
        for pending in self._pending:
            pending.forget()

    def _enter_thread(self) -> None:
        if self._device is not None:
            torch.cuda.set_device(self._device)

    def _compile(
        self, kernel: Any, key: Any, device: Any, signature: Any, constexprs: Any, options: Any,
        attrs: Any,
    ) -> Any:  # fmt: skip
        """As `JITFunction._do_compile`, but launches find the variant when it is ready for them."""
        kernels, _, target, *_ = kernel.device_caches[device]
        try:
            self._cache.result()
            source = kernel.ASTSource(kernel, signature, constexprs, attrs)
            compiled = kernel.compile(source, target=target, options=options.__dict__)
            compiled.run  # noqa: B018  # loads launcher and binary
        except Exception:
            del kernels[key]  # later launches compile it themselves
            raise
        kernels[key] = compiled
        return compiled

    def _rehearse(self, work: Callable[[], object]) -> None:
        try:
            self._driver.result()
            with torch.inference_mode(), MetaShapes(), rehearsing(self), _replaced_launches():
                work()
        except Exception as error:
            self.problem = error
            logger.warning(
                "not all kernels are compiled ahead, the others at their first launch: %s: %s",
                type(error).__name__, error, exc_info=logger.isEnabledFor(logging.DEBUG),
            )  # fmt: skip


class _Pending:
    """Stands for a compiled variant until it is there: whoever asks for anything of it waits."""

    future: Future[Any]

    def __init__(self, compiler: AheadCompiler, kernels: dict[Any, Any], key: Any) -> None:
        self._compiler, self._kernels, self._key = compiler, kernels, key

    def forget(self) -> None:
        """Where it will never be there, let launches compile it."""
        if self.future.cancelled() and self._kernels.get(self._key) is self:
            del self._kernels[self._key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiler.wait(self.future), name)


def _load_driver() -> None:
    """Triton compiles a part of its driver, too."""
    driver.active.get_current_target()


def _find_cache() -> None:
    """Triton's cache goes by a hash of Triton itself, of hundreds of MB: once, not in each thread.

    Where this Triton has another name for it, it is computed later.
    """
    hash_itself = getattr(cache, "triton_key", None)
    if hash_itself is not None:
        hash_itself()


def _run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
    """Stands in for `JITFunction.run`."""
    warmup = warmup or current() is not None
    return _originals["run"](kernel, *args, grid=grid, warmup=warmup, **options)


def _do_compile(
    kernel: Any, key: Any, signature: Any, device: Any, constexprs: Any, options: Any, attrs: Any,
    warmup: bool,
) -> Any:  # fmt: skip
    """Stands in for `JITFunction._do_compile`, which is called for variants not seen before."""
    compiler = current()
    if compiler is not None:
        return compiler.submit(kernel, key, device, signature, constexprs, options, attrs)
    original = _originals["_do_compile"]
    return original(kernel, key, signature, device, constexprs, options, attrs, warmup)


@contextmanager
def _replaced_launches() -> Iterator[None]:
    """Inside, launches of threads that rehearse go to their compilers; those of others do not."""
    global _num_rehearsals
    with _lock:
        if not _num_rehearsals:
            for name, stand_in in (("run", _run), ("_do_compile", _do_compile)):
                _originals[name] = getattr(JITFunction, name)
                setattr(JITFunction, name, stand_in)
        _num_rehearsals += 1
    try:
        yield
    finally:
        with _lock:
            _num_rehearsals -= 1
            if not _num_rehearsals:
                for name, original in _originals.items():
                    setattr(JITFunction, name, original)
