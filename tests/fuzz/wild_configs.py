"""Random trees, texts and values where a configuration is due. Nothing is known of what they mean,
so a reader may take or refuse them; it may not break."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanofw.config.schema import Config
from tests.fuzz.config_cases import KEYS, OPTIONS, Dice

SCALARS = (
    "1", "-0", "0x", "0x1f", "1_0", "1__0", "1e999", "-.inf", ".nan", "9" * 401, "9" * 5000, "''",
    "null", "~", "True", "yes", "12:30", "2026-01-01", "!!int x", "!!binary aaa", "!!python/x 1",
    "!!float 1", "*a", "&a 1", "&b [*a, *a]", "<<", "[", "]", "{", "}", "{}", "[]", "- a", "a: b",
    "'", '"', '"\\0"', '"\\ud800"', '"\\x07"', "\t", "\u2028", "\x07", "#", "@x", "`x`", "%x", "|",
    ">", "? a", "---", "...", "\U0001f600", "x" * 3000, "~nosuchuser/x", "../../..", "/dev/null",
    "${oc.env:HOME}", "${oc.env:}", "${oc.env:NOT_SET}", "${engine.seed}", "${engine}", "${", "${}",
    "${.}", "${..a}", "${......a}", "\\${x}", "\\\\${engine.seed}", "${oc.decode:x}", "${a.${b}}",
    "${input.prompts[0]}", "a${engine.seed}b", "${scheduler.name}${scheduler.name}", "cpu:5",
    "embedded:demo", "shape:nothing", "sim", "torch", "auto", "nanofw:fcfs", "a:b:c", ":", "fcfs",
)  # fmt: skip
NAMES = (
    "base", "name", "<<", "", "a.b", "?", "-", "${x}", "1", "null", "true", "\u00e9", "x" * 300,
    "'quoted'", '"\\u0041"', "*a", "&c", "model", "input", "prompts", "workload", "file", "load",
    "cost_model", "executor", "attention_backend", "logits_processors", "sampler", "only",
    "disable",
    "require", "override", "path", "dtype", "bad_words", "messages", "prompt", "deadline",
)  # fmt: skip


@dataclass
class WildCase:
    """A file, perhaps another one below it, changes and values from Python."""

    seed: int
    files: dict[str, str]
    overrides: list[str]
    values: Any


def make_wild_case(seed: int) -> WildCase:
    dice = Dice(f"wild-{seed}")
    names = list(NAMES)
    for key in (*KEYS, *(f"scheduler.{name}" for each in OPTIONS.values() for name in each)):
        names += key.split(".")
    files = {"run.yaml": _document(dice, names), "low.yaml": _document(dice, names)}
    if dice.happens(0.7):  # a tree without a mistake in its YAML
        files["run.yaml"] = json.dumps(_tree(dice, names)) + "\n"
        files["low.yaml"] = json.dumps(_tree(dice, names)) + "\n"
    elif dice.happens(0.5):
        base = dice.one("sim", "low.yaml", "run.yaml", "[sim, low.yaml]", dice.choice(SCALARS))
        files["run.yaml"] = f"base: {base}\n" + files["run.yaml"]
    overrides = [
        f"{dice.one(*names)}.{dice.one(*names)}={dice.choice(SCALARS)}"
        for _ in range(dice.one(0, 0, 1, 3))
    ]
    values = _value(dice, names, 0) if dice.happens(0.3) else None
    if values is not None and not isinstance(values, dict):
        values = {dice.choice(names): values}
    return WildCase(seed, files, overrides, values)


def _tree(dice: Dice, names: list[str]) -> dict[str, Any]:
    """Sections with keys that they have, mostly, and values of any kind."""
    made: dict[str, Any] = {}
    for section in dice.sample(list(Config.model_fields), dice.randint(1, 3)):
        known = _fields(Config.model_fields[section].annotation) or names
        keys = [dice.choice(known) for _ in range(dice.randint(0, 3))]
        below = {key: _any(dice, names, 0) for key in keys}
        if dice.happens(0.3) and "name" in known:
            below["name"] = dice.one(
                "fcfs", "sim", "paged", "standard", "sdpa", "poisson", "absent"
            )
        made[section] = dice.one(below, below, below, [below], _any(dice, names, 0))
    if dice.happens(0.4):
        made["base"] = dice.one("sim", "low.yaml", ["sim", "low.yaml"], "run.yaml", 5, [None], "")
    return made


def _fields(section: Any) -> list[str]:
    while section is not None and not hasattr(section, "model_fields"):
        section = next(iter(getattr(section, "__args__", ())), None)
    return list(section.model_fields) if section is not None else []


def _any(dice: Dice, names: list[str], depth: int) -> Any:
    if depth > 3 or dice.happens(0.75):
        text = dice.choice(SCALARS)
        return dice.one(
            text, text, text, 0, 1, -1, True, False, None, 0.5, 10**30, "", " ", "a\0b", "auto",
            dice.choice(names),
        )  # fmt: skip
    if dice.happens(0.5):
        return [_any(dice, names, depth + 1) for _ in range(dice.randint(0, 3))]
    return {dice.choice(names): _any(dice, names, depth + 1) for _ in range(dice.randint(0, 3))}


def _document(dice: Dice, names: list[str]) -> str:
    text = "".join(_lines(dice, names, 0))
    for _ in range(dice.one(0, 0, 0, 1, 4)):
        at = dice.randint(0, len(text))
        end = at + dice.randint(0, 9)
        text = text[:at] + dice.one("", text[at:end] * 2, dice.choice(SCALARS)) + text[end:]
    return text


def _lines(dice: Dice, names: list[str], depth: int) -> list[str]:
    """A block of YAML."""
    indent, lines = "  " * depth, []
    is_list = depth > 0 and dice.happens(0.2)
    for _ in range(dice.randint(0, 4)):
        head = "-" if is_list else f"{dice.choice(names)}:"
        if depth < 4 and dice.happens(0.5):
            lines.append(f"{indent}{head}\n")
            lines += _lines(dice, names, depth + 1)
        else:
            lines.append(f"{indent}{head} {_flow(dice, names, depth)}\n")
    return lines


def _flow(dice: Dice, names: list[str], depth: int) -> str:
    if depth > 5 or dice.happens(0.7):
        return dice.choice(SCALARS)
    items = [_flow(dice, names, depth + 1) for _ in range(dice.randint(0, 3))]
    if dice.happens(0.5):
        return f"[{', '.join(items)}]"
    return "{" + ", ".join(f"{dice.choice(names)}: {item}" for item in items) + "}"


def _value(dice: Dice, names: list[str], depth: int) -> Any:
    """A value from Python, plain or not."""
    if depth > 4 or dice.happens(0.4):
        return dice.one(
            1, -1, True, None, "x", "${", "a\ud800", "\0", 0.5, math.nan, math.inf, 10**20,
            10**5000, Path("x"), (1, 2), {1}, b"x", object(), 1j, "auto",
        )  # fmt: skip
    if dice.happens(0.3):
        return [_value(dice, names, depth + 1) for _ in range(dice.randint(0, 3))]
    made: dict[Any, Any] = {
        dice.choice(names): _value(dice, names, depth + 1) for _ in range(dice.randint(0, 4))
    }
    if dice.happens(0.03):
        made["x"] = made
    if dice.happens(0.03):
        made[dice.one(1, None, (1,))] = 1
    return made
