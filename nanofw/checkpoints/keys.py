"""Typed access to the keys of a `config.json`: each error names the file and the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nanofw.checkpoints.files import shown
from nanofw.errors import ModelError
from nanofw.narrowing import is_number


def refuse_both_directions(keys: ConfigKeys) -> None:
    """Refuse decoders whose tokens see what comes after them."""
    if keys.flag("use_bidirectional_attention"):
        raise ModelError(
            f"{keys.place}: use_bidirectional_attention: tokens that see later ones are not "
            "supported; a decoder generates from left to right"
        )


@dataclass(frozen=True, slots=True)
class ConfigKeys:
    """A parsed `config.json` over the defaults of its family.

    Attributes:
        config: the file.
        place: its path, for messages.
        defaults: what the family takes for a key that the file does not have. A key that is null
            counts as one that is not there.
    """

    config: Mapping[str, object]
    place: str
    defaults: Mapping[str, object]

    def without(self, key: str) -> ConfigKeys:
        """The same keys without one of them."""
        return replace(self, config={k: v for k, v in self.config.items() if k != key})

    def value(self, key: str) -> object:
        """The file's value, or the family's default."""
        found = self.config.get(key)
        return self.defaults.get(key) if found is None else found

    def stated(self, key: str) -> object:
        """The file's value, null included, or the family's default."""
        return self.config[key] if key in self.config else self.defaults.get(key)

    def error(self, key: str, rule: str, value: object) -> ModelError:
        """`config.json: KEY should be RULE, not VALUE`."""
        return ModelError(f"{self.place}: {key} should be {rule}, not {shown(value)}")

    def count(self, key: str, most: int) -> int:
        """A positive integer."""
        value = self.value(key)
        if type(value) is not int or value < 1:
            raise self.error(key, "a positive integer", value)
        if value > most:
            raise self.error(key, f"at most {most:,}", value)
        return value

    def integer(self, key: str) -> int:
        """An integer, which may be 0 or negative."""
        value = self.value(key)
        if type(value) is not int:
            raise self.error(key, "an integer", value)
        return value

    def flag(self, key: str) -> bool:
        """True or false; a word such as "false" would count as true."""
        value = self.value(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, "true or false", value)
        return bool(value)

    def scale(self, key: str) -> float:
        """A finite number above 0."""
        value = self.value(key)
        if not (is_number(value) and 0 < value < math.inf):
            raise self.error(key, "a number above 0", value)
        return float(value)

    def cap(self, key: str) -> float | None:
        """A finite number above 0; null: none."""
        return None if self.stated(key) is None else self.scale(key)

    def number(self, key: str) -> float:
        """A finite number that is 0 or greater."""
        value = self.value(key)
        if not (is_number(value) and 0 <= value < math.inf):
            raise self.error(key, "a number, 0 or greater", value)
        return float(value)
