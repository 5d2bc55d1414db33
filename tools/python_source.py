"""Files of Python as `structure.py` sees them: parsed, never imported."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import resolve_name
from pathlib import Path

Def = ast.FunctionDef | ast.AsyncFunctionDef
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class Module:
    """A file: its path below the checkout and its text. Its name is that of a Python module."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def package(self) -> str:
        return self.name if self.path.endswith("/__init__.py") else self.name.rpartition(".")[0]

    @property
    def num_lines(self) -> int:
        return len(self.text.splitlines())

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @property
    def functions(self) -> list[Def]:
        return [node for node in self.nodes if isinstance(node, Def)]

    @property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def strings(self) -> list[str]:
        """The values of all string literals."""
        return [text for node in self.nodes if (text := _text(node)) is not None]

    @cached_property
    def docstrings(self) -> list[str]:
        """Strings that are statements: of modules, classes, functions and fields."""
        values = [node.value for node in self.nodes if isinstance(node, ast.Expr)]
        return [text for value in values if (text := _text(value)) is not None]

    @property
    def comments(self) -> list[str]:
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [token.string for token in tokens if token.type == tokenize.COMMENT]

    def at(self, node: Def | ast.ClassDef, value: object = "") -> str:
        """The place of a definition, with a value that says more about it."""
        return f"{self.path}:{node.lineno} {node.name} {value}".rstrip()


def read(root: Path, paths: Iterable[Path]) -> list[Module]:
    """The files as modules, in the order of their paths."""
    return [
        Module(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(paths)
    ]


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def dotted(node: ast.AST) -> str:
    """`a` or `a.b`; empty for other expressions."""
    match node:
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
        case ast.Name(id=name):
            return name
        case _:
            return ""


def num_lines(node: Def) -> int:
    """Lines from `def` to the end, without decorators."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def num_parameters(node: Def) -> int:
    """Parameters with `*args` and `**kwargs`, without `self` and `cls`."""
    rest = [node.args.vararg, node.args.kwarg]
    positional = [*node.args.posonlyargs, *node.args.args]
    is_bound = bool(positional) and positional[0].arg in ("self", "cls")
    num_rest = sum(item is not None for item in rest)
    return len(positional) + len(node.args.kwonlyargs) + num_rest - is_bound


@cache
def split(name: str) -> str:
    """The words of an identifier with underscores between them: `Camel_Case`."""
    return CAMEL.sub("_", name)


def identifiers(module: Module) -> Iterator[str]:
    """Every name in the code, and that of the file; attributes start with a dot."""
    yield module.name.rpartition(".")[2]
    for node in module.nodes:
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name
            case ast.Attribute(attr=name):
                yield f".{name}"
            case ast.alias(name=name, asname=other):
                yield from filter(None, (name.rpartition(".")[2], other))
            case _:
                pass


def imported(module: Module, names: set[str], inside: bool) -> set[str]:
    """Those of the named modules that a file imports; `inside`: also where a function does."""
    found: set[str | None] = set()
    for node in _import_statements(module.tree.body, inside):
        base = ""
        if isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), module.package) + "."
        found |= {longest(base + alias.name, names) for alias in node.names}
    return {name for name in found if name is not None}


def _import_statements(
    nodes: Iterable[ast.AST], inside: bool
) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run, so none for type checkers alone."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING"):
            yield from _import_statements(node.orelse, inside)
        elif inside or not isinstance(node, Def):
            yield from _import_statements(ast.iter_child_nodes(node), inside)


def longest(name: str, names: set[str]) -> str | None:
    """The module to which a dotted name leads."""
    while name and name not in names:
        name = name.rpartition(".")[0]
    return name or None


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected components with more than one node."""
    reached = {name: _reachable(graph, name) for name in graph}
    found: list[set[str]] = []
    for name in graph:
        circle = {other for other in reached[name] if name in reached[other]}
        if len(circle) > 1 and circle not in found:
            found.append(circle)
    return found


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen
