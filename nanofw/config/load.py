"""From YAML, presets and `key=value` to one validated `Config`.

Layers are merged before interpolations are resolved, and validated after: a value that refers
to another follows what the highest layer sets.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pydantic import BaseModel

import nanofw
from nanofw.config.document import parse_scalar
from nanofw.config.interpolation import (
    InterpolationError,
    has_interpolation,
    resolved,
    resolved_text,
)
from nanofw.config.layers import (
    COMMAND_LINE,
    defaults,
    file_layers,
    override_layer,
    python_layer,
)
from nanofw.config.merge import Dropped, merge
from nanofw.config.messages import unknown_key
from nanofw.config.schema import Config, ModelSection
from nanofw.config.source import ConfigLayer, KeyPath, ValueSource, dotted, expanded, walk
from nanofw.config.validation import M, Values, validate
from nanofw.engine.request_checks import by_token_id, check_sampling
from nanofw.errors import ConfigError, near, shown

ANY_VOCABULARY = 1 << 31
"""Token ids are held to the model's vocabulary later, when there is a model."""
DEFAULT_PRESET = "qwen3-demo"
"""What the command line runs when no configuration is named."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and where it came from. Nothing writes to it.

    Attributes:
        config: the validated configuration; components' options are raw.
        values: the plain values behind it, with the source of each.
        dropped: options that were dropped because a higher layer chose another component.
    """

    config: Config
    values: Values
    dropped: tuple[Dropped, ...] = ()

    def options(
        self, section: KeyPath, raw: Mapping[str, object], model: type[M] | None
    ) -> M | None:
        """Validate a component's options. Raises `ConfigError` with key, file and line."""
        if model is not None:
            return validate(model, dict(raw), self.values, section)
        if raw:
            keys = ", ".join(raw)
            hint = "".join(near(key, ("name",)) for key in raw)
            raise self.error(f"the component has no options, {keys} cannot be set{hint}", section)
        return None

    def error(self, message: str, path: KeyPath) -> ConfigError:
        """An error about a key, with its place."""
        return self.values.error(message, path)

    def placed(self, error: ConfigError) -> ConfigError:
        """The error with its place, when it knows only its key."""
        if error.source is not None or error.key is None:
            return error
        path = _split(error.key, self.values.data)
        source = self.values.source(path)
        return ConfigError(error.message, key=error.key, source=source.name, line=source.line)


def load_config(
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    values: Mapping[str, object] | None = None,
    named_by: ValueSource = COMMAND_LINE,
) -> LoadedConfig:
    """Read, merge, interpolate and validate.

    Args:
        config: a YAML file or a preset's name; None: the defaults alone.
        overrides: `key=value` strings, the highest layer.
        values: nested plain values, above the file and below the overrides.
        named_by: where `config` and `overrides` were written, for messages.

    Raises:
        ConfigError: with key, file and line.
    """
    layers = [defaults()]
    if config is not None:
        layers += file_layers(config, named_by)
    if values:
        layers.append(python_layer(values))
    if overrides:
        layers.append(override_layer(overrides, named_by))
    return resolve(layers)


def resolve(layers: Sequence[ConfigLayer]) -> LoadedConfig:
    """Merge layers, lowest first, and validate the result."""
    merged = merge(layers, resolved_text)
    data = interpolate(merged.data, merged.sources)
    values = _values(merged.data, data, merged.sources, merged.texts)
    made = validate(Config, data, values)
    _check_sampling(made, values)
    _check_model(made, values)
    _check_texts(made, values)
    _check_modules(made, values)
    return LoadedConfig(_with_model_path(made, values), values, tuple(merged.dropped))


def _check_sampling(config: Config, values: Values) -> None:
    """Reject sampling defaults that would make every request invalid."""
    try:
        words = tuple(word for word in config.sampling.bad_words if not isinstance(word, str))
        sampling = dataclasses.replace(config.sampling, bad_words=words)
        if sampling.logit_bias:  # its keys as they were written
            written = _get(values.data, ("sampling", "logit_bias"))
            biases = by_token_id(cast("Mapping[object, object]", written))
            sampling = dataclasses.replace(sampling, logit_bias=biases)
        check_sampling(sampling, ANY_VOCABULARY)
    except ValueError as error:
        key = str(error).partition(" ")[0]
        path: KeyPath = ("sampling", key) if hasattr(config.sampling, key) else ("sampling",)
        raise values.error(str(error), path) from None


def _check_model(config: Config, values: Values) -> None:
    """Options of a model need its name: without one, another key is a slip."""
    if config.model.name is None:
        for key in config.model.options:
            known = sorted(type(config.model).model_fields)
            raise values.error(unknown_key(key, known), ("model", key))


def _check_texts(config: Config, values: Values) -> None:
    """Reject texts of sampling that no output can have."""
    stop, words = config.sampling.stop, config.sampling.bad_words
    listed = [stop] if isinstance(stop, str) else stop
    for key, texts in (("stop", listed), ("bad_words", words)):
        for index, text in enumerate(texts):
            if text == "":
                path = ("sampling", key) if text is stop else ("sampling", key, index)
                raise values.error("is an empty text", path)


def _check_modules(config: Config, values: Values) -> None:
    """Reject levels of modules that do not exist: they would change nothing."""
    for name in config.logging.modules:
        if not _is_module(name):
            message = "there is no such module; write it as in nanofw.engine.scheduler"
            raise values.error(message, ("logging", "modules", name))


def _is_module(name: str) -> bool:
    """Whether there is a module; of other packages than nanofw only the package is looked for."""
    first, *rest = name.split(".")
    if not all(part.isidentifier() for part in (first, *rest)) or len(name) > 200:
        return False
    if first != "nanofw":
        try:
            return first in sys.modules or importlib.util.find_spec(first) is not None
        except (ImportError, ValueError):
            return False
    path = Path(nanofw.__file__).parent.joinpath(*rest)
    return path.is_dir() or path.with_suffix(".py").is_file()


def interpolate(
    data: dict[str, object], sources: Mapping[KeyPath, ValueSource]
) -> dict[str, object]:
    """The data with every `${...}` resolved, unless a backslash stands before it."""
    if not any(has_interpolation(value) for _, value in walk(data)):
        return copy.deepcopy(data)
    try:
        return cast("dict[str, object]", resolved(data))
    except InterpolationError as error:
        message = str(error)
        if error.written:
            message = (
                f"{shown(error.written)} cannot be resolved: {message}; a literal is written \\${{"
            )
        raise Values(data, sources, {}, {}).error(message, error.path) from None


def _values(
    written: dict[str, object],
    data: dict[str, object],
    sources: Mapping[KeyPath, ValueSource],
    texts: Mapping[KeyPath, str],
) -> Values:
    """Note which values are text by nature, and how else each could be read."""
    alternatives: dict[KeyPath, object] = {}
    interpolated: dict[KeyPath, str] = {}
    for path, raw in walk(written):
        value = _get(data, path)
        if isinstance(raw, str) and "${" in raw and raw != value:
            interpolated[path] = raw
            if isinstance(value, str) and parse_scalar(value) != value:
                alternatives[path] = parse_scalar(value)
        elif path in texts and texts[path] != value:
            alternatives[path] = texts[path]
    return Values(data, sources, alternatives, interpolated)


def _with_model_path(config: Config, values: Values) -> Config:
    """`model.path` relative to the file that names it, when it is a folder and not a hub id."""
    path = config.model.path
    if path is None or path.startswith("embedded:"):
        return config
    folder = values.source(("model", "path")).folder or Path.cwd()
    try:
        local = folder / expanded(path)
    except ValueError as error:
        raise values.error(str(error), ("model", "path")) from None
    if not (local.is_dir() or path.startswith((".", "/", "~"))):
        return config
    model: ModelSection = config.model.model_copy(update={"path": str(local)})
    return config.model_copy(update={"model": model})


def _get(data: object, path: KeyPath) -> object:
    for part in path:
        try:
            data = cast("dict[str | int, object]", data)[part]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _split(key: str, data: object) -> KeyPath:
    """The path of a dotted key: among the keys that exist, else cut at the dots."""
    for path, _ in walk(data):
        if dotted(path) == key:
            return path
    return tuple(key.split("."))


def plain(config: BaseModel) -> dict[str, object]:
    """A configuration as nested plain values, for printing and for records."""
    return config.model_dump(mode="json")
