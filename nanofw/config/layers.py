"""The layers of a configuration, lowest first: defaults, bases, file, Python, command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from nanofw.config.document import parse_value, read_file
from nanofw.config.schema import Config
from nanofw.config.source import DEFAULT, ConfigLayer, KeyPath, ValueSource, dotted, expanded, walk
from nanofw.errors import ConfigError, near

PRESETS = Path(__file__).parent / "presets"
COMMAND_LINE = ValueSource("command line")
PYTHON = ValueSource("python")

DOTTED_KEYS = (("plugins", "require"), ("plugins", "override"), ("logging", "modules"))
"""Mappings whose keys have dots: names of distributions, `KIND.NAME`, modules."""

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
    return list(_with_bases(_locate(str(config), folder or Path.cwd(), named_by), ()))


def _locate(text: str, folder: Path, named_by: ValueSource) -> tuple[Path, str]:
    """The path of a file or preset, and what messages call it."""
    if looks_like_file(text):
        try:
            path = folder / expanded(text)
            if path.exists() and not path.is_dir():  # a pipe is a file, too
                return path, text if folder == Path.cwd() else str(path)
            problem = "is a folder" if path.is_dir() else "no such file"
        except (OSError, ValueError) as error:
            path, problem = Path(text), str(getattr(error, "strerror", None) or error)
        raise _not_found(f"{problem}: {path}", named_by)
    if text in presets():
        return PRESETS / f"{text}.yaml", f"preset {text}"
    if "=" in text:
        raise _not_found(
            f"{text!r} is not of the form key=value, with a key such as engine.seed; a list is "
            f"replaced as a whole",
            named_by,
        )
    if text.startswith("-"):
        raise _not_found(f"no option {text!r}; values are given as key=value", named_by)
    if "${" in text:
        raise _not_found(f"{text!r}: bases are read before anything is interpolated", named_by)
    try:
        is_here = bool(text) and (folder / text).is_file()
    except (OSError, ValueError):
        is_here = False
    hint = f"write ./{text} for the file" if is_here else "a file's name ends in .yaml"
    raise _not_found(
        f"no preset {text!r}{near(text, presets())}; presets: {', '.join(presets())}; {hint}",
        named_by,
    )


def is_ours(source: ValueSource) -> bool:
    """Whether a value is a default of nanofw or of a preset: nobody wrote it."""
    return source == DEFAULT or source.folder == PRESETS.resolve()


def looks_like_file(text: str) -> bool:
    """Whether a name is a file's and not a preset's."""
    return text.endswith((".yaml", ".yml")) or "/" in text or "\\" in text


def _not_found(message: str, named_by: ValueSource) -> ConfigError:
    key = None if named_by in (COMMAND_LINE, PYTHON) else "base"
    return ConfigError(message, key=key, source=named_by.name, line=named_by.line)


def _with_bases(located: tuple[Path, str], above: tuple[Path, ...]) -> Iterator[ConfigLayer]:
    path, name = located
    if path.resolve() in above:
        chain = " -> ".join(str(item) for item in (*above, path.resolve()))
        raise ConfigError(f"bases go in a circle: {chain}", key="base", source=name)
    layer = read_file(path, name)
    for base, source in _bases(layer):
        located = _locate(base, path.resolve().parent, source)
        yield from _with_bases(located, (*above, path.resolve()))
    layer.data.pop("base", None)
    yield layer


def _bases(layer: ConfigLayer) -> list[tuple[str, ValueSource]]:
    value = layer.data.get("base")
    items: Any = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(items, list) or not all(isinstance(i, str) for i in cast("list[Any]", items)):
        source = layer.sources[("base",)]
        message = "should be the name of a preset or file, or a list of such"
        raise ConfigError(message, key="base", source=source.name, line=source.line)
    names = cast("list[str]", items)
    paths: list[KeyPath] = [
        ("base",) if isinstance(value, str) else ("base", i) for i in range(len(names))
    ]
    return [(name, layer.sources[path]) for name, path in zip(names, paths, strict=True)]


def python_layer(values: Mapping[str, Any]) -> ConfigLayer:
    """Values given by a caller, nested as in YAML. They mean what they say: no interpolation."""
    try:
        text = json.dumps(values, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:  # keys that are not strings, circles
        raise ConfigError(f"not plain data: {error}", source="python") from None
    data = escaped(json.loads(text))
    return ConfigLayer("python", data, {path: PYTHON for path, _ in walk(data)})


def escaped(value: Any) -> Any:
    """Plain values in which a literal `${` does not start an interpolation."""
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [escaped(item) for item in cast("list[Any]", value)]
    return value.replace("${", "\\${") if isinstance(value, str) else value


def _plain(value: Any) -> Any:
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
    data: dict[str, Any] = {}
    texts: dict[KeyPath, str] = {}
    for argument in overrides:
        path, value, text = _override(argument, named_by)
        _insert(data, path, value, named_by)
        for old in [known for known in texts if known[: len(path)] == path]:
            del texts[old]
        if text.strip() and text.strip()[0] not in "\"'[{":
            texts[path] = text
    sources = {path: named_by for path, _ in walk(data)}
    return ConfigLayer(named_by.name, data, sources, texts)


def _override(argument: str, named_by: ValueSource) -> tuple[KeyPath, Any, str]:
    match = _OVERRIDE.match(argument)
    if match is None:
        raise ConfigError(f"{argument!r} is not of the form key=value", source=named_by.name)
    path = _split(match[1])
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
            f"{text!r} cannot be read ({error.message}); quote it as YAML does",
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


def _insert(data: dict[str, Any], path: KeyPath, value: Any, named_by: ValueSource) -> None:
    for depth, part in enumerate(path[:-1], start=1):
        below: Any = data.setdefault(str(part), {})
        if not isinstance(below, dict):
            raise ConfigError(
                f"is set to a value and to keys below it: {dotted(path)}",
                key=dotted(path[:depth]),
                source=named_by.name,
            )
        data = cast("dict[str, Any]", below)
    data[str(path[-1])] = value
