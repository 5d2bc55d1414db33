"""Random configurations with a plain model of what they come to: layers, bases, overrides,
references, changed names, wrong values. A case is a function of its seed."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.config_keys import KEYS, NAMES, OPTIONS, Key

RUN = "run.yaml"


@dataclass
class Setting:
    """A value that a layer gives to a key.

    Attributes:
        written: its text in the file or on the command line; None: as the value is spelled.
        refers_to: the key whose value it takes.
        source: where it stands.
    """

    value: Any
    is_wrong: bool = False
    written: str | None = None
    refers_to: str | None = None
    source: str = ""


@dataclass
class Layer:
    name: str
    settings: dict[str, Setting]
    bases: list[Layer] = field(default_factory=list)

    def in_order(self) -> Iterator[Layer]:
        """The layers below it, lowest first, and itself."""
        for base in self.bases:
            yield from base.in_order()
        yield self


@dataclass
class Case:
    """A configuration, and what it must come to.

    Attributes:
        values: given from Python, nested.
        expected: key -> setting that counts; those of the scheduler's options included.
        dropped: keys of options that a changed name drops.
    """

    seed: int
    files: dict[str, str]
    overrides: list[str]
    values: dict[str, Any]
    environment: dict[str, str]
    expected: dict[str, Setting]
    dropped: set[str]

    @property
    def wrong(self) -> dict[str, Setting]:
        return {key: item for key, item in self.expected.items() if item.is_wrong}


class Dice(random.Random):
    def one(self, *values: Any) -> Any:
        return self.choice(values)

    def happens(self, share: float) -> bool:
        return self.random() < share


def make_case(seed: int) -> Case:
    dice = Dice(f"config-{seed}")
    maker = _Maker(dice, wrong=dice.one(0, 0, 0, 0.15))
    run = maker.file(RUN, 0)
    python = Layer("python", maker.settings() if dice.happens(0.3) else {})
    above = Layer("command line", maker.settings() if dice.happens(0.6) else {})
    if not maker.wrong and dice.happens(0.6):
        maker.spoil(dice.one(*run.in_order(), python, above))
    files = {layer.name: maker.text(layer) for layer in run.in_order()}
    for layer in (python, above):
        for item in layer.settings.values():
            item.source = layer.name
            if layer is python:
                item.written, item.refers_to = None, None
    case = Case(
        seed=seed,
        files=files,
        overrides=[f"{key}={_typed(item)}" for key, item in above.settings.items()],
        values=_nested({key: item.value for key, item in python.settings.items()}),
        environment=maker.environment,
        expected={},
        dropped=set(),
    )
    _settle(case, [*run.in_order(), python, above])
    return case


class _Maker:
    """Draws layers.

    Args:
        wrong: share of wrong values.
    """

    def __init__(self, dice: Dice, wrong: float) -> None:
        self.dice, self.wrong = dice, wrong
        self.environment: dict[str, str] = {}
        self.refers = dice.happens(0.3)
        self.num_files = 0

    def file(self, name: str, depth: int) -> Layer:
        layer = Layer(name, self.settings(in_file=True))
        for _ in range(self.dice.randint(0, 2) if depth < 2 else 0):
            self.num_files += 1
            layer.bases.append(self.file(f"b{self.num_files}.yaml", depth + 1))
        return layer

    def settings(self, in_file: bool = False) -> dict[str, Setting]:
        dice = self.dice
        keys = [key for key in KEYS if KEYS[key].valid or dice.happens(self.wrong / 2)]
        chosen = dice.sample(keys, min(len(keys), dice.randint(0, 6)))
        made = {key: self.setting(KEYS[key], key, in_file) for key in chosen}
        if dice.happens(0.5):
            made["scheduler.name"] = self.setting(NAMES, "scheduler.name", in_file)
        if dice.happens(0.5):
            named = made.get("scheduler.name")
            known = OPTIONS.get(named.value if named else "") if named else None
            options = known or OPTIONS[dice.choice(list(OPTIONS))]
            for name in dice.sample(list(options), dice.randint(0, min(3, len(options)))):
                key = f"scheduler.{name}"
                made[key] = self.setting(options[name], key, in_file)
        return made

    def setting(self, key: Key, path: str, in_file: bool) -> Setting:
        dice = self.dice
        if self.refers and path == "engine.max_num_seqs":
            return Setting(dice.choice(key.valid))
        if self.refers and path == "engine.chunk_tokens" and dice.happens(0.5):
            written = dice.one("${engine.max_num_seqs}", "${.max_num_seqs}")
            return Setting(None, written=written, refers_to="engine.max_num_seqs")
        is_wrong = not key.valid or dice.happens(self.wrong)
        choices = key.wrong + (key.texts if in_file else ()) if is_wrong else key.valid
        value = dice.choice(choices)
        item = Setting(value, is_wrong=is_wrong)
        is_text = in_file and is_wrong and value in key.texts  # elsewhere it would be right
        is_text |= path == "model.name" or is_collection(value) or not _plain(value)
        if dice.happens(0.15) and not is_text:
            name = f"FUZZ_{len(self.environment)}"
            self.environment[name] = _plain(value)
            item.written = dice.one(f"${{oc.env:{name}}}", f"${{oc.env:{name},7}}")
        elif dice.happens(0.05) and isinstance(value, int) and not isinstance(value, bool):
            item.written = f"${{oc.env:FUZZ_ABSENT,{value}}}"
        return item

    def spoil(self, layer: Layer) -> None:
        """Give a layer one wrong value; a layer above may put it right."""
        dice = self.dice
        key = dice.one(*KEYS, "scheduler.name", "scheduler")
        wanted = NAMES if key == "scheduler.name" else KEYS.get(key)
        if wanted is None:
            options = OPTIONS[dice.choice(list(OPTIONS))]
            name = dice.choice(list(options))
            key, wanted = f"scheduler.{name}", options[name]
        if not (self.refers and key == "engine.max_num_seqs"):
            layer.settings[key] = Setting(dice.choice(wanted.wrong), is_wrong=True)

    def text(self, layer: Layer) -> str:
        """The layer as YAML; notes the line of each setting."""
        dice = self.dice
        lines = [] if dice.happens(0.7) else ["# a comment", ""]
        sections: dict[str, list[str]] = {}
        for key in layer.settings:
            sections.setdefault(key.partition(".")[0], []).append(key)
        names = list(sections)
        dice.shuffle(names)
        bases = [base.name for base in layer.bases]
        if layer.name == RUN:
            bases.insert(0, "sim")
            names = [*names, *([] if "plugins" in names else ["plugins"])]
        if bases:
            lines.append(f"base: {json.dumps(bases if len(bases) > 1 else bases[0])}")
        for name in names:
            self._section(layer, name, sections.get(name, []), lines)
        return "\n".join(lines) + "\n"

    def _section(self, layer: Layer, name: str, keys: list[str], lines: list[str]) -> None:
        dice = self.dice
        pairs = [(key.partition(".")[2], spelled(layer.settings[key], dice)) for key in keys]
        if name == "plugins" and layer.name == RUN:
            pairs.append(("load", "[fuzz_plugin.py]"))
        if dice.happens(0.2):
            lines.append(f"{name}: {{{', '.join(f'{key}: {text}' for key, text in pairs)}}}")
            numbers = [len(lines)] * len(pairs)
        else:
            lines.append(f"{name}:")
            numbers = []
            for key, text in pairs:
                lines += ["", "  # more"] if dice.happens(0.1) else []
                lines.append(f"  {key}: {text}")
                numbers.append(len(lines))
        for key, number in zip(keys, numbers, strict=False):
            layer.settings[key].source = f"{layer.name}:{number}"


def _settle(case: Case, layers: list[Layer]) -> None:
    """Work out what counts: the highest layer that speaks, and options of the last name only."""
    found, name = case.expected, "fcfs"
    for layer in layers:
        named = layer.settings.get("scheduler.name")
        if named is not None and named.value != name:
            for key in [key for key in found if key.startswith("scheduler.")]:
                if key != "scheduler.name":
                    item = found.pop(key)
                    if item.value is not None or item.written is not None:
                        case.dropped.add(key)
            name = named.value
        for key, item in layer.settings.items():
            old = found.get(key)
            if old is not None and isinstance(old.value, dict) and isinstance(item.value, dict):
                merged = Setting({**old.value, **item.value}, old.is_wrong or item.is_wrong)
                merged.source = item.source if item.is_wrong else old.source
                found[key] = merged
            else:
                found[key] = item
    for key, item in found.items():
        if key.startswith("scheduler.") and key != "scheduler.name":
            options = OPTIONS.get(name, {}) if isinstance(name, str) else {}
            wanted = options.get(key.partition(".")[2])
            item.is_wrong = wanted is None or not is_valid(wanted, item)
    for item in found.values():
        if item.refers_to is not None:
            item.value = found[item.refers_to].value if item.refers_to in found else 32


def is_valid(key: Key, item: Setting) -> bool:
    """Whether an option's value, which may have been drawn for another plugin, fits."""
    if item.is_wrong and isinstance(item.value, dict):
        return False
    if any(item.value is value or _same(item.value, value) for value in key.valid):
        return True
    if isinstance(item.value, dict) and any(isinstance(value, dict) for value in key.valid):
        return all(isinstance(value, int) for value in item.value.values())
    is_float = any(isinstance(value, float) for value in key.valid)
    value: Any = item.value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if key is OPTIONS["one"]["weight"]:
        return is_float and is_number and math.isfinite(value)
    if key is OPTIONS["two"]["weight"]:
        return is_number and isinstance(item.value, int)
    return False


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and left == right


