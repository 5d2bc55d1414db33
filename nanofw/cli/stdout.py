"""Standard output belongs to the command: what plugins and libraries print goes to standard error.

A command claims it before the first line of foreign code runs, after its arguments are parsed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import TextIO


@dataclass(slots=True)
class _Claim:
    """What standard output was.

    Attributes:
        stream: where the command writes.
        usual: what `sys.stdout` was.
        is_file: the stream has a descriptor of its own, and descriptor 1 leads elsewhere.
    """

    stream: TextIO
    usual: TextIO
    is_file: bool


_claims: list[_Claim] = []
"""At most one: that of the command that runs."""


def stdout() -> TextIO:
    """Where a command writes its output."""
    return _claims[0].stream if _claims else sys.stdout


def claim() -> None:
    """From here on only `stdout()` leads to standard output; every call after the first is idle."""
    if _claims:
        return
    usual = sys.stdout
    stream = _moved(usual)
    _claims.append(_Claim(stream or usual, usual, stream is not None))
    sys.stdout = sys.stderr


def release() -> None:
    """Undo `claim`. Raises OSError when what was written does not arrive."""
    if not _claims:
        return
    claimed = _claims.pop()
    sys.stdout = claimed.usual
    try:
        claimed.stream.flush()
    finally:
        if claimed.is_file:
            os.dup2(claimed.stream.fileno(), 1)
            with contextlib.suppress(OSError):
                claimed.stream.close()


def _moved(usual: TextIO) -> TextIO | None:
    """Standard output at another descriptor, while 1 leads to standard error; None: it cannot."""
    try:
        if usual.fileno() != 1:
            return None
        usual.flush()
        other = os.dup(1)
        os.dup2(sys.stderr.fileno(), 1)
    except (OSError, ValueError):  # a stream of a test, or one that the shell closed
        return None
    return open(
        other, "w", encoding=usual.encoding, errors=usual.errors,
        buffering=1 if usual.isatty() else -1,
    )  # fmt: skip
