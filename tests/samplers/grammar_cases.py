"""Random JSON schemas and regexes, and whether a text is what they ask for.

The judges are others' work: `jsonschema` and Python's `re`.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema

LETTERS = "abcXYZ019 é☃😀-_."
KEYS = ("name", "age", "tags", "größe", "a b", 'q"uote', "x", "back\\slash")
PATTERNS = (r"^[a-f]{2,6}$", r"^(ab|cd)+[0-9]{1,3}$", r"^\d{2}-\d{2}$", r"^[A-Z][a-z]{0,5}$")
FORMATS = ("date", "ipv4", "uuid")
FORMAT_CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER


def random_arguments(index: int) -> dict[str, Any]:
    """Arguments of `structured`: a schema, a regex or choices, by the number of the case."""
    rng = random.Random(index)
    if index % 8 == 7:
        words = ["".join(rng.choices(LETTERS, k=rng.randint(1, 9))) for _ in range(5)]
        return {"choice": [*words, words[0] + "!", "a.*(b"]}
    if index % 2:
        return {"regex": "".join(_regex(rng, 3) for _ in range(3))}
    return {"json_schema": _root(rng)}


def problem(arguments: dict[str, Any], text: str) -> str | None:
    """Why the text is not what was asked for; None: it is."""
    ((kind, wanted),) = arguments.items()
    if kind == "choice":
        return None if text in wanted else "none of the choices"
    if kind == "regex":
        return None if re.fullmatch(wanted, text) else "no match"
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    validator = jsonschema.Draft202012Validator(wanted, format_checker=FORMAT_CHECKER)
    return next((error.message for error in validator.iter_errors(value)), None)


def _root(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.2:
        schema = _object(rng, 1)
        schema["$defs"] = {"part": _value(rng, 1)}
        schema["properties"]["part"] = {"$ref": "#/$defs/part"}
        schema["required"] = [*schema["required"], "part"]
        return schema
    return _object(rng, 2) if rng.random() < 0.7 else _value(rng, 2)


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = [_string, _number, _fixed]
    if depth:
        kinds += [_object, _array, _any_of]
    return rng.choice(kinds)(rng, depth)


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    keys = rng.sample(KEYS, rng.randint(0, 4))
    return {
        "type": "object",
        "properties": {key: _value(rng, max(0, depth - 1)) for key in keys},
        "required": [key for key in keys if rng.random() < 0.7],
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randint(0, 2)
    items = _value(rng, max(0, depth - 1))
    return {
        "type": "array", "items": items, "minItems": least, "maxItems": least + rng.randint(0, 3)
    }  # fmt: skip


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_value(rng, depth - 1) for _ in range(rng.randint(1, 3))]}


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    kind = rng.randrange(4)
    if kind == 0:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if kind == 1:
        return {"type": "string", "format": rng.choice(FORMATS)}
    least = rng.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 12)}


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randint(-1000, 1000)
    bounds: dict[str, Any] = {"minimum": low, "maximum": low + rng.randint(0, 5000)}
    return rng.choice(
        [
            {"type": "integer", **bounds},
            {"type": "number", **bounds},
            {"type": "integer", "exclusiveMinimum": low},
            {"type": "integer"},
        ]
    )


def _fixed(rng: random.Random, depth: int) -> dict[str, Any]:
    return rng.choice(
        [
            {"type": "boolean"},
            {"type": "null"},
            {"const": rng.choice(["yes", 42, None, True, "é☃"])},
            {"enum": rng.sample(["red", "green", 1, 2.5, None, False, "a\nb"], 3)},
        ]
    )


def _regex(rng: random.Random, depth: int) -> str:
    kind = rng.randrange(6 if depth else 3)
    if kind == 0:
        return re.escape("".join(rng.choices(LETTERS, k=rng.randint(1, 4))))
    if kind == 1:
        return rng.choice(["[a-z]", "[^a-zA-Z\n]", r"\d", "[é☃x]", r"[\w-]", ".", r"\s"])
    if kind == 2:
        return rng.choice([r"[0-9]{1,4}", "[A-F]{3}", "x?", r"\."])
    parts = [_regex(rng, depth - 1) for _ in range(rng.randint(2, 3))]
    if kind == 3:
        return "".join(parts)
    if kind == 4:
        return f"(?:{'|'.join(parts)})"
    return f"(?:{parts[0]}){rng.choice(['{1,3}', '{2}', '?', '{0,4}'])}{parts[1]}"
