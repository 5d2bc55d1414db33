"""YAML with positions: plain values, and the line of every key.

Scalars are read by YAML 1.2's core schema, with underscores in numbers as Python allows them:
`1e-3` is a number, `1_000` is 1000, `0o10` is 8; `off`, `yes` and `12:30` are strings, so that a
field that wants a boolean or a number refuses them instead of guessing. A key that occurs twice
in a mapping is an error.
"""

from __future__ import annotations

import os
import re
import select
import stat
from pathlib import Path
from typing import Any, ClassVar, cast

import yaml

from nanofw.config.source import ConfigLayer, KeyPath, ValueSource, dotted, real
from nanofw.errors import ConfigError, shown

MAX_BYTES = 4 << 20
"""Of a document. Long texts belong into files of their own."""
MAX_DEPTH = 60
"""The deepest nesting of mappings and lists; no real configuration comes close."""
MAX_VALUES = 100_000
"""The most values in one document, with everything that aliases repeat."""
MAX_DIGITS = 400
"""The most digits of an integer."""
WAIT_S = 60.0
"""So long a pipe is waited for."""

_TOO_DEEP = f"nested too deeply; {MAX_DEPTH} levels are read"
_TOO_MANY = f"more than {MAX_VALUES:,} values"
_TAG = "tag:yaml.org,2002:"
_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_INT = re.compile(
    r"^[-+]?(?:0b[01]+(?:_[01]+)*|0o[0-7]+(?:_[0-7]+)*|0x[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*"
    r"|[0-9]+(?:_[0-9]+)*)$"
)
_FLOAT = re.compile(
    r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)


class _Loader(yaml.SafeLoader):
    """PyYAML's parser with the scalar rules above in place of YAML 1.1's, and a bound."""

    yaml_implicit_resolvers: ClassVar[dict[str, object]] = {}  # pyright: ignore[reportIncompatibleVariableOverride]
    num_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node; keys are nodes, too."""
        self.num_nodes += 1
        if self.num_nodes > 2 * MAX_VALUES:
            mark = cast("Any", self).peek_event().start_mark
            raise yaml.MarkedYAMLError(problem=_TOO_MANY, problem_mark=mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """PyYAML's emitter, which quotes what the scalar rules above would read as something else."""

    yaml_implicit_resolvers: ClassVar[dict[str, object]] = {}  # pyright: ignore[reportIncompatibleVariableOverride]


for _tag, _pattern, _first in [
    ("null", _NULL, ["~", "n", "N", ""]),
    ("bool", _BOOL, list("tTfF")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("merge", re.compile("^<<$"), ["<"]),
]:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _tag, _pattern, _first)  # pyright: ignore[reportUnknownMemberType]


def read_file(path: Path, name: str | None = None) -> ConfigLayer:
    """Parse a YAML file. Raises `ConfigError` with its line."""
    name = name or str(path)
    try:
        text = read_text(path, MAX_BYTES)
        folder = real(path).parent
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8: {error.reason}", source=name) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", source=name) from None
    except ValueError as error:
        raise ConfigError(f"cannot be read: {error}", source=name) from None
    return parse(text, ValueSource(name, folder=folder))


def read_text(path: Path, max_bytes: int) -> str:
    """The text of a file or a pipe.

    Raises:
        ValueError: it is longer, or not UTF-8, or a pipe without a writer.
        OSError: it cannot be read.
    """
    if stat.S_ISFIFO(path.stat().st_mode):
        data = _read_pipe(path, max_bytes)
    else:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes:,} bytes")
    return data.decode("utf-8")


