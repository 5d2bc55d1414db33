"""How long it takes from a command to the first token, in fresh processes.

The states that a process can find:

- `cold`: no compiled kernels, and the checkpoint is not in the page cache (where the system lets
  a process put its files out of it);
- `kernels_cold`: no compiled kernels;
- `warm`: both are there.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from nanofw.assembly import Selection
from nanofw.bench.bounds import check_length, check_real
from nanofw.config.schema import Section
from nanofw.errors import ExecutorError
from nanofw.measure.progress import ProgressReport, silent

State = Literal["cold", "kernels_cold", "warm"]
CACHE_VARIABLES = ("TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR")
"""Where compiled kernels are kept."""
SECOND_REQUEST = "second request"


class StartupOptions(Section):
    """Settings of `nanofw bench startup`."""

    states: tuple[State, ...] | None = None
    """What a process finds. cold: no compiled kernels, and no checkpoint in the page cache.
    kernels_cold: no compiled kernels. warm: compiled kernels, and the checkpoint in the page cache.
    null: all three; on a CPU cold and warm."""
    prompt_tokens: PositiveInt = 128
    """Length of the prompt."""
    repeats: PositiveInt = 3
    """Number of processes for each state."""
    timeout_s: PositiveFloat = 1800.0
    """A process that takes longer is ended, and the measurement fails."""
    seed: NonNegativeInt = 0
    """Seed of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupTimes:
    """One state, measured in several processes.

    Attributes:
        phases: seconds of each part by name, in order, of each process; together they are what
            passes from the start of the process to its first token.
        second_request_s: of each process, the first token of a second request of that length.
        notes: sentences on how the state was made.
    """

    state: State
    phases: Mapping[str, tuple[float, ...]]
    second_request_s: tuple[float, ...]
    notes: tuple[str, ...] = ()

    @property
    def totals(self) -> tuple[float, ...]:
        return tuple(sum(parts) for parts in zip(*self.phases.values(), strict=True))

    @property
    def median(self) -> float:
        return median(self.totals)


def starts(
    selection: Selection,
    words: Sequence[str],
    options: StartupOptions,
    report: ProgressReport = silent,
) -> Iterator[StartupTimes]:
    """Measure each state, each result when it is there.

    Args:
        words: configuration and `key=value` pairs, with which the processes make the same
            selection themselves.

    Raises:
        ExecutorError: a process failed, with what it said.
    """
    check_real(selection)
    check_length(selection, options.prompt_tokens, 1, "bench.prompt_tokens")
    states: tuple[State, ...] | None = options.states
    if states is None:
        on_cpu = selection.device == "cpu"
        states = ("cold", "warm") if on_cpu else ("cold", "kernels_cold", "warm")
    total, done = len(states) * options.repeats, 0
    for state in states:
        found: list[dict[str, float]] = []
        notes: tuple[str, ...] = ()
        if state == "warm":
            report(done, total, "warming up")
            _run(words, options, {})
        for _ in range(options.repeats):
            report(done, total, state)
            with _empty_caches(state) as variables:
                if state == "cold" and not forget_files(Path(selection.spec.path)):
                    notes = ("the system keeps the checkpoint in its page cache",)
                found.append(_run(words, options, variables))
            done += 1
        yield _start(state, found, notes)
    report(total, total, "")


def _start(
    state: State, found: Sequence[Mapping[str, float]], notes: tuple[str, ...]
) -> StartupTimes:
    names = [name for name in found[0] if name != SECOND_REQUEST]
    return StartupTimes(
        state=state,
        phases={name: tuple(times[name] for times in found) for name in names},
        second_request_s=tuple(times[SECOND_REQUEST] for times in found),
        notes=notes,
    )


@contextlib.contextmanager
def _empty_caches(state: State) -> Generator[dict[str, str], None, None]:
    """Variables of the environment that give a process empty caches of kernels, if it wants."""
    if state == "warm":
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="nanofw-bench-", ignore_cleanup_errors=True) as folder:
        yield {name: str(Path(folder) / name.lower()) for name in CACHE_VARIABLES}


def forget_files(folder: Path) -> bool:
    """Ask the system to drop a checkpoint's files from the page cache; False where it cannot."""
    if not hasattr(os, "posix_fadvise") or not folder.is_dir():
        return False
    for path in folder.iterdir():
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    return True


def _run(
    words: Sequence[str], options: StartupOptions, variables: Mapping[str, str]
) -> dict[str, float]:
    """Seconds of each phase of one process."""
    task = {"words": list(words), "prompt_tokens": options.prompt_tokens, "seed": options.seed}
    begin = time.time()
    process = subprocess.Popen(
        [sys.executable, "-m", "nanofw.bench.startup_process"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, **variables}, text=True, encoding="utf-8",
    )  # fmt: skip
    try:
        out, err = process.communicate(
            json.dumps({**task, "begin": begin}), timeout=options.timeout_s
        )
    except subprocess.TimeoutExpired:
        raise ExecutorError(
            f"a process that was started to be measured took longer than {options.timeout_s:g} s "
            "(bench.timeout_s) and was ended"
        ) from None
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        said = err.strip() or f"exit code {process.returncode}"
        raise ExecutorError(f"a process that was started to be measured failed:\n{said}")
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found
