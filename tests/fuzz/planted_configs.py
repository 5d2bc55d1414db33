"""Faults planted in the reading of configurations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from nanofw.config import document, interpolation, layers, load, merge, show, validation
from nanofw.config.source import ValueSource
from nanofw.errors import ConfigError
from tests.fuzz.configs import in_folder
from tests.fuzz.planting import Planted


@contextlib.contextmanager
def opened() -> Iterator[Callable[[int], str | None]]:
    with in_folder() as fuzzer:
        yield fuzzer.problem


PLANTED = Planted(opened)
plant = PLANTED.plant


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
