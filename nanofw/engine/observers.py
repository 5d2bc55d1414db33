"""The observers of an engine, told of its steps; one that fails is told nothing more."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from nanofw.contracts.hooks import speaks_for
from nanofw.contracts.observer import PHASES, StepObserver
from nanofw.errors import NanofwError, ObserverError
from nanofw.plugin_calls import raised

P = ParamSpec("P")
T = TypeVar("T")

logger: logging.Logger = logging.getLogger(__name__)

Telling = Callable[..., None]
"""A guarded method of an observer."""


class Observers:
    """Those of one engine. With none, each of its lists is empty and calls stay as they are.

    Attributes:
        received, finish_requested, planned, submitted, collected, strode, finished: the guarded
            methods of those who listen.
        see_every_step: one of them hears of steps, and not of strides.
    """

    def __init__(self) -> None:
        self._present: list[StepObserver] = []
        self._failures: dict[int, ObserverError] = {}
        self.received: tuple[Telling, ...] = ()
        self.finish_requested: tuple[Telling, ...] = ()
        self.planned: tuple[Telling, ...] = ()
        self.submitted: tuple[Telling, ...] = ()
        self.collected: tuple[Telling, ...] = ()
        self.strode: tuple[Telling, ...] = ()
        self.finished: tuple[Telling, ...] = ()
        self.see_every_step: bool = False

    def add(self, observer: StepObserver) -> None:
        """Tell it from now on.

        Raises:
            ObserverError: it is not a `StepObserver`, or hears of phases that do not exist.
        """
        name = type(observer).__name__
        if not isinstance(observer, StepObserver):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ObserverError(f"observer {name} does not derive from StepObserver")
        if unknown := [phase for phase in observer.phases if phase not in PHASES]:
            raise ObserverError(
                f"observer {name}: phases names {unknown[0]!r}; there are {', '.join(PHASES)}"
            )
        self._present.append(observer)
        self._list()

    def remove(self, observer: StepObserver) -> NanofwError | None:
        """Tell it nothing more. Returns why it was told nothing since an earlier call, or None."""
        self._present = [other for other in self._present if other is not observer]
        self._list()
        return self._failures.pop(id(observer), None)

    def around(self, phase: str, call: Callable[P, T]) -> Callable[P, T]:
        """The call, told to those who hear of this phase; the call itself where there are none."""
        hearing = [observer for observer in self._present if phase in observer.phases]
        if not hearing:
            return call
        begins = [self._telling(observer, "began") for observer in hearing]
        ends = [self._telling(observer, "ended") for observer in reversed(hearing)]

        def told(*args: P.args, **kwargs: P.kwargs) -> T:
            for began in begins:
                began(phase)
            try:
                return call(*args, **kwargs)
            finally:
                for ended in ends:
                    ended(phase)

        return told

    def _list(self) -> None:
        self.received = self._listeners("received")
        self.finish_requested = self._listeners("finish_requested")
        self.planned = self._listeners("planned")
        self.submitted = self._listeners("submitted")
        self.collected = self._listeners("collected")
        self.strode = self._listeners("strode")
        self.finished = self._listeners("finished")
        self.see_every_step = any(map(_sees_every_step, self._present))

    def _listeners(self, method: str) -> tuple[Telling, ...]:
        plain = getattr(StepObserver, method)
        return tuple(
            self._telling(observer, method)
            for observer in self._present
            if getattr(type(observer), method) is not plain
        )

    def _telling(self, observer: StepObserver, method: str) -> Telling:
        function = getattr(observer, method)
        failures, key = self._failures, id(observer)

        def tell(*args: object) -> None:
            if key in failures:
                return
            try:
                function(*args)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                failures[key] = ObserverError(
                    f"observer {type(observer).__name__}: {method}() raised {raised(error)}; "
                    "it is told nothing more"
                )
                failures[key].__cause__ = error
                logger.error("%s", failures[key], exc_info=error)

        return tell


def _sees_every_step(observer: StepObserver) -> bool:
    heard = ["planned", "submitted", "collected"]
    if set(observer.phases) - {"accept"}:
        heard += ["began", "ended"]
    return not speaks_for(observer, "strode", *heard)
