"""Faults that people found in samplers and logits processors, by their ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nanofw.samplers.logits_processors.grammars import MAX_CHARACTERS
from tests.samplers.test_structured import make


def schema_chain(length: int, level: Callable[[dict[str, str]], Any]) -> dict[str, Any]:
    """Definitions that each refer to the next, as `level` writes it."""
    names = [{"$ref": f"#/$defs/d{i}"} for i in range(length + 1)]
    chain = {f"d{i}": level(names[i + 1]) for i in range(length)}
    return {"json_schema": {**names[0], "$defs": {**chain, f"d{length}": {"type": "string"}}}}


def lark_chain(length: int, name: str) -> dict[str, str]:
    rules = "".join(f"{name}{i}: {name}{i + 1}\n" for i in range(length))
    return {"lark": f'start: {name}0\n{rules}{name}{length}: "a"\n'}


@pytest.mark.parametrize(
    "arguments",
    [
        schema_chain(1000, lambda ref: {"type": "object", "properties": {"a": ref}}),
        schema_chain(3000, lambda ref: {"items": ref}),
        schema_chain(3000, lambda ref: ref),
        schema_chain(3000, lambda ref: {"allOf": [ref]}),
        lark_chain(3000, "r"),
        lark_chain(30_000, "T"),
        {"lark": 'start: r\nr: "x"\n' + "  | r\n" * 30_000},  # takes minutes
        {"json_schema": {"type": "integer", "multipleOf": 9_999_991}},  # as well
        {"lark": "start: A\nA: /.*a.{200}/ & /.*b.{199}/ & ~/.*c.{99}.*/"},  # as well
    ],
    ids=[
        *("objects", "arrays", "references", "allOf", "rules", "terminals", "alternatives"),
        *("remainders", "products"),
    ],
)
def test_F001_a_grammar_that_ends_or_stops_its_compiler_is_refused(arguments: Any) -> None:
    processor = make(compile_timeout_s=3)
    with pytest.raises(ValueError, match=r"compile|stack|nested|large|deep"):
        processor.check(arguments)
    processor.check({"regex": "[0-9]+"})
    with pytest.raises(ValueError):
        processor.check(arguments)


def test_F001_grammars_of_some_length_are_served() -> None:
    processor = make()
    deep = schema_chain(60, lambda ref: {"type": "object", "properties": {"a": ref}})
    wide = {"json_schema": {"properties": {f"key{i}": {"type": "string"} for i in range(300)}}}
    for arguments in (deep, wide, {"choice": [f"word {i}" for i in range(500)]}):
        assert processor.start("a", arguments, None)  # pyright: ignore[reportArgumentType]
        processor.finish("a")


@pytest.mark.parametrize("kind", ["regex", "lark", "choice", "json_schema"])
def test_F001_a_grammar_without_bounds_is_refused(kind: str) -> None:
    text = "a" * MAX_CHARACTERS
    value: Any = {"choice": [text, "b"], "json_schema": {"const": text}}.get(kind, f"{text}b")
    with pytest.raises(ValueError, match=f"at most {MAX_CHARACTERS} are read"):
        make().check({kind: value})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -(10**21), "maximum": -(10**20)},  # ended the process
        {"items": {"type": "integer", "maximum": -(2**63)}},
        {"$defs": {"a": {"type": "integer", "exclusiveMinimum": 1e19}}, "$ref": "#/$defs/a"},
        {"anyOf": [{"type": "integer", "minimum": 2**53 + 1}]},
        {"allOf": [{"type": "integer", "maximum": 2**53 + 3}]},
        {"properties": {"a": {"const": 2**53 + 1}}},
        {"enum": [{"a": [1, 10**25 + 1]}]},
    ],
)
def test_F001_numbers_that_are_not_held_exactly_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="more digits than can be enforced"):
        make().check({"json_schema": schema})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -(2**62), "maximum": 5},
        {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
        {"type": "integer", "minimum": 2**60, "exclusiveMaximum": 1e18 + 2**60},
        {"type": "integer", "minimum": 1, "exclusiveMinimum": True},
        {"enum": [0.1, 2**60, -1e22, True]},
        {"properties": {"minimum": {"const": 3}, "maxlength": {"type": "null"}}},
    ],
)
def test_F001_numbers_that_are_held_are_served(schema: dict[str, Any]) -> None:
    make().check({"json_schema": schema})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "string", "maxlength": 3}, "'maxlength'.*did you mean 'maxLength'"),
        ({"type": "string", "max_length": 3}, "'max_length'.*did you mean 'maxLength'"),
        ({"items": {"Type": "integer"}}, "'Type'.*did you mean 'type'"),
        ({"$defs": {"a": {"requried": ["b"]}}}, "did you mean 'required'"),
        ({"anyOf": [{"divisibleBy": 7}]}, "draft 3; use 'multipleOf'"),
        ({"properties": {"a": {"required": True}}}, "names into `required` of the object"),
        ('{"type": "integer", "type": "null"}', "a key occurs twice"),
    ],
)
def test_a_keyword_that_would_be_left_out_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make().check({"json_schema": schema})


def test_keywords_of_others_are_left_alone() -> None:
    others = {"x-order": 1, "propertyOrdering": ["a"], "enumNames": ["b"], "markdown": "c"}
    make().check({"json_schema": {"type": "boolean", "$comment": "d", **others}})
