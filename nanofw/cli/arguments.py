"""What commands share: a configuration, `key=value` pairs, and settings of their own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from nanofw.cli.stdout import claim

if TYPE_CHECKING:
    from nanofw.config.load import LoadedConfig
    from nanofw.config.schema import Section
    from nanofw.config.validation import Values
    from nanofw.plugins import Registry

M = TypeVar("M", bound="Section")
CONFIG_WORDS = "[CONFIG] [KEY=VALUE ...]"
CONFIG_HELP = "a YAML file or a preset's name (default: the preset qwen3-demo), then KEY=VALUE"


def add_config(parser: argparse.ArgumentParser) -> None:
    """Let a parser take `[CONFIG] [key=value ...]`. Parse with `parse_intermixed_args`."""
    parser.usage = f"{parser.prog} {CONFIG_WORDS} [OPTIONS]"
    # with a default, or argparse counts it among the arguments that are required
    parser.add_argument("config", nargs="*", default=[], metavar=CONFIG_WORDS, help=CONFIG_HELP)


def split_config(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The configuration's name, or None, and the `key=value` pairs."""
    from nanofw.config.layers import is_override, looks_like_file
    from nanofw.errors import ConfigError

    names = [word for word in words if not is_override(word)]
    for name in names:
        if not name.strip():
            raise ConfigError(
                "an argument is empty; name a configuration, or leave the argument out",
                source="command line",
            )
        if "=" in name and not looks_like_file(name):
            raise ConfigError(
                f"{name!r} is not of the form key=value, with a key such as engine.seed; a list "
                f"is replaced as a whole",
                source="command line",
            )
        if name.startswith("-"):
            raise ConfigError(
                f"no option {name}; settings are written key=value, as in engine.max_num_seqs=8",
                source="command line",
            )
    if len(names) > 1:
        raise ConfigError(
            f"one configuration at most, not {' and '.join(names)}; put the others into its "
            f"key base, or write key=value",
            source="command line",
        )
    return (names[0] if names else None), [word for word in words if is_override(word)]


def load(words: Sequence[str]) -> LoadedConfig:
    """Load what `[CONFIG] [key=value ...]` says."""
    from nanofw.config.load import DEFAULT_PRESET, load_config

    claim()  # plugins run from here on
    name, overrides = split_config(words)
    return load_config(DEFAULT_PRESET if name is None else name, overrides)


def own_options(words: Sequence[str], prefix: str, model: type[M]) -> tuple[M, list[str]]:
    """A command's own settings, `prefix.key=value` among its words, and the other words.

    Raises:
        ConfigError: with the key of what is wrong.
    """
    from nanofw.config.validation import validate

    data, values, others = own_values(words, prefix)
    return validate(model, data, values, (prefix,)), others


def own_values(words: Sequence[str], prefix: str) -> tuple[dict[str, object], Values, list[str]]:
    """The values of `prefix.key=value` among words, their sources, and the other words."""
    from nanofw.config.layers import override_layer
    from nanofw.config.validation import Values

    own = [word for word in words if word.startswith(f"{prefix}.")]
    layer = override_layer(own)
    data = cast("dict[str, object]", layer.data.get(prefix, {}))
    values = Values(layer.data, layer.sources, layer.texts, {})
    return data, values, [word for word in words if word not in own]


def registry_of(words: Sequence[str]) -> Registry:
    """The plugins of what is installed, or of a configuration where words name one."""
    claim()
    if words:
        from nanofw.assembly import registry_for

        return registry_for(load(words))
    from nanofw.plugins import build_registry

    return build_registry()
