"""Jinja for chat templates: a sandbox in which a template ends, and stays within its memory."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from nanofw.narrowing import is_list

MAX_SECONDS = 10.0
"""Most time for one conversation; what is common takes less than a millisecond."""

MAX_CHARACTERS = 1 << 26
"""Of all that a template writes, and of each text or list that it makes."""

MAX_BITS = 1 << 16
"""Of each number that a template computes."""

WIDTH_FILTERS = ("batch", "center", "indent", "slice", "truncate", "wordwrap")
"""Filters whose results grow with a number that they are given."""

_DEADLINE: ContextVar[float] = ContextVar("deadline", default=float("inf"))
_WRITTEN: ContextVar[list[int]] = ContextVar("written")
_WIDTHS = re.compile(r"\d{7,}")
"""Digits of a width or precision in a format that alone would pass the bound."""


class TemplateTooLarge(jinja2.TemplateError):
    """A template takes more time or memory than any conversation needs."""


def compile_template(source: str) -> jinja2.Template:
    """A template whose runs are each bounded by `MAX_SECONDS` and `MAX_CHARACTERS`.

    Raises:
        jinja2.TemplateSyntaxError: the source is wrong.
        SyntaxError, RecursionError, ValueError: no code can be made of it.
    """
    environment = make_environment()
    tree = _Bounds().visit(environment.parse(source))
    code = environment.compile(tree)
    return jinja2.Template.from_code(environment, code, environment.make_globals(None))


def render_template(template: jinja2.Template, variables: Mapping[str, object]) -> str:
    """The text of a template. It may raise anything, as a template is a program."""
    deadline = _DEADLINE.set(time.monotonic() + MAX_SECONDS)
    written = _WRITTEN.set([0])
    try:
        return template.render(variables)
    finally:
        _DEADLINE.reset(deadline)
        _WRITTEN.reset(written)


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model said; here it changes nothing."""

    tags: set[str] = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_same")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _same(self, caller: Callable[[], str]) -> str:
        return caller()


class _Bounds(NodeTransformer):
    """Puts a bound around what Jinja does not let us intercept: loops, texts joined by `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_bounded", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "_joined", [], [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, in which calls and operators that make texts are bounded, too."""

    filters: dict[str, Callable[..., object]]
    globals: dict[str, Callable[..., object]]
    intercepted_binops: frozenset[str] = frozenset({"+", "*", "**", "%"})

    def call(self, context: Context, obj: object, *args: object, **kwargs: object) -> object:
        _check_time()
        _check_call(obj, args, kwargs)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        _check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)


def make_environment() -> _Environment:
    """The environment in which templates are parsed and compiled."""
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, loopcontrols],
        finalize=_written,
    )
    for name in (*WIDTH_FILTERS, "format", "join", "replace"):
        environment.filters[name] = _bounded_filter(name, environment.filters[name])
    environment.filters |= {"tojson": _to_json, "_bounded": _bounded, "_joined": _joined}
    environment.globals.update(raise_exception=_raise, strftime_now=_now)
    del environment.globals["lipsum"]
    return environment


def _check_time() -> None:
    if time.monotonic() > _DEADLINE.get():
        raise TemplateTooLarge(f"it takes more than {MAX_SECONDS:g} s")


def _check_size(size: float) -> None:
    if size > MAX_CHARACTERS:
        raise TemplateTooLarge(f"it makes more than {MAX_CHARACTERS} characters")


def _bounded(items: Iterable[object]) -> Iterable[object]:
    """What a loop goes over; values that have a length keep it for `loop.length`."""
    if isinstance(items, Undefined) or hasattr(items, "__len__"):
        return _Timed(items)
    return _timed(items)


class _Timed:
    """Items with a length."""

    def __init__(self, items: Iterable[object]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[object]:
        return _timed(self._items)


def _timed(items: Iterable[object]) -> Iterator[object]:
    for item in items:
        _check_time()
        yield item


def _written(value: object) -> object:
    """Jinja passes each expression through here before it is written."""
    counted = _WRITTEN.get([0])
    counted[0] += len(value) if isinstance(value, str) else 1
    _check_size(counted[0])
    _check_time()
    return value


def _joined(parts: list[object]) -> str:
    texts = [str(part) for part in parts]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _check_operation(operator: str, left: object, right: object) -> None:
    sizes = _num_items(left), _num_items(right)
    match operator, left, right:
        case "+", _, _:
            _check_size(sum(sizes))
        case "*", int(), int():
            _check_bits(left.bit_length() + right.bit_length())
        case "*", _, int():
            _check_size(sizes[0] * right)
        case "*", int(), _:
            _check_size(left * sizes[1])
        case "**", int(), int():
            _check_bits(left.bit_length() * right)
        case "%", str(), _:
            _check_format(left)
        case _:
            return


def _num_items(value: object) -> int:
    """Length of a text or a list; 0 for anything else."""
    return len(value) if isinstance(value, str) or is_list(value) else 0


def _check_bits(count: int) -> None:
    if count > MAX_BITS:
        raise TemplateTooLarge(f"it computes a number of more than {MAX_BITS} bits")


def _check_format(text: str) -> None:
    if _WIDTHS.search(text):
        raise TemplateTooLarge("it formats a text with a width of millions")


def _check_call(function: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """Bound the texts that methods of texts make of small arguments."""
    function = getattr(function, "__wrapped__", function)  # the sandbox wraps `str.format`
    receiver = getattr(function, "__self__", None)
    if isinstance(receiver, str):
        _check_numbers((*args, *kwargs.values()))
        _check_text_method(getattr(function, "__name__", ""), receiver, args)


def _check_text_method(name: str, text: str, args: tuple[object, ...]) -> None:
    match name, args:
        case "replace", (str() as old, str() as new, *_):
            _check_size(len(text) + text.count(old) * len(new))
        case "join", (items, *_) if is_list(items):
            _check_size(sum(len(text) + len(str(item)) for item in items))
        case "format" | "format_map", _:
            _check_format(text)
        case _:
            return


def _check_numbers(values: Iterable[object]) -> None:
    for value in values:
        if isinstance(value, int):
            _check_size(value)


def _bounded_filter(name: str, function: Callable[..., object]) -> Callable[..., object]:
    """One of Jinja's own filters that cannot fill the memory."""

    @wraps(function)  # takes over that Jinja passes its context first
    def bounded(*args: object, **kwargs: object) -> object:
        given = args[1:] if hasattr(function, "jinja_pass_arg") else args
        _check_numbers((*given[1:], *kwargs.values()))
        match name, given[0]:
            case "join", items if is_list(items):
                separator = (*given[1:], *kwargs.values(), "")[0]
                _check_text_method(name, str(separator), (items,))
            case "replace" | "format", str() as text:
                _check_text_method(name, text, given[1:])
            case _:
                pass
        return function(*args, **kwargs)

    return bounded


def _now(layout: str) -> str:
    _check_format(layout)
    return datetime.now().strftime(layout)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, which Jinja's own filter would put in."""
    _check_numbers((indent,))
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
