"""The layers of a configuration, lowest first: defaults, bases, file, Python, command line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from nanofw.config.document import MAX_DEPTH, MAX_VALUES, parse_value, read_file
from nanofw.config.interpolation import escaped_text
from nanofw.config.schema import Config
from nanofw.config.source import (
    DEFAULT,
    ConfigLayer,
    KeyPath,
    ValueSource,
    dotted,
    expanded,
    real,
    walk,
)
from nanofw.errors import ConfigError, near, shown

PRESETS = Path(__file__).parent / "presets"
COMMAND_LINE = ValueSource("command line")
PYTHON = ValueSource("python")

DOTTED_KEYS = (("plugins", "require"), ("plugins", "override"), ("logging", "modules"))
"""Mappings whose keys have dots: names of distributions, `KIND.NAME`, modules."""

MAX_FILES = 100
"""Of a configuration, with every base as often as it is named."""
_OVERRIDE = re.compile(r"^([A-Za-z_][\w\-]*(?:\.[A-Za-z_][\w\-]*)*)=(.*)$", re.DOTALL)
_INDICATORS = ">|@%*&!`"


def presets() -> list[str]:
    """Names of the presets that ship with nanofw."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def is_override(argument: str) -> bool:
    """Whether a command line argument is a `key=value`."""
    return _OVERRIDE.match(argument) is not None


def defaults() -> ConfigLayer:
    """The lowest layer: what the schema says."""
    data = json.loads(Config().model_dump_json())
    return ConfigLayer("default", data, {path: DEFAULT for path, _ in walk(data)})


def file_layers(
    config: str | Path, named_by: ValueSource = COMMAND_LINE, folder: Path | None = None
) -> list[ConfigLayer]:
    """A file or preset and everything below it, lowest first.

    Args:
        named_by: who asks for it, for messages.
        folder: what a relative path is relative to; None: the current one.
    """
    return _Bases().layers(_locate(str(config), folder or Path.cwd(), named_by), ())


def _locate(text: str, folder: Path, named_by: ValueSource) -> tuple[Path, str]:
    """The path of a file or preset, and what messages call it."""
    if _names_model(text, folder):
        raise _not_found(
            f"{shown(text, 300)} names a model, and a configuration is wanted; for the model "
            f"write model.path={text}",
            named_by,
        )
    if looks_like_file(text):
        try:
            path = folder / expanded(text)
            if path.exists() and not path.is_dir():  # a pipe is a file, too
                return path, text if folder == Path.cwd() else str(path)
            problem = "is a folder" if path.is_dir() else "no such file"
        except (OSError, ValueError) as error:
            path, problem = Path(text), str(getattr(error, "strerror", None) or error)
        raise _not_found(f"{problem}: {shown(str(path), 300)}", named_by)
    if text in presets():
        return PRESETS / f"{text}.yaml", f"preset {text}"
    if "=" in text:
        raise _not_found(
            f"{shown(text)} is not of the form key=value, with a key such as engine.seed; a list "
            f"is replaced as a whole",
            named_by,
        )
    if text.startswith("-"):
        raise _not_found(f"no option {shown(text)}; values are given as key=value", named_by)
    if "${" in text:
        message = f"{shown(text)}: bases are read before anything is interpolated"
        raise _not_found(message, named_by)
    try:
        is_here = bool(text) and (folder / text).is_file()
    except (OSError, ValueError):
        is_here = False
    hint = f"write ./{text} for the file" if is_here else "a file's name ends in .yaml"
    raise _not_found(
        f"no preset {shown(text)}{near(text, presets())}; presets: {', '.join(presets())}; {hint}",
        named_by,
    )


def _names_model(text: str, folder: Path) -> bool:
    try:
        return text.startswith("embedded:") or (folder / expanded(text) / "config.json").is_file()
    except (OSError, ValueError):
        return False


def is_ours(source: ValueSource) -> bool:
    """Whether a value is a default of nanofw or of a preset, not one that a user wrote."""
    return source == DEFAULT or source.folder == PRESETS.resolve()


def looks_like_file(text: str) -> bool:
    """Whether a name is a file's and not a preset's."""
    return text.endswith((".yaml", ".yml")) or "/" in text or "\\" in text


def _not_found(message: str, named_by: ValueSource) -> ConfigError:
    key = None if named_by in (COMMAND_LINE, PYTHON) else "base"
    return ConfigError(message, key=key, source=named_by.name, line=named_by.line)


class _Bases:
    """Reads a file and its bases, within bounds for all of them together."""

    def __init__(self) -> None:
        self._num_files = 0
        self._num_values = 0

    def layers(self, located: tuple[Path, str], above: tuple[Path, ...]) -> list[ConfigLayer]:
        """A file's layers, lowest first.

        Args:
            above: the files that lead to it.
        """
        path, name = located
        if above and not path.is_file():
            raise ConfigError("a base must be a regular file", key="base", source=name)
        layer = read_file(path, name)
        file = real(path)
        if file in above:
            chain = " -> ".join(str(item) for item in (*above, file))
            raise ConfigError(f"bases go in a circle: {chain}", key="base", source=name)
        self._count(layer)
        found: list[ConfigLayer] = []
        for base, source in _bases(layer):
            found += self.layers(_locate(base, file.parent, source), (*above, file))
        layer.data.pop("base", None)
        return [*found, layer]

    def _count(self, layer: ConfigLayer) -> None:
        self._num_files += 1
        self._num_values += len(layer.sources)
        problem = ""
        if self._num_files > MAX_FILES:
            problem = f"more than {MAX_FILES} files are merged"
        if self._num_values > 2 * MAX_VALUES:
            problem = f"the files that are merged have more than {2 * MAX_VALUES:,} values"
        if problem:
            raise ConfigError(problem, key="base", source=layer.name)


