"""Where `nanofw run` puts its results: a JSONL file, standard output, or the terminal.

Results come in the order in which requests finish and leave in the order of the input.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO

from nanofw.cli.files import PENDING_SUFFIX, STDOUT
from nanofw.cli.stdout import stdout
from nanofw.config.schema import Config
from nanofw.errors import ConfigError, NanofwError
from nanofw.llm.results import Completion, RequestResult

NO_FACTS: Mapping[str, str] = MappingProxyType({})


class OutputError(NanofwError):
    """Results can no longer be written, for example because the disk is full."""


class Output:
    """A place for results. This one keeps nothing: prompts of generated traffic are random.

    Attributes:
        to_record: what is written of a result, by its position in the input.
        is_read: a person reads each result as it comes, with its error.
        is_live: texts are shown while they come.
        written: what is written and where, for the summary of the run; empty when nothing.
    """

    is_read = False
    is_live = False
    written = ""

    def __init__(self, facts: Mapping[str, str] = NO_FACTS) -> None:
        self.to_record: Callable[[int, RequestResult], dict[str, object]] = partial(
            own_record, facts
        )

    def start_run(self) -> None:
        """The model is loaded and the run begins: results of an earlier run are removed."""

    def add_prompt(self, ticket: int, prompt: str) -> None:
        """A request that was read; `prompt` is its text for readers."""

    def show_text(self, ticket: int, text: str) -> None:
        """New text of an unfinished request."""

    def put_result(self, ticket: int, result: RequestResult) -> None:
        """A finished request; `ticket` is its position in the input."""

    def close(self) -> None:
        """Write results that waited for an earlier request that never finished. Idempotent."""

    def _write_line(self, file: IO[str], ticket: int, result: RequestResult) -> None:
        file.write(json.dumps(self.to_record(ticket, result), ensure_ascii=False) + "\n")
        file.flush()


def open_output(config: Config) -> Output:
    """Where results go: a file, JSONL on standard output, or text for reading."""
    file, is_random = config.output.file, config.model.weights == "random"
    if file is not None:
        facts = {"weights": "random"} if is_random else {}
        return JsonlStream(stdout(), facts) if file.name == STDOUT else JsonlFile(file, facts)
    if config.input.workload is not None:
        return Output()
    if is_random:
        stdout().write("The weights are random: what follows means nothing.\n\n")
    return PlainText(stdout(), live=stdout().isatty())


class InputOrder:
    """Hands results on in the order of their tickets as soon as that is possible.

    Attributes:
        current: the ticket whose turn it is.
    """

    def __init__(self, emit: Callable[[int, RequestResult], None]) -> None:
        self._emit = emit
        self._held: dict[int, RequestResult] = {}
        self.current: int = 0

    def put(self, ticket: int, result: RequestResult) -> bool:
        """Take a result. Returns whether it has to wait for an earlier one."""
        self._held[ticket] = result
        while (ready := self._held.pop(self.current, None)) is not None:
            self._emit(self.current, ready)
            self.current += 1
        return ticket >= self.current

    def flush(self) -> None:
        """Hand on all that waits, in order, and leave out what never came."""
        for ticket in sorted(self._held):
            self._emit(ticket, self._held[ticket])
        self._held.clear()


class JsonlFile(Output):
    """A result a line, flushed one by one.

    A result that has to wait for an earlier one is kept in `FILE.pending` meanwhile, so that
    nothing that was finished is lost, however the process ends. The file is removed when all
    results are in place. Results of an earlier run stay until `start_run`: a run that fails before
    its first request loses nothing.

    Args:
        facts: of the run, in every line.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path, facts: Mapping[str, str] = NO_FACTS) -> None:
        super().__init__(facts)
        self._path, self._pending_path = path, path.with_name(path.name + PENDING_SUFFIX)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"cannot write {path}: {error.strerror}", key="output.file"
            ) from error
        self._pending: IO[str] | None = None
        self._is_closed = False
        self._order = InputOrder(partial(self._write_line, self._file))
        self.written: str = f"results in {path}"

    def start_run(self) -> None:
        if self._path.is_file():
            self._file.truncate(0)
        self._pending_path.unlink(missing_ok=True)

    def put_result(self, ticket: int, result: RequestResult) -> None:
        try:
            if self._order.put(ticket, result):
                if self._pending is None:
                    self._pending = self._pending_path.open("w", encoding="utf-8")
                self._write_line(self._pending, ticket, result)
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._order.flush()
            self._file.close()
        except OSError as error:  # what waits stays in the second file
            raise self._failed(error) from error
        if self._pending is not None:
            self._pending.close()
            self._pending_path.unlink(missing_ok=True)

    def _failed(self, error: OSError) -> OutputError:
        """Stop writing, keep what was written, and let `close` do nothing."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._file.close()
        return OutputError(
            f"output.file: cannot write {self._path}: {error.strerror or error}; the results so "
            f"far are there, make room or name another place"
        )


class JsonlStream(Output):
    """A result a line on standard output."""

    def __init__(self, file: IO[str], facts: Mapping[str, str] = NO_FACTS) -> None:
        super().__init__(facts)
        self._order = InputOrder(partial(self._write_line, file))

    def put_result(self, ticket: int, result: RequestResult) -> None:
        self._order.put(ticket, result)

    def close(self) -> None:
        self._order.flush()


class PlainText(Output):
    """Prompts and texts for reading, on standard output.

    Args:
        file: where to.
        live: show the text of the request whose turn it is while it comes, as on a terminal.
    """

    is_read = True

    def __init__(self, file: IO[str], *, live: bool) -> None:
        super().__init__()
        self._file = file
        self.is_live = live
        self._bold, self._plain = ("\033[1m", "\033[0m") if live else ("", "")
        self._order = InputOrder(self._write_result)
        self._prompts: dict[int, str] = {}
        self._texts: dict[int, str] = {}
        self._num_written = 0
        """Characters of the current request that are out."""
        self._opened = False

    def add_prompt(self, ticket: int, prompt: str) -> None:
        self._prompts[ticket] = prompt

    def show_text(self, ticket: int, text: str) -> None:
        self._texts[ticket] = self._texts.get(ticket, "") + text
        self._show_current()

    def put_result(self, ticket: int, result: RequestResult) -> None:
        self._order.put(ticket, result)
        self._show_current()

    def close(self) -> None:
        self._order.flush()
        if self._opened:
            self._file.write("\n")
            self._opened = False

    def _show_current(self) -> None:
        text = self._texts.get(self._order.current)
        if self.is_live and text is not None:
            self._write(self._order.current, text)

    def _write(self, ticket: int, text: str) -> None:
        if not self._opened:
            self._file.write(f"{self._bold}{self._prompts.get(ticket, '')}{self._plain}")
            self._opened = True
        self._file.write(text[self._num_written :])
        self._num_written = len(text)
        self._file.flush()

    def _write_result(self, ticket: int, result: RequestResult) -> None:
        first, *others = result.outputs
        self._write(ticket, _text_or_ids(first))
        for completion in others:
            self._file.write(f"\n[{completion.index}] {_text_or_ids(completion)}")
        note = f" [{result.finish_reason}: {result.error}]" if result.error else ""
        self._file.write(f"{note}\n\n")
        self._file.flush()
        self._opened, self._num_written = False, 0
        self._texts.pop(ticket, None)
        self._prompts.pop(ticket, None)


def _text_or_ids(completion: Completion) -> str:
    return completion.text or " ".join(map(str, completion.token_ids))


def own_record(facts: Mapping[str, str], ticket: int, result: RequestResult) -> dict[str, object]:
    """The line of a result, as docs/results.md describes it."""
    return {"index": ticket, **facts, **result.to_record()}
