"""Grammars are tried in a process of their own: one that crashes or hangs the compiler ends that.

llguidance's compiler calls itself along references, so that long chains of them end the process in
which they are compiled, and some grammars take minutes. Neither can be told from the text.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from typing import Any

STACK_BYTES = 4 << 20
"""Half of what threads mostly have: what is compiled here can be compiled elsewhere."""

MEMORY_BYTES = 4 << 30
"""Most address space of the process."""

START_TIMEOUT_S = 120.0

_BOOT = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from nanofw.samplers.logits_processors.trial_process import main; main()"
)


class TrialProcess:
    """Compiles grammars before anyone else does. Started when it is first used.

    Args:
        setup: what the process makes its `Grammars` of; JSON.
        timeout_s: most seconds for one grammar.
    """

    def __init__(self, setup: Mapping[str, object], timeout_s: float) -> None:
        self._setup, self._timeout_s = dict(setup), timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def problem(self, kind: str, text: str) -> str | None:
        """Why a grammar cannot be used; None: it can be compiled here, too."""
        try:
            if self._process is None:
                self._process = _start()
                weakref.finalize(self, _end, self._process)
                self._ask(self._setup, START_TIMEOUT_S)
            return self._ask([kind, text], self._timeout_s)
        except TimeoutError:
            self._stop()
            return f"{kind} takes more than {self._timeout_s:g} s to compile; make it smaller"
        except (OSError, ValueError):
            code = self._stop()
            return (
                f"{kind} ends its compiler (exit code {code}); shorten its chains of references "
                "or make it smaller"
            )

    def _ask(self, message: Any, timeout_s: float) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + timeout_s
        answer = b""
        while not answer.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                raise TimeoutError
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                raise ValueError("the process ended")
            answer += part
        return json.loads(answer)

    def _stop(self) -> int | None:
        process, self._process = self._process, None
        return None if process is None else _end(process)


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT, *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a terminal's Ctrl-C reaches the engine alone
    )


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a process, if it has not ended; its exit code."""
    code = process.poll()
    if code is None:
        process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # a message that is not read any more
                continue
    return process.wait() if code is None else code


def main() -> None:
    """Answer each line of standard input with a line: null, or why it cannot be compiled."""
    import threading

    _bound_memory()
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()


def _serve() -> None:
    from nanofw.contracts.logits_processor import HostProcessorConfig
    from nanofw.samplers.logits_processors.grammars import Grammars

    grammars: Grammars | None = None
    for line in sys.stdin.buffer:
        message: Any = json.loads(line)
        answer: str | None = None
        if grammars is None:
            config = HostProcessorConfig(**message.pop("config"))
            grammars = Grammars.of(config, **message)
        else:
            answer = _try(grammars, *message)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def _try(grammars: Any, kind: str, text: str) -> str | None:
    try:
        grammars.compile(kind, text)
    except ValueError as error:
        return str(error)
    return None


def _bound_memory() -> None:
    try:
        import resource
    except ImportError:  # a system without such bounds
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
