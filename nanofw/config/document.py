"""YAML with positions: plain values, and the line of every key.

Scalars are read by YAML 1.2's core schema, with underscores in numbers as Python allows them:
`1e-3` is a number, `1_000` is 1000, `0o10` is 8; `off`, `yes` and `12:30` are strings, so that a
field that wants a boolean or a number refuses them instead of guessing. A key that occurs twice
in a mapping is an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, cast

import yaml

from nanofw.config.source import ConfigLayer, KeyPath, ValueSource, dotted
from nanofw.errors import ConfigError

MAX_DEPTH = 60
"""The deepest nesting of mappings and lists; no real configuration comes close."""
MAX_VALUES = 1_000_000
"""The most values in one document, with everything that aliases repeat."""
MAX_DIGITS = 400
"""The most digits of an integer."""

_TOO_DEEP = f"nested too deeply; {MAX_DEPTH} levels are read"
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
    """PyYAML's parser with the scalar rules above in place of YAML 1.1's."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # pyright: ignore[reportIncompatibleVariableOverride]


class _Dumper(yaml.SafeDumper):
    """PyYAML's emitter, which quotes what the scalar rules above would read as something else."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # pyright: ignore[reportIncompatibleVariableOverride]


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
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8: {error}", source=name) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", source=name) from None
    return parse(text, ValueSource(name, folder=path.resolve().parent))


def parse(text: str, source: ValueSource) -> ConfigLayer:
    """Parse a YAML mapping; lines are put into copies of `source`."""
    reader = _Reader(text, source)
    data = reader.document()
    if data is None:
        return ConfigLayer(source.name, {}, {})
    if not isinstance(data, dict):
        raise ConfigError("must be a mapping of sections", source=source.name, line=1)
    return ConfigLayer(source.name, cast("dict[str, Any]", data), reader.sources)


def dump(value: Any) -> str:
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


def parse_value(text: str, source: ValueSource) -> Any:
    """Parse one value of any kind, for example the right-hand side of a `key=value`.

    Text that is a plain scalar and not a number, boolean or null stands for itself, with all its
    spaces, line ends and ` #`: a command line has neither comments nor folded lines.
    """
    if parse_scalar(text.strip()) != text.strip():
        return parse_scalar(text.strip())
    reader = _Reader(text, source)
    if isinstance(reader.root, yaml.ScalarNode) and reader.root.style is None:
        return text
    return reader.document()


def parse_scalar(text: str) -> Any:
    """What a plain scalar stands for; other text stands for itself."""
    for pattern, tag in ((_NULL, "null"), (_BOOL, "bool"), (_INT, "int"), (_FLOAT, "float")):
        if pattern.match(text):
            return _convert(tag, text)
    return text


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

    def document(self) -> Any:
        """The plain value of the whole document; None when it is empty."""
        return None if self.root is None else self.value(self.root, ())

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        """The plain value of a node."""
        if id(node) in self._open:
            raise self._error("an alias contains itself", path, node)
        if len(path) > MAX_DEPTH:
            raise self._error(_TOO_DEEP, path[:3], node)
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise self._error(f"more than {MAX_VALUES:,} values; aliases multiply", path[:1], node)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return self._sequence(node, path)
            return self._scalar(cast("yaml.ScalarNode", node), path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        self._check_tag(node, "map", path)
        if id(node) not in self._merged:
            self._check_keys(node, path)
            self._merge(node, path)
        found: dict[str, Any] = {}
        for key, value in node.value:
            here = (*path, str(key.value))
            self._place(here, key)
            found[str(key.value)] = self.value(value, here)
        return found

    def _merge(self, node: yaml.MappingNode, path: KeyPath) -> None:
        """Put the pairs that merge keys stand for before the mapping's own, which win."""
        self._merged.add(id(node))
        merged: list[tuple[yaml.Node, yaml.Node]] = []
        own: list[tuple[yaml.Node, yaml.Node]] = []
        for key, value in node.value:
            if key.tag != _TAG + "merge":
                own.append((key, value))
                continue
            is_list = isinstance(value, yaml.SequenceNode)
            for item in reversed(value.value) if is_list else [value]:
                merged += self._merged_pairs(item, key, path)
        node.value = merged + own

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
                what = repr(key.value) if isinstance(key, yaml.ScalarNode) else "a collection"
                raise self._error(f"the key {what} is not a string; quote it", path, key)
            line = key.start_mark.line + 1
            if key.value in seen:
                message = f"occurs twice; first in line {seen[key.value]}"
                raise self._error(message, (*path, key.value), key)
            seen[key.value] = line

    def _sequence(self, node: yaml.SequenceNode, path: KeyPath) -> list[Any]:
        self._check_tag(node, "seq", path)
        found: list[Any] = []
        for index, item in enumerate(node.value):
            self._place((*path, index), item)
            found.append(self.value(item, (*path, index)))
        return found

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        tag = node.tag.removeprefix(_TAG)
        try:
            value = _convert(tag, node.value)
            if isinstance(value, str):
                value.encode()  # a lone surrogate cannot be encoded
            return value
        except KeyError:
            raise self._error(f"the tag {node.tag} is not supported", path, node) from None
        except ValueError:
            shown = repr(node.value) if len(node.value) < 60 else f"'{node.value[:40]}...'"
            raise self._error(f"{shown} is not a {tag}", path, node) from None

    def _check_tag(self, node: yaml.Node, tag: str, path: KeyPath) -> None:
        if node.tag != _TAG + tag:
            raise self._error(f"the tag {node.tag} is not supported", path, node)

    def _place(self, path: KeyPath, node: yaml.Node) -> None:
        line = node.start_mark.line + 1
        self.sources[path] = ValueSource(self._source.name, line, self._source.folder)

    def _error(self, message: str, path: KeyPath, at: yaml.Node | int | None) -> ConfigError:
        line = at.start_mark.line + 1 if isinstance(at, yaml.Node) else at
        return ConfigError(message, key=dotted(path) or None, source=self._source.name, line=line)


def _convert(tag: str, text: str) -> Any:
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
