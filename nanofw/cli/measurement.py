"""Results of a measurement: shown and written, also when it ends early."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from nanofw.cli import ExitCode
from nanofw.cli.arguments import load, own_options
from nanofw.cli.files import STDOUT, check_writable, files_read, writing
from nanofw.cli.stdout import stdout
from nanofw.cli.tables import console

if TYPE_CHECKING:
    from nanofw.assembly import Selection
    from nanofw.config.load import LoadedConfig
    from nanofw.config.schema import Section

T = TypeVar("T")
S = TypeVar("S", bound="Section")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Let a parser take `--json FILE`."""
    parser.add_argument(
        "--json", metavar="FILE",
        help="write all results, and where they come from, as JSON; - is standard output",
    )  # fmt: skip


class Measurement(Generic[T]):
    """What a command measured, as it comes.

    Args:
        command: its name, for the record.
        target: the file that `--json` names, `-` or None.
        arguments: of the command line.
        options: what was measured.
        record: a result as plain values.

    Attributes:
        found: what was finished.
    """

    def __init__(
        self,
        command: str,
        target: str | None,
        arguments: Sequence[str],
        options: Section,
        record: Callable[[T], dict[str, object]],
    ) -> None:
        self._command, self._target, self._arguments = command, target, arguments
        self._options, self._record = options, record
        self._problem: BaseException | None = None
        self.found: list[T] = []

    def check(self, read: Iterable[str]) -> None:
        """Raise ConfigError when the file cannot be written; `read`: what it may not be."""
        if self._target not in (None, STDOUT):
            check_writable(Path(self._target), "--json", read)

    def take(self, results: Iterable[T]) -> None:
        """Collect results; what ends them early is raised by `finish`."""
        try:
            for item in results:
                self.found.append(item)
        except BaseException as error:
            if not self.found:
                raise
            self._problem = error

    def finish(self, selection: Selection, show: Callable[[Sequence[T]], None]) -> int:
        """Write and show what there is, then raise what ended it early. Returns the exit code."""
        try:  # the file first: the reader of the tables may close the pipe
            if self._target is not None:
                self._write(self.as_record(selection))
        finally:
            if self._target != STDOUT:
                show(self.found)
        if self._problem is not None:
            print("the rest was not measured", file=sys.stderr)
            raise self._problem
        return ExitCode.OK

    def as_record(self, selection: Selection) -> dict[str, object]:
        """Everything as plain values."""
        from nanofw.assembly.provenance import origin, run_record
        from nanofw.cli import environment
        from nanofw.config.load import plain

        return {
            "command": self._command,
            "complete": self._problem is None,
            "options": plain(self._options),
            "results": [self._record(item) for item in self.found],
            "provenance": {
                **origin(self._arguments),
                "devices": environment.devices(),
                "nvidia_driver": environment.system()["nvidia_driver"],
                **run_record(selection),
            },
        }

    def _write(self, value: dict[str, object]) -> None:
        text = json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n"
        if self._target == STDOUT:
            stdout().write(text)
        elif self._target is not None:
            with writing(Path(self._target)):
                Path(self._target).write_text(text, encoding="utf-8")


def begin(
    command: str,
    kind: type[S],
    record: Callable[[T], dict[str, object]],
    given: argparse.Namespace,
    arguments: Sequence[str],
) -> tuple[S, list[str], LoadedConfig, Measurement[T]]:
    """What a command was asked to measure, once `--json` is known to be writable.

    Args:
        kind: of its own settings, which begin with the command's first word.
        record: a result as plain values.

    Returns:
        Its settings, the other words, the configuration of these, and where results go.
    """
    options, words = own_options(given.config, command.partition(" ")[0], kind)
    loaded = load(words)
    measured = Measurement(command, given.json, arguments, options, record)
    measured.check(files_read(loaded, words))
    return options, words, loaded, measured


def heading(selection: Selection, text: str) -> None:
    """Two lines above the tables: what was measured, and how."""
    facts, backend = selection.explanation.facts, selection.explanation.choice("attention_backend")
    name = Path(str(facts["model"])).name
    how = f", attention by {backend.name}" if backend else ""
    out = console()
    out.print(f"{name}: {facts['dtype']} on {facts['device']}{how}")
    out.print(text)


def uncounted(number: int) -> str:
    """`1 that does not count`, in a heading."""
    return f"{number} that {'does' if number == 1 else 'do'} not count"


def graph_line(steps: Mapping[str, int]) -> str:
    """How steps were carried out, in words."""
    return "steps by graphs: " + ", ".join(f"{name} {num:,}" for name, num in steps.items())
