"""The JSON files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from nanofw.errors import ModelError


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in a file, or ModelError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent} is not a checkpoint: it has no {path.name}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return cast("dict[str, Any]", value)
