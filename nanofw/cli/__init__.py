"""The command line."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command tells the shell; an interrupted `nanofw run` adds 128 to its signal."""

    OK = 0
    BAD_RESULT = 1
    """The command ran, but requests failed, or the result is not what was expected."""
    USAGE = 2
    """The command line or the configuration is wrong."""
    FAILED = 3
    """A plugin, the model or the engine failed."""
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    """The reader of the output is gone."""
