"""What measurements of products found on this machine, kept in the user's cache folder.

One JSON file for a processor and the versions of the libraries that multiply. It may be deleted at
any time; where it cannot be read or written, products are measured again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from nanofw.machine import processor_name
from nanofw.narrowing import is_list, is_object

logger: logging.Logger = logging.getLogger(__name__)

Found: TypeAlias = tuple[str, list[str]]
"""A layout, and the names of its products."""

_FORMAT = 1
_LONGEST_WAIT = 3.0  # seconds, for another process that measures


class ProductCache:
    """What was found, by the name of a shape.

    Attributes:
        path: of the file.
    """

    def __init__(self) -> None:
        machine = [
            _FORMAT, processor_name(), torch.backends.cpu.get_cpu_capability(), torch.__version__,
            np.__version__,
        ]  # fmt: skip
        self._machine = [str(fact) for fact in machine]
        key = hashlib.sha256(json.dumps(self._machine).encode()).hexdigest()[:12]
        self.path: Path = cache_folder() / f"products-{key}.json"

    def get_or_measure(
        self, names: Iterable[str], measure: Callable[[list[str]], dict[str, Found]]
    ) -> dict[str, Found]:
        """What is known of each name; `measure` is called with the names that are not known."""
        known = self._read()
        if all(name in known for name in names):
            return known
        with self._locked():
            known = self._read()  # another process may have measured meanwhile
            missing = [name for name in names if name not in known]
            if missing:
                known |= measure(missing)
                self._write(known)
        return known

    def _read(self) -> dict[str, Found]:
        try:
            content: object = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not there, or damaged
            return {}
        choices = content.get("choices") if is_object(content) else None
        found: dict[str, Found] = {}
        for name, choice in choices.items() if is_object(choices) else ():
            if is_object(choice) and is_list(products := choice.get("products")):
                found[str(name)] = str(choice.get("layout")), [str(name) for name in products]
        return found

    def _write(self, known: dict[str, Found]) -> None:
        choices = {
            name: {"layout": layout, "products": products}
            for name, (layout, products) in known.items()
        }
        content = {"machine": self._machine, "choices": choices}
        new = self.path.with_suffix(f".{os.getpid()}")
        try:
            new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            new.replace(self.path)
        except OSError as error:
            logger.debug("measured products are not kept: %s", error)
            with suppress(OSError):
                new.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process measure at a time, where files can be locked; waiting is bounded."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.with_suffix(".lock").open("w")
        except OSError:
            yield
            return
        with file:
            _wait_for_lock(file.fileno())
            yield


def cache_folder() -> Path:
    """Where this package keeps what can be found again."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "nanofw"


def _wait_for_lock(descriptor: int) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    end = time.monotonic() + _LONGEST_WAIT
    while time.monotonic() < end:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(0.02)
        else:
            return
