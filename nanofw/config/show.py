"""A loaded configuration for reading: as YAML, or one line per value with its source."""

from __future__ import annotations

import json

from nanofw.config.document import dump
from nanofw.config.layers import escaped
from nanofw.config.load import LoadedConfig
from nanofw.config.source import KeyPath, dotted, walk


def as_yaml(loaded: LoadedConfig) -> str:
    """The merged configuration, interpolations resolved, as a file that says the same."""
    return dump(escaped(loaded.values.data))


def as_records(loaded: LoadedConfig) -> dict[str, object]:
    """Every value with its source, and what was dropped: plain values."""
    return {
        "values": [
            {
                "key": dotted(path),
                "value": value,
                "source": str(loaded.values.source(path)),
                "written": loaded.values.written.get(path),
            }
            for path, value in leaves(loaded)
        ],
        "dropped": [
            {
                "key": dotted(item.path),
                "value": item.value,
                "source": str(item.source),
                "reason": item.reason,
            }
            for item in loaded.dropped
        ],
    }


def as_lines(loaded: LoadedConfig) -> list[str]:
    """`key = value    # source`, one line per value, then what was dropped."""
    pairs = [(f"{dotted(path)} = {_text(value)}", path) for path, value in leaves(loaded)]
    width = min(60, max(len(text) for text, _ in pairs))
    lines = [f"{text:<{width}}  # {_origin(loaded, path)}" for text, path in pairs]
    for item in loaded.dropped:
        lines.append(
            f"dropped: {dotted(item.path)} = {_text(item.value)}  # {item.source}; {item.reason}"
        )
    return lines


def leaves(loaded: LoadedConfig) -> list[tuple[KeyPath, object]]:
    """Values without the containers around them; an empty container is a value."""
    return [
        (path, value)
        for path, value in walk(loaded.values.data)
        if not (isinstance(value, (dict, list)) and value)
    ]


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _origin(loaded: LoadedConfig, path: KeyPath) -> str:
    written = loaded.values.written.get(path)
    source = str(loaded.values.source(path))
    return f"{source}, {written}" if written else source