def _bases(layer: ConfigLayer) -> list[tuple[str, ValueSource]]:
    value = layer.data.get("base")
    items: object = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(items, list) or not all(
        isinstance(i, str) for i in cast("list[object]", items)
    ):
        source = layer.sources[("base",)]
        message = "should be the name of a preset or file, or a list of such"
        raise ConfigError(message, key="base", source=source.name, line=source.line)
    names = cast("list[str]", items)
    paths: list[KeyPath] = [
        ("base",) if isinstance(value, str) else ("base", i) for i in range(len(names))
    ]
    return [(name, layer.sources[path]) for name, path in zip(names, paths, strict=True)]


def python_layer(values: Mapping[str, object]) -> ConfigLayer:
    """Values given by a caller, nested as in YAML. They mean what they say: no interpolation."""
    try:
        text = json.dumps(values, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:  # keys that are not strings, circles
        raise ConfigError(f"not plain data: {error}", source="python") from None
    data = json.loads(text)
    _check_bounds(data, PYTHON)
    return ConfigLayer(
        "python", cast("dict[str, object]", escaped(data)), {path: PYTHON for path, _ in walk(data)}
    )


def _check_bounds(data: object, source: ValueSource) -> None:
    """Hold values that did not come from a document to the bounds of one, and to text."""
    num_values = 0
    pending: list[tuple[KeyPath, object]] = [((), data)]
    while pending:
        path, value = pending.pop()
        num_values += 1
        problem = ""
        if len(path) > MAX_DEPTH:
            problem = f"nested too deeply; {MAX_DEPTH} levels are read"
        if num_values > MAX_VALUES:
            problem = f"more than {MAX_VALUES:,} values"
        if isinstance(value, str) and not _is_text(value):
            problem = "is not text in UTF-8: half of a surrogate pair"
        if problem:
            raise ConfigError(problem, key=dotted(path[:3]) or None, source=source.name)
        if isinstance(value, dict):
            for key, item in cast("dict[str, object]", value).items():
                if not _is_text(key):
                    raise ConfigError("a key is not text in UTF-8", source=source.name)
                pending.append(((*path, key), item))
        elif isinstance(value, list):
            items = cast("list[object]", value)
            pending += [((*path, index), item) for index, item in enumerate(items)]


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def escaped(value: object) -> object:
    """Plain values in which a literal `${` does not start an interpolation."""
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in cast("dict[str, object]", value).items()}
    if isinstance(value, list):
        return [escaped(item) for item in cast("list[object]", value)]
    return escaped_text(value) if isinstance(value, str) else value


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise ConfigError(f"{value!r} is not plain data", source="python")


def override_layer(overrides: Sequence[str], named_by: ValueSource = COMMAND_LINE) -> ConfigLayer:
    """All `key=value` of the command line, as one layer; of equal keys the last one counts.

    Args:
        named_by: where they were typed, for messages.
    """
    data: dict[str, object] = {}
    texts: dict[KeyPath, tuple[str, object]] = {}
    for argument in overrides:
        path, value, text = _override(argument, named_by)
        _insert(data, path, value, named_by)
        for length in range(1, len(path) + 1):
            texts.pop(path[:length], None)
        if text.strip() and text.strip()[0] not in "\"'[{":
            texts[path] = text, value
    _check_bounds(data, named_by)
    sources: dict[KeyPath, ValueSource] = {}
    typed: dict[KeyPath, str] = {}
    for path, value in walk(data):
        sources[path] = named_by
        if path in texts and texts[path][1] is value:
            typed[path] = texts[path][0]
    return ConfigLayer(named_by.name, data, sources, typed)


def _override(argument: str, named_by: ValueSource) -> tuple[KeyPath, object, str]:
    match = _OVERRIDE.match(argument)
    if match is None:
        message = f"{shown(argument)} is not of the form key=value"
        raise ConfigError(message, source=named_by.name)
    path = _split(match[1])
    if len(path) > MAX_DEPTH:
        message = f"the key has {len(path):,} parts; {MAX_DEPTH} levels are read"
        raise ConfigError(message, key=dotted(path[:3]), source=named_by.name)
    if path == ("base",):
        raise ConfigError(
            "belongs in a file; name the preset in place of one", key="base", source=named_by.name
        )
    text = match[2]
    if text == "-" or text.startswith("${") or (text and text[0] in _INDICATORS):
        return path, text, text
    try:
        return path, parse_value(text, named_by), text
    except ConfigError as error:
        raise ConfigError(
            f"{shown(text)} cannot be read ({error.message}); quote it as YAML does",
            key=match[1],
            source=named_by.name,
        ) from None


def _split(key: str) -> KeyPath:
    """A dotted key as a path; the keys of some mappings have dots of their own."""
    for prefix in DOTTED_KEYS:
        head = ".".join(prefix) + "."
        if key.startswith(head):
            return (*prefix, key.removeprefix(head))
    return tuple(key.split("."))


def _insert(data: dict[str, object], path: KeyPath, value: object, named_by: ValueSource) -> None:
    for depth, part in enumerate(path[:-1], start=1):
        below: object = data.setdefault(str(part), {})
        if not isinstance(below, dict):
            raise ConfigError(
                f"is set to a value and to keys below it: {dotted(path)}",
                key=dotted(path[:depth]),
                source=named_by.name,
            )
        data = cast("dict[str, object]", below)
    data[str(path[-1])] = value
