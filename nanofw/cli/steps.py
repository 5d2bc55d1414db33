"""One line of JSON for each step of a run, where `output.steps` names a file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO

from nanofw.configs.schema import OutputSection
from nanofw.core.types import StepReport
from nanofw.errors import ConfigError


class StepsFile:
    """A context manager; writes nothing when there is no file."""

    def __init__(self, file: IO[str] | None) -> None:
        self._file = file

    def write(self, report: StepReport) -> None:
        """Add a step."""
        if self._file is not None:
            self._file.write(json.dumps(asdict(report)) + "\n")

    def __enter__(self) -> StepsFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()


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
        return StepsFile(path.open("w", encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", key="output.steps") from error
