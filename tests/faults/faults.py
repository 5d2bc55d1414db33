"""What a method does instead of its answer, and classes with one method at fault."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from nanofw.errors import ConfigError
from nanofw.plugins import Options

NUM_REQUESTS = 6


class Interrupted(BaseException):
    """Neither an Exception nor the user's interrupt."""


class Fault(Options):
    """`{name: faulty, method: acquire, fault: raises, after: 2}`; no method: sound."""

    method: str = ""
    fault: str = ""
    after: int = 0


def _raise(error: BaseException) -> Any:
    raise error


def _endless(answer: Any) -> Iterator[Any]:
    """The items of an answer again and again; numbers where there are none."""
    items = list(answer) or [0]
    while True:
        yield from items


RAISING: dict[str, Callable[[Any], Any]] = {
    "raises": lambda _: _raise(ZeroDivisionError("a bug in the plugin")),
    "exits": lambda _: _raise(SystemExit(0)),
    "is_interrupted": lambda _: _raise(Interrupted()),
    "raises_much": lambda _: _raise(KeyError("a" * 500)),
    "raises_ours": lambda _: _raise(ConfigError("an error of nanofw, without a name")),
}
"""What a method raises."""
SCALARS: dict[str, Callable[[Any], Any]] = {
    "none": lambda _: None,
    "text": lambda _: "text",
    "object": lambda _: object(),
    "nan": lambda _: float("nan"),
    "negative": lambda _: -7,
    "flag": lambda _: True,
    "huge": lambda _: 10**30,
    "empty": lambda _: [],
    "array": lambda _: np.array([[1, 2], [3, 4]]),
}
"""What a method answers instead, whatever its answer is."""
ARRAYS: dict[str, Callable[[Any], Any]] = {
    "longer": lambda array: np.concatenate((array, array)),
    "shorter": lambda array: array[:-1],
    "zeros": np.zeros_like,
    "outside": lambda array: array + 1_000_000,
    "below": lambda array: array - 1_000_000,
    "as_text": lambda array: array.astype(np.str_),
    "as_list": lambda array: array.tolist(),
    "wide": lambda array: np.concatenate((array, array), axis=-1),
    "double": lambda array: array.astype(np.float64),
    "elsewhere": lambda array: torch.from_numpy(array).to("meta"),
}
"""What becomes of the arrays and tensors of an answer."""
ENDLESS: dict[str, Callable[[Any], Any]] = {"endless": _endless}
FIELDS = ("object", "negative")
"""What becomes of one field of an answer: `num_tokens=negative`."""


def spoilt(fault: str, answer: Any) -> Any:
    """What comes in place of an answer."""
    if fault in ARRAYS:
        return _changed(answer, ARRAYS[fault])
    if "=" in fault:
        field, _, value = fault.partition("=")
        return _with_fields(answer, {field: SCALARS[value](None)})
    return {**SCALARS, **ENDLESS}[fault](answer)


def _changed(answer: Any, change: Callable[[Any], Any]) -> Any:
    """An answer with a change of its arrays: of its block ids alone where it has some."""
    if isinstance(answer, torch.Tensor):
        changed = change(answer.numpy())
        is_tensor = isinstance(changed, np.ndarray) and changed.dtype.kind != "U"
        return torch.from_numpy(np.ascontiguousarray(changed)) if is_tensor else changed
    if isinstance(answer, np.ndarray):
        return change(answer)
    if not dataclasses.is_dataclass(answer):
        return answer
    values = {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer)}
    names = ["block_ids"] if "block_ids" in values else values
    arrays = {name: values[name] for name in names if is_array(values[name])}
    return _with_fields(answer, {name: _changed(array, change) for name, array in arrays.items()})


def is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, torch.Tensor))


def _with_fields(answer: Any, values: dict[str, Any]) -> Any:
    if not dataclasses.is_dataclass(answer):
        return answer
    kept = {
        field.name: getattr(answer, field.name)
        for field in dataclasses.fields(answer)
        if field.init
    }
    return type(answer)(**{**kept, **values})  # type: ignore[operator]


def with_fault(sound: type, options: Any) -> type:
    """The class with one method, or property, at fault."""
    if not options.method:
        return sound
    inner, calls = inspect.getattr_static(sound, options.method), iter(range(1 << 60))

    def answer_or_fault(answer: Callable[[], Any]) -> Any:
        if next(calls) < options.after:
            return answer()
        if options.fault in RAISING:
            return RAISING[options.fault](None)
        return spoilt(options.fault, answer())

    made: Any
    if isinstance(inner, property):
        made = property(lambda self: answer_or_fault(lambda: inner.__get__(self)))
    elif callable(inner):

        def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
            return answer_or_fault(lambda: inner(self, *arguments, **keywords))

        made = method
        made.__code__ = made.__code__.replace(co_name=options.method)
        made.__signature__ = inspect.signature(inner)
    else:
        made = property(lambda self: answer_or_fault(lambda: inner), lambda self, value: None)
    return type("Faulty", (sound,), {options.method: made})
