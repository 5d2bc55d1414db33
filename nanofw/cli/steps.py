"""One line of JSON for each step of a run, where `output.steps` names a file."""

from __future__ import annotations

import contextlib
import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import IO

from nanofw.config.schema import OutputSection
from nanofw.contracts.outputs import StepReport
from nanofw.errors import ConfigError


class StepsWarning(UserWarning):
    """Steps could not be written."""


class StepsFile:
    """A line of JSON for each step; without a file it takes steps and keeps nothing.

    Attributes:
        written: what is written and where, for the summary of the run; empty when nothing.
    """

    def __init__(self, file: IO[str] | None, path: Path | None = None) -> None:
        self._file, self._path = file, path
        self.written: str = f"steps in {path}" if path else ""

    def write(self, report: StepReport) -> None:
        """Add a step."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(asdict(report)) + "\n")
        except OSError as failed:
            self._give_up(failed)

    def close(self) -> None:
        """Finish the file. Idempotent."""
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError as failed:
            self._give_up(failed)

    def _give_up(self, failed: OSError) -> None:
        """Warn and go on without steps: the results of the run matter more."""
        reason = failed.strerror or failed
        message = f"output.steps: cannot write {self._path}: {reason}; steps are no longer noted"
        warnings.warn(message, StepsWarning, stacklevel=2)
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


def open_steps(section: OutputSection) -> StepsFile:
    """The file that `output.steps` names, or one that takes nothing.

    Raises:
        ConfigError: it cannot be written.
    """
    path: Path | None = section.steps
    if path is None:
        return StepsFile(None)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return StepsFile(path.open("w", encoding="utf-8"), path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", key="output.steps") from error
