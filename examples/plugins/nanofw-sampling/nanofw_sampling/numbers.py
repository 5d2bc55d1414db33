"""Numbers that a request may bring for a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from nanofw.plugins import Options


def asked(options: Options, arguments: Any, names: tuple[str, ...]) -> list[float]:
    """The values of some options, those of a request in place of the configuration's.

    Raises ValueError, with the names and ranges that there are, where they are wrong.
    """
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping) or not set(arguments) <= set(names):
        raise ValueError(f"arguments are a mapping of {' and '.join(names)}, not {arguments!r}")
    try:
        made = type(options).model_validate({**options.model_dump(), **arguments})
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{first['loc'][0]}: {first['msg']}, not {first['input']!r}") from None
    return [float(getattr(made, name)) for name in names]
