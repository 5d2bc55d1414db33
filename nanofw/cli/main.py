"""The `nanofw` command: a table of commands, each imported only when it is called.

This module imports the standard library alone, so that `--help` answers at once.

Exit codes: 0 ok; 1 some requests failed or were refused; 2 usage or configuration; 3 a plugin,
the model or the engine failed; 130 interrupted; 141 the reader of the output is gone.
"""

from __future__ import annotations

import codecs
import contextlib
import importlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import TextIO

from nanofw import __version__
from nanofw.cli import ExitCode
from nanofw.cli.stdout import release
from nanofw.errors import (
    CapabilityError,
    ConfigError,
    DuplicatePlugin,
    NanofwError,
    RequestError,
    UnknownPlugin,
    near,
)

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("nanofw.cli.run", "run prompts through a model and write the results"),
    "serve": ("nanofw.cli.serve", "serve a model to OpenAI clients"),
    "bench": ("nanofw.cli.bench", "time decode steps, first tokens, workloads, start-up"),
    "profile": ("nanofw.cli.profile", "say where the time of a step goes, write a trace"),
    "calibrate": ("nanofw.cli.calibrate", "time steps of a real run for the simulator"),
    "compare": ("nanofw.cli.compare", "run policies on the same traffic, say which is better"),
    "capacity": ("nanofw.cli.capacity", "find the largest rate at which objectives hold"),
    "why": ("nanofw.cli.why", "say why a request of a decision log waited"),
    "replay": ("nanofw.cli.replay", "decide a decision log again, show the first difference"),
    "explain": ("nanofw.cli.explain", "say what a configuration chooses, and why"),
    "verify": ("nanofw.cli.verify", "hold a model's logits and tokens against transformers"),
    "doctor": ("nanofw.cli.doctor", "say what this machine has and lacks, or what a model is"),
    "config": ("nanofw.cli.config", "show a configuration with its sources, or validate it"),
    "completion": ("nanofw.cli.completion", "print a script that completes commands in a shell"),
    "plugins": ("nanofw.cli.plugins", "list plugins, show, test or begin one"),
}
"""Command -> module with `main(arguments) -> exit code`, and its line in the help."""

_THEIRS = (ConfigError, CapabilityError, UnknownPlugin, DuplicatePlugin, RequestError)
"""What the user puts right by changing the command or the configuration."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    _replace_closed_streams()
    _escape_what_cannot_be_shown()
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = bool(os.environ.get("NANOFW_DEBUG"))
    if words[:1] == ["--debug"]:
        debug, words = True, words[1:]
    if not words or words[0] in ("-h", "--help", "help"):
        return _guarded(lambda: _say(usage(), ExitCode.OK if words else ExitCode.USAGE), debug)
    if words[0] in ("-V", "--version", "version"):
        return _guarded(lambda: _say(f"nanofw {__version__}", ExitCode.OK), debug)
    if words[0] not in COMMANDS:
        hint = near(words[0], COMMANDS, count=1)
        print(f"nanofw: no command {words[0]!r}{hint}; see nanofw --help", file=sys.stderr)
        return ExitCode.USAGE
    return _guarded(lambda: _command(words[0], words[1:]), debug)


def usage() -> str:
    """The text of `nanofw --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: nanofw [--debug] COMMAND ...",
            "",
            "An LLM inference framework in which every decision is a plugin.",
            "",
            *lines,
            "",
            "nanofw COMMAND --help says more. --debug (or NANOFW_DEBUG=1) shows tracebacks.",
            "Exit codes: 0 ok, 1 some requests failed, 2 usage or configuration, 3 a plugin,",
            "the model or the engine failed, 130 interrupted.",
        ]
    )


def _say(text: str, code: int) -> int:
    print(text)
    return code


def _command(name: str, arguments: list[str]) -> int:
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        command: Callable[[list[str]], int] = importlib.import_module(COMMANDS[name][0]).main
        try:
            return command(arguments)
        finally:
            release()


def _replace_closed_streams() -> None:
    """A shell may have closed a stream; code everywhere relies on there being one."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _escape_what_cannot_be_shown() -> None:
    """Escape letters that the encoding of standard output lacks, so that JSON stays JSON."""
    out: TextIO = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.errors == "strict":
        codecs.register_error("nanofw.json", _escaped)
        out.reconfigure(errors="nanofw.json")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Letters as JSON escapes them: two halves of a pair above U+FFFF."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)), error.end


def _drop_output() -> None:
    """Drop what standard output still holds, so that the interpreter does not try to write it."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _guarded(action: Callable[[], int], debug: bool) -> int:
    """Call a command; whatever it raises becomes one message and an exit code."""
    try:
        try:
            return action()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("nanofw: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return ExitCode.BROKEN_PIPE
    except OSError as error:
        if debug:
            traceback.print_exc()
        _drop_output()
        place = f": {error.filename}" if error.filename else ""
        print(f"nanofw: {error.strerror or error}{place}", file=sys.stderr)
        return ExitCode.FAILED
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"nanofw: {_text(error, debug)}", file=sys.stderr)
        return ExitCode.USAGE if isinstance(error, _THEIRS) else ExitCode.FAILED


def _text(error: Exception, debug: bool) -> str:
    if isinstance(error, NanofwError):
        return str(error)
    hint = "" if debug else "\n  nanofw --debug ... shows the traceback"
    return f"{type(error).__name__}: {error}{hint}"


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    where = file or sys.stderr
    origin = "" if category.__module__.startswith("nanofw") else f" ({filename}:{lineno})"
    print(f"nanofw: warning: {message}{origin}", file=where)


if __name__ == "__main__":
    sys.exit(main())
