"""Faults planted in the reading of configurations, to see that the fuzzer finds them.

    python -m tests.fuzz.planted_configs [COUNT]

says for each fault how many cases it takes, `COUNT` at most.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from nanofw.config import document, interpolation, layers, load, merge, show, validation
from nanofw.config.source import ValueSource
from nanofw.errors import ConfigError
from tests.fuzz.configs import in_folder

PATCHES: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {}
"""By what goes wrong: whose attribute is replaced, and how its replacement is made."""


def plant(owner: Any, name: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Add a fault, which is called after the function that makes it."""

    def add(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        PATCHES[make.__name__] = (owner, name, make)
        return make

    return add


@plant(merge, "_drop_options")
def options_survive_another_name(usual: Any) -> Any:
    return lambda *arguments: None


@plant(layers, "_bases")
def bases_in_the_wrong_order(usual: Any) -> Any:
    return lambda layer: usual(layer)[::-1]


@plant(document._Reader, "_place")
def lines_are_one_too_high(usual: Any) -> Any:
    def place(self: Any, path: Any, node: Any) -> None:
        usual(self, path, node)
        found = self.sources[path]
        self.sources[path] = ValueSource(found.name, (found.line or 0) + 1, found.folder)

    return place


@plant(document, "_convert")
def octal_numbers_are_read_as_decimal(usual: Any) -> Any:
    return lambda tag, text: usual(tag, text.replace("0o", "") if tag == "int" else text)


@plant(validation, "_attempt")
def types_are_converted(usual: Any) -> Any:
    def attempt(model: Any, data: Any) -> Any:
        try:
            return model.model_validate(data)
        except ValueError:
            return usual(model, data)

    return attempt


@plant(interpolation._Resolver, "_variable")
def variables_lose_their_default(usual: Any) -> Any:
    return lambda self, text, fail: usual(self, text.partition(",")[0], fail)


@plant(load, "_check_sampling")
def ranges_of_sampling_are_not_checked(usual: Any) -> Any:
    return lambda config, values: None


@plant(load, "_values")
def typed_text_has_one_reading(usual: Any) -> Any:
    def values(*arguments: Any) -> Any:
        made = usual(*arguments)
        return validation.Values(made.data, made.sources, {}, made.written)

    return values


@plant(validation, "nearest_source")
def errors_name_the_section_s_place(usual: Any) -> Any:
    return lambda sources, path: usual(sources, path[:1])


@plant(show, "escaped")
def what_is_shown_has_references(usual: Any) -> Any:
    return lambda value: value


@plant(merge, "_merge_into")
def the_lower_layer_wins(usual: Any) -> Any:
    def merge_into(merged: Any, target: Any, data: Any, path: Any, layer: Any) -> None:
        kept = {key: value for key, value in data.items() if key != "seed" or key not in target}
        usual(merged, target, kept if layer.name != "default" else data, path, layer)

    return merge_into


@plant(validation.Values, "error")
def errors_have_no_line(usual: Any) -> Any:
    def error(self: Any, message: str, path: Any) -> ConfigError:
        made = usual(self, message, path)
        return ConfigError(made.message, key=made.key, source=made.source)

    return error


PLANTED = tuple(PATCHES)


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """One fault, for the time of the block."""
    owner, attribute, make = PATCHES[name]
    with mock.patch.object(owner, attribute, make(getattr(owner, attribute))):
        yield


def cases_until_found(count: int) -> int | None:
    """How many cases it takes to find a problem; None: `count` find none."""
    with in_folder() as fuzzer:
        found = (seed for seed in range(count) if fuzzer.problem(seed))
        first = next(itertools.islice(found, 1), None)
    return None if first is None else first + 1


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    missed = 0
    for name in PLANTED:
        with planted(name):
            needed = cases_until_found(count)
        missed += needed is None
        print(f"{name}: {'not found' if needed is None else f'found by case {needed}'}", flush=True)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