def is_collection(value: Any) -> bool:
    return isinstance(value, (list, dict))


def _plain(value: Any) -> str:
    """A scalar as an environment variable or the command line has it; empty: it cannot."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf"
    return value if isinstance(value, str) else str(value)


def _typed(item: Setting) -> str:
    """The text after the `=` of a change on the command line."""
    if item.written is not None:
        return item.written
    if is_collection(item.value):
        return json.dumps(escaped(item.value))
    if isinstance(item.value, str) and not item.value.strip():
        return json.dumps(item.value)
    return _plain(item.value)


def spelled(item: Setting, dice: Dice) -> str:
    """A value as YAML, in one of its spellings."""
    value = item.value
    if item.written is not None:
        return json.dumps(item.written)
    if is_collection(value):
        return json.dumps(escaped(value))
    if isinstance(value, str):
        is_word = re.fullmatch(r"[a-z_]+", value) is not None
        return value if is_word and dice.happens(0.5) else json.dumps(escaped(value))
    if isinstance(value, bool):
        return dice.one(str(value), str(value).lower(), str(value).upper())
    if isinstance(value, int) and value >= 0:
        return dice.one(str(value), f"{value:#x}", f"{value:#o}", f"{value:_}", f"0{value}")
    return dice.one("null", "~", "Null") if value is None else _plain(value)


def escaped(value: Any) -> Any:
    """A value whose texts are meant as they are."""
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", value)
    return value


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        made.setdefault(section, {})[name] = value
    return made