def _read_pipe(path: Path, max_bytes: int) -> bytes:
    """What is written to a pipe until its writer closes it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        data = b""
        while len(data) <= max_bytes:
            if not select.select([descriptor], [], [], WAIT_S)[0]:
                raise ValueError(f"nothing was written to the pipe for {WAIT_S:.0f} seconds")
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                break
            data += chunk
        return data
    finally:
        os.close(descriptor)


def parse(text: str, source: ValueSource) -> ConfigLayer:
    """Parse a YAML mapping; lines are put into copies of `source`."""
    reader = _Reader(text, source)
    data = reader.document()
    if data is None:
        return ConfigLayer(source.name, {}, {})
    if not isinstance(data, dict):
        raise ConfigError("must be a mapping of sections", source=source.name, line=1)
    return ConfigLayer(source.name, cast("dict[str, object]", data), reader.sources)


def dump(value: object) -> str:
    """Plain values as YAML that `parse` reads back."""
    text: str = yaml.dump(  # pyright: ignore[reportUnknownMemberType]
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=100,
    )
    return text


def parse_value(text: str, source: ValueSource) -> object:
    """Parse one value of any kind, for example the right-hand side of a `key=value`.

    Text that is a plain scalar and not a number, boolean or null stands for itself, with all its
    spaces, line ends and ` #`: a command line has neither comments nor folded lines.
    """
    plain = text.strip()
    if parse_scalar(plain) != plain:
        return parse_scalar(plain)
    if _INT.match(plain):
        raise ConfigError(_too_long(plain), source=source.name, line=source.line)
    reader = _Reader(text, source)
    if isinstance(reader.root, yaml.ScalarNode) and reader.root.style is None:
        return text
    return reader.document()


def parse_scalar(text: str) -> object:
    """What a plain scalar stands for; other text, and a number of too many digits, for itself."""
    for pattern, tag in ((_NULL, "null"), (_BOOL, "bool"), (_INT, "int"), (_FLOAT, "float")):
        if pattern.match(text):
            return text if tag == "int" and len(text) > MAX_DIGITS else _convert(tag, text)
    return text


def _too_long(text: str) -> str:
    size = f"it has {len(text):,} characters, and at most {MAX_DIGITS} are read"
    return f"{shown(text, 60)} is not a int: {size}"


class _Reader:
    """One document: its nodes turned into values, and the sources of their keys."""

    def __init__(self, text: str, source: ValueSource) -> None:
        self._source = source
        self.sources: dict[KeyPath, ValueSource] = {}
        self._open: set[int] = set()
        self._merged: set[int] = set()
        """Mappings whose merge keys are replaced already: an alias leads to them again."""
        self._num_values = 0
        self._check_characters(text)
        try:
            self._loader = _Loader(text)
            self.root: yaml.Node | None = self._loader.get_single_node()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else None
            parts = [part for part in (error.context, error.problem) if part]
            raise self._error(", ".join(parts) or str(error), (), line) from None
        except yaml.YAMLError as error:
            raise self._error(str(error), (), None) from None
        except RecursionError:
            raise self._error(_TOO_DEEP, (), None) from None

    def document(self) -> object:
        """The plain value of the whole document; None when it is empty."""
        return None if self.root is None else self.value(self.root, ())

    def value(self, node: yaml.Node, path: KeyPath) -> object:
        """The plain value of a node."""
        if id(node) in self._open:
            raise self._error("an alias contains itself", path, node)
        if len(path) > MAX_DEPTH:
            raise self._error(_TOO_DEEP, path[:3], node)
        self._count(1, path, node)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return self._sequence(node, path)
            return self._scalar(cast("yaml.ScalarNode", node), path)
        finally:
            self._open.discard(id(node))

    def _count(self, num_values: int, path: KeyPath, node: yaml.Node) -> None:
        self._num_values += num_values
        if self._num_values > MAX_VALUES:
            raise self._error(f"{_TOO_MANY}; aliases multiply", path[:1], node)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        self._check_tag(node, "map", path)
        if id(node) not in self._merged:
            self._check_keys(node, path)
            self._merge(node, path)
        found: dict[str, object] = {}
        for key, value in node.value:
            here = (*path, str(key.value))
            self._place(here, key)
            found[str(key.value)] = self.value(value, here)
        return found

    def _merge(self, node: yaml.MappingNode, path: KeyPath) -> None:
        """Put the pairs that merge keys stand for before the mapping's own, which win."""
        self._merged.add(id(node))
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        own: list[tuple[yaml.Node, yaml.Node]] = []
        for key, value in node.value:
            if key.tag != _TAG + "merge":
                own.append((key, value))
                continue
            is_list = isinstance(value, yaml.SequenceNode)
            for item in reversed(value.value) if is_list else [value]:
                pairs = self._merged_pairs(item, key, path)
                self._count(len(pairs), path, key)
                merged |= {pair[0].value: pair for pair in pairs}
        names = {key.value for key, _ in own}
        node.value = [pair for name, pair in merged.items() if name not in names] + own

    def _merged_pairs(
        self, node: yaml.Node, at: yaml.Node, path: KeyPath
    ) -> list[tuple[yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise self._error("<< takes a mapping, or a list of mappings", path, at)
        if id(node) in self._open:
            raise self._error("an alias contains itself", path, at)
        self._open.add(id(node))
        try:
            if id(node) not in self._merged:
                self._check_keys(node, path)
                self._merge(node, path)
        finally:
            self._open.discard(id(node))
        return list(node.value)

    def _check_characters(self, text: str) -> None:
        """Refuse what YAML does not allow in a text, with its line."""
        found = yaml.reader.Reader.NON_PRINTABLE.search(text)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if found:
            line = text.count("\n", 0, found.start()) + 1
            code = f"U+{ord(found[0]):04X}"
            raise self._error(f"holds the character {code}, which YAML does not allow", (), line)

    def _check_keys(self, node: yaml.MappingNode, path: KeyPath) -> None:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in (
                _TAG + "str",
                _TAG + "merge",
            ):
                what = shown(key.value) if isinstance(key, yaml.ScalarNode) else "a collection"
                raise self._error(f"the key {what} is not a string; quote it", path, key)
            line = key.start_mark.line + 1
            if key.value in seen:
                message = f"occurs twice; first in line {seen[key.value]}"
                raise self._error(message, (*path, key.value), key)
            seen[key.value] = line

    def _sequence(self, node: yaml.SequenceNode, path: KeyPath) -> list[object]:
        self._check_tag(node, "seq", path)
        found: list[object] = []
        for index, item in enumerate(node.value):
            self._place((*path, index), item)
            found.append(self.value(item, (*path, index)))
        return found

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> object:
        tag = node.tag.removeprefix(_TAG)
        try:
            value = _convert(tag, node.value)
            if isinstance(value, str):
                value.encode()  # a lone surrogate cannot be encoded
            return value
        except KeyError:
            raise self._error(f"the tag {node.tag} is not supported", path, node) from None
        except ValueError:
            is_long = tag == "int" and len(node.value) > MAX_DIGITS
            message = _too_long(node.value) if is_long else f"{shown(node.value)} is not a {tag}"
            raise self._error(message, path, node) from None

    def _check_tag(self, node: yaml.Node, tag: str, path: KeyPath) -> None:
        if node.tag != _TAG + tag:
            raise self._error(f"the tag {node.tag} is not supported", path, node)

    def _place(self, path: KeyPath, node: yaml.Node) -> None:
        line = node.start_mark.line + 1
        self.sources[path] = ValueSource(self._source.name, line, self._source.folder)

    def _error(self, message: str, path: KeyPath, at: yaml.Node | int | None) -> ConfigError:
        line = at.start_mark.line + 1 if isinstance(at, yaml.Node) else at
        return ConfigError(message, key=dotted(path) or None, source=self._source.name, line=line)


def _convert(tag: str, text: str) -> object:
    """Text of a core-schema scalar. Raises ValueError, or KeyError for another tag."""
    if tag == "str":
        return text
    if tag == "null":
        return None
    if tag == "bool":
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if tag == "int":
        if len(text) > MAX_DIGITS:
            raise ValueError(text)
        prefixed = text.lstrip("-+")[:2].lower() in ("0x", "0o", "0b")
        return int(text, 0 if prefixed else 10)
    if tag == "float":
        special = text.lower().lstrip("-+") in (".inf", ".nan")
        return float(text.replace(".", "") if special else text)
    raise KeyError(tag)
