from __future__ import annotations

import itertools
import math
import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanofw.config.document import dump, parse, parse_scalar, parse_value
from nanofw.config.source import ConfigLayer, ValueSource
from nanofw.errors import ConfigError

SOURCE = ValueSource("run.yaml")


def read(text: str) -> ConfigLayer:
    return parse(textwrap.dedent(text), SOURCE)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("-2.5e+3", -2500.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("1_000", 1000),
        ("1_000.5", 1000.5),
        ("0o10", 8),
        ("0x10", 16),
        ("0b11", 3),
        ("-0x10", -16),
        ("010", 10),
        ("12:30", "12:30"),
        ("off", "off"),
        ("on", "on"),
        ("yes", "yes"),
        ("No", "No"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("-.inf", -math.inf),
        ("inf", "inf"),
        ("nan", "nan"),
        ("1.2.3", "1.2.3"),
        ("2026-01-01", "2026-01-01"),
        ("1_", "1_"),
        ("e5", "e5"),
        (".", "."),
        ("+", "+"),
    ],
)
def test_B103_plain_scalars_are_read_by_one_rule(text: str, value: Any) -> None:
    read_back = parse_value(text, SOURCE)
    assert read_back == value
    assert type(read_back) is type(value)
    assert parse_scalar(text) == value


def test_nan_is_a_number() -> None:
    value = parse_value(".nan", SOURCE)
    assert isinstance(value, float)
    assert math.isnan(value)


def test_quoted_scalars_stay_text() -> None:
    assert read("{a: '1e-3', b: \"true\", c: !!str 12}").data == {
        "a": "1e-3",
        "b": "true",
        "c": "12",
    }


def test_every_key_has_its_line() -> None:
    layer = read(
        """\
        engine:
          seed: 3

        plugins:
          load:
            - a.py
            - b.py
          override: {scheduler.fcfs: other}
        """
    )
    lines = {path: source.line for path, source in layer.sources.items()}
    assert lines[("engine",)] == 1
    assert lines[("engine", "seed")] == 2
    assert lines[("plugins", "load", 1)] == 7
    assert lines[("plugins", "override", "scheduler.fcfs")] == 8


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb: 2\na: 3", 3, "a: occurs twice; first in line 1"),
        ("a:\n  x: 1\n  x: 2", 3, "a.x: occurs twice; first in line 2"),
        ("a: [1\nb: 2", 2, "expected"),
        ("1: x", 1, "the key '1' is not a string"),
        ("? [a]\n: x", 1, "the key a collection is not a string"),
        ("a: &x [*x]", 1, "an alias contains itself"),
        (
            "a: !!python/object:os.system x",
            1,
            "the tag tag:yaml.org,2002:python/object:os.system is not supported",
        ),
        ("a: !custom {x: 1}", 1, "the tag !custom is not supported"),
        ("a: !!int 12x", 1, "'12x' is not a int"),
        ("- a", 1, "must be a mapping"),
        ("--- {a: 1}\n--- {b: 2}", 2, "expected a single document"),
    ],
)
def test_errors_carry_file_and_line(text: str, line: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, SOURCE)
    assert message in str(caught.value)
    assert caught.value.source == "run.yaml"
    assert caught.value.line == line


def test_anchors_and_merge_keys_work() -> None:
    layer = read(
        """\
        x: &common {a: 1, b: 2}
        y: {<<: *common, b: 3}
        z: *common
        """
    )
    assert layer.data["y"] == {"a": 1, "b": 3}
    assert layer.data["z"] == {"a": 1, "b": 2}


def test_an_empty_document_is_an_empty_layer() -> None:
    assert read("# nothing\n").data == {}


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abc_-", min_size=1), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text("abcdef", min_size=1), PLAIN, max_size=4))
def test_what_is_dumped_as_yaml_is_read_back(data: dict[str, Any]) -> None:
    assert parse(dump(data), SOURCE).data == data


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\n<<: 5\n", 2, "<< takes a mapping"),
        ("a: &a {<<: *a}\n", 1, "an alias contains itself"),
        ("a: {<<: {1: 2}}\n", 1, "the key '1' is not a string"),
        ("a: 1\n\n# \x00\n", 3, "U+0000"),
        ("a:\n  b: 1\x07\n", 2, "U+0007"),
        ('a: "\\ud800"\n', 1, "is not a str"),
        (f"\na: 0x{'f' * 9000}\n", 2, "is not a int"),
        ("a: " + "[" * 300 + "]" * 300, 1, "nested too deeply"),
    ],
)
def test_odd_yaml_is_refused_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, SOURCE)
    assert message in str(caught.value)
    assert caught.value.line == line
    assert len(str(caught.value)) < 300


def test_brackets_without_end_are_an_error_and_no_crash() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        parse("a: " + "[" * 5000, SOURCE)


def test_aliases_that_multiply_are_refused() -> None:
    rows = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"{b}: &{b} [{', '.join(['*' + a] * 10)}]" for a, b in itertools.pairwise("abcdefg")]
    with pytest.raises(ConfigError, match="aliases multiply"):
        parse("\n".join(rows), SOURCE)


def test_a_mapping_with_a_merge_key_can_be_used_twice() -> None:
    text = "a: &x {k: 1, l: 1}\nb: &y {<<: *x, k: 2}\nc: *y\nd: {<<: [*y, *x], m: 3}\n"
    assert parse(text, SOURCE).data == {
        "a": {"k": 1, "l": 1}, "b": {"k": 2, "l": 1}, "c": {"k": 2, "l": 1},
        "d": {"k": 2, "l": 1, "m": 3},
    }  # fmt: skip


@pytest.mark.parametrize("text", ["---\n", "---\n...\n", "null\n", "~"])
def test_a_document_of_nothing_is_an_empty_layer(text: str) -> None:
    assert parse(text, SOURCE).data == {}
