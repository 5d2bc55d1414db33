"""From plain values to a frozen model; what is wrong is an error with its place.

Values are validated strictly: a string is not a number and a number is not a boolean. Two kinds of
values are text by nature and take the type of their field: what an interpolation such as
`${oc.env:X}` gave, and what was typed on the command line.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nanofw.config.messages import field_names, message, unknown_key
from nanofw.config.schema import Section
from nanofw.config.source import KeyPath, ValueSource, dotted, expanded, nearest_source
from nanofw.errors import ConfigError

M = TypeVar("M", bound=BaseModel)
Problems: TypeAlias = dict[KeyPath, list[ErrorDetails]]
"""Pydantic's errors by the value that they are about; branches of a union share one."""

MAX_TOLD = 20
"""Of all that is wrong, so much is told at once."""
_TAG_ERRORS = ("union_tag_invalid", "union_tag_not_found")


@dataclass(frozen=True, slots=True)
class Values:
    """Merged and interpolated values, with what is known of each.

    Attributes:
        data: nested plain values.
        sources: of every key that some layer set.
        alternatives: another reading of a value, taken when its field refuses the first.
        written: the interpolation that a value came from.
    """

    data: dict[str, object]
    sources: Mapping[KeyPath, ValueSource]
    alternatives: Mapping[KeyPath, object]
    written: Mapping[KeyPath, str]

    def source(self, path: KeyPath) -> ValueSource:
        """Where a value came from."""
        return nearest_source(self.sources, path)

    def error(self, message: str, path: KeyPath) -> ConfigError:
        """An error about a key, with its place."""
        source = self.source(path)
        return ConfigError(message, key=dotted(path), source=source.name, line=source.line)


def validate(model: type[M], data: object, values: Values, at: KeyPath = ()) -> M:
    """Make a frozen model of the values at a key. Relative paths become absolute.

    Raises:
        ConfigError: with key, file and line of everything that is wrong.
    """
    data = copy.deepcopy(data)
    _refuse_unknown(model, data, values, at)
    retried: Problems = {}
    """Values that are read in their other way, and what was wrong with the first."""
    while isinstance(made := _attempt(model, data), dict):
        retry = [
            place for place in made if (*at, *place) in values.alternatives and place not in retried
        ]
        if not retry:
            # where neither reading is right, report the one that was written
            problems = made | {place: retried[place] for place in made if place in retried}
            raise _config_error(model, problems, values, at)
        for place in retry:
            _put(data, place, values.alternatives[(*at, *place)])
            retried[place] = made[place]
    for place in retried:  # what was taken is what is shown
        _put(values.data, (*at, *place), values.alternatives[(*at, *place)])
    return cast("M", _Settling(values, is_frozen=issubclass(model, Section)).settled(made, at))


def _attempt(model: type[M], data: object) -> M | Problems:
    try:
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        return _problems(error, data)


def _problems(error: ValidationError, data: object) -> Problems:
    problems: Problems = {}
    for item in error.errors(include_url=False):
        if not _is_consequence(item):
            problems.setdefault(_place(item, data), []).append(item)
    above = {place[:length] for place in problems for length in range(len(place))}
    return {
        place: items
        for place, items in problems.items()
        if not (_is_of_branches(place, items) and place in above)
    }


def _is_consequence(item: ErrorDetails) -> bool:
    """Whether a collection is only too short because of the items that were refused."""
    return item["type"] == "too_short" and len(item["input"]) >= item.get("ctx", {})["min_length"]


def _place(item: ErrorDetails, data: object) -> KeyPath:
    """The keys that lead to the value; names of a union's branches in between are not keys."""
    place: KeyPath = ()
    value = data
    for part in item["loc"]:
        try:
            value = cast("dict[str | int, object]", value)[part]
        except (KeyError, IndexError, TypeError):
            if item["type"] == "missing" and part == item["loc"][-1]:
                place = (*place, part)
            continue
        place = (*place, part)
    if item["type"] in _TAG_ERRORS:  # about the key that chooses a branch of a union
        return (*place, item.get("ctx", {})["discriminator"].strip("'"))
    return place


def _is_of_branches(place: KeyPath, items: Sequence[ErrorDetails]) -> bool:
    """Whether all errors are of branches of a union that a value was not meant for."""
    return all(len(item["loc"]) > len(place) for item in items)


def _refuse_unknown(model: type[BaseModel], data: object, values: Values, at: KeyPath) -> None:
    """Unknown keys are errors also where a plugin's model would let them pass."""
    if model.model_config.get("extra") in ("forbid", "allow") or not isinstance(data, dict):
        return
    known = set(model.model_fields)
    for field in model.model_fields.values():
        known |= {str(name) for name in (field.alias, field.validation_alias) if name}
    for key in cast("dict[str, object]", data):
        if key not in known:
            raise values.error(unknown_key(key, sorted(known)), (*at, key))


def _config_error(
    model: type[BaseModel], problems: Problems, values: Values, at: KeyPath
) -> ConfigError:
    errors: list[ConfigError] = []
    for place, items in islice(problems.items(), MAX_TOLD):
        path = (*at, *place)
        text = message(model, place, items)
        if path in values.written:
            text += f" (from {values.written[path]})"
        errors.append(values.error(text, path))
    if len(problems) == 1:
        return errors[0]
    lines = [f"{len(problems)} values cannot be used", *(str(error) for error in errors)]
    if len(problems) > MAX_TOLD:
        lines.append(f"and {len(problems) - MAX_TOLD:,} more")
    return ConfigError("\n  ".join(lines))


def _put(data: object, place: KeyPath, value: object) -> None:
    for part in place[:-1]:
        data = cast("dict[str | int, object]", data)[part]
    cast("dict[str | int, object]", data)[place[-1]] = value


@dataclass(frozen=True, slots=True)
class _Settling:
    """Makes paths absolute against the file that names them.

    Attributes:
        is_frozen: lists become tuples, as in the configuration itself; the options of a component
            keep the types that their fields have.
    """

    values: Values
    is_frozen: bool

    def settled(self, value: object, path: KeyPath) -> object:
        """The value; the same object where nothing changes."""
        if isinstance(value, Path):
            return self._absolute(value, path)
        if isinstance(value, (list, tuple)):
            return self._sequence(cast("Sequence[object]", value), path)
        if not self.is_frozen and isinstance(value, (set, frozenset)):
            members = cast("set[object]", value)
            return type(members)(self.settled(item, path) for item in members)
        if not self.is_frozen and type(value) is dict:
            pairs = cast("dict[str | int, object]", value)
            return {key: self.settled(item, (*path, key)) for key, item in pairs.items()}
        changed = {
            name: new
            for name in field_names(value)
            if (new := self.settled(old := getattr(value, name), (*path, name))) is not old
        }
        if not changed:
            return value
        if isinstance(value, BaseModel):
            return value.model_copy(update=changed)
        return dataclasses.replace(cast("Any", value), **changed)

    def _absolute(self, value: Path, path: KeyPath) -> Path:
        folder = self.values.source(path).folder or Path.cwd()
        try:
            return folder / expanded(value)
        except ValueError as error:
            raise self.values.error(str(error), path) from None

    def _sequence(self, items: Sequence[object], path: KeyPath) -> Sequence[object]:
        made = [self.settled(item, (*path, index)) for index, item in enumerate(items)]
        is_same = all(a is b for a, b in zip(made, items, strict=True))
        if isinstance(items, list):
            return tuple(made) if self.is_frozen else items if is_same else made
        if is_same:
            return items
        return type(items)(*made) if hasattr(items, "_fields") else tuple(made)
