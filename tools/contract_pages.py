"""Makes the parts of the authors' pages that come from the contracts: methods, facts, claims."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import nanofw.plugins
from nanofw.contracts import attention_backend, cost_model, logits_processor, sampler
from nanofw.contracts.kinds import KINDS, Kind
from nanofw.plugins.capabilities import CAPABILITIES

FURTHER: Mapping[str, tuple[type, ...]] = {
    "attention_backend": (attention_backend.FusedAttentionBackend,),
    "cost_model": (cost_model.OccupiesHost,),
    "logits_processor": (logits_processor.HostProcessor,),
    "sampler": (sampler.DeviceSampler,),
}
"""Classes that components of a kind may derive from instead of, or beside, its base."""
FURTHER_CONFIGS: Mapping[str, tuple[type, ...]] = {
    "logits_processor": (logits_processor.HostProcessorConfig,),
}
STEP_MODULES = frozenset(
    {"attention_backend", "clock", "communicator", "executor", "kv_allocator", "model_spec", "plan",
     "sampler", "stride"}
)  # fmt: skip
"""Modules of contracts whose types stand on the page about steps."""
_SECTION = re.compile(r"^(Args|Returns|Raises|Attributes):$", re.MULTILINE)
_ITEM = re.compile(r"^    (?P<names>[\w, ]+): (?P<text>.*(?:\n {5,}.*)*)", re.MULTILINE)
Table = list[tuple[str, ...]]


def classes(kind: Kind) -> tuple[type, ...]:
    """What components of a kind derive from."""
    return (kind.base, *FURTHER.get(kind.name, ()))


def own_methods(cls: type) -> dict[str, Any]:
    """The methods and properties that a contract's class declares, in the order of its source."""
    return {
        name: value
        for name, value in vars(cls).items()
        if name[0] != "_" and (inspect.isfunction(value) or isinstance(value, property))
    }


def configs(kind: Kind) -> tuple[type, ...]:
    """What components of a kind are made with."""
    return (kind.config, *FURTHER_CONFIGS.get(kind.name, ()))


def methods(kind: Kind) -> str:
    """Every attribute and method with its signature and its text."""
    parts: list[str] = []
    for cls in classes(kind):
        if len(classes(kind)) > 1:
            parts.append(f"### `{cls.__name__}`\n")
        parts += [
            f"**`{name} = {value!r}`**\n{_joined(text)}\n" for name, value, text in _attributes(cls)
        ]
        parts += [_method(cls, name, value) for name, value in own_methods(cls).items()]
    return "\n".join(parts)


def _attributes(cls: type) -> Iterator[tuple[str, object, str]]:
    """Attributes that a component may set, with their defaults and texts."""
    texts = dict(attribute_texts(cls))
    for name, value in vars(cls).items():
        if name[0] != "_" and name in texts and name not in own_methods(cls):
            yield name, value, texts[name]


def _method(cls: type, name: str, value: Any) -> str:
    needed = name in getattr(cls, "__abstractmethods__", ()) or getattr(cls, "_is_protocol", False)
    mark = " must be written." if needed else ""
    signature = name if isinstance(value, property) else f"{name}{_signature(value)}"
    return f"**`{signature}`**{mark}\n{_markdown(inspect.getdoc(value) or '')}\n"


def _signature(function: Any) -> str:
    found = inspect.signature(function)
    parameters = [item for item in found.parameters.values() if item.name != "self"]
    text = str(found.replace(parameters=parameters))
    return text.replace("'", "").replace("typing.", "").removesuffix(" -> None")


def _markdown(docstring: str) -> str:
    """A docstring's text, its sections as lists."""
    text, *sections = _SECTION.split(docstring)
    text = "\n".join([_joined(paragraph) for paragraph in text.strip().split("\n\n")])
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        items = [] if title == "Returns" else list(_ITEM.finditer(body))
        if not items:
            text += f"\n{title}: {_joined(textwrap.dedent(body))}"
        text += "".join(f"\n- `{item['names']}`: {_joined(item['text'])}" for item in items)
    return text


def _joined(text: str) -> str:
    return "\n".join(textwrap.wrap(" ".join(text.split()), 124, break_on_hyphens=False))


def attribute_texts(cls: type) -> Iterator[tuple[str, str]]:
    """Names and texts of the section `Attributes` of a class, one for each name."""
    docstring = inspect.getdoc(cls) or ""
    _, _, body = docstring.partition("Attributes:\n")
    for item in _ITEM.finditer(body):
        for name in item["names"].split(", "):
            yield name, " ".join(item["text"].split())


def facts(kind: Kind) -> Table:
    """The fields of what a component is constructed with."""
    rows: Table = [("field", "type", "what it is")]
    for cls in configs(kind):
        texts = dict(attribute_texts(cls))
        prefix = f"{cls.__name__}." if cls is not kind.config else ""
        for item in dataclasses.fields(cls):
            kind_of = str(item.type).replace("|", "\\|")
            rows.append((f"`{prefix}{item.name}`", f"`{kind_of}`", texts.get(item.name, "")))
    return rows


def claims(kind: Kind) -> Table:
    """The capabilities that are asked of a kind."""
    rows: Table = [("key", "value", "asked when, or what it means")]
    rows += [
        (f"`{item.key}`", item.value.text, item.text)
        for item in CAPABILITIES.values()
        if kind.name in item.kinds
    ]
    return rows


def given_types() -> Mapping[str, type]:
    """What authors meet beside the classes of the kinds and their configs, by name."""
    known = {item for kind in KINDS.values() for item in (*classes(kind), *configs(kind))}
    exported = {name: getattr(nanofw.plugins, name) for name in nanofw.plugins.__all__}
    return {
        name: value
        for name, value in exported.items()
        if inspect.isclass(value)
        and value not in known
        and value.__module__.startswith("nanofw.contracts.")
        and value is not Kind
    }


def types(page: str) -> str:
    """Every type of a page with its fields, properties and methods."""
    found = sorted(given_types().items())
    return "\n".join(_type(name, cls) for name, cls in found if page_of(cls) == page)


def page_of(cls: type) -> str:
    """The page on which a type stands."""
    return "steps" if cls.__module__.rpartition(".")[2] in STEP_MODULES else "requests"


def _type(name: str, cls: type) -> str:
    text, _, _ = (inspect.getdoc(cls) or "").partition("\n\nAttributes:\n")
    lines = [f"## `{name}`\n", _markdown(text), ""]
    texts = dict(attribute_texts(cls))
    fields = {item.name: item for item in dataclasses.fields(cls)} if _is_data(cls) else {}
    for field, item in fields.items():
        if field[0] != "_":
            lines += [_entry(f"{field}: {item.type}", texts.get(field, ""))]
    lines += [_entry(field, found) for field, found in texts.items() if field not in fields]
    members = list(cls) if issubclass(cls, enum.Enum) else []
    lines += [_entry(member.name, "") for member in members if member.name not in texts]
    for method, value in own_methods(cls).items():
        if method not in texts:
            signature = method if isinstance(value, property) else f"{method}{_signature(value)}"
            lines += [_entry(signature, " ".join((inspect.getdoc(value) or "").split()))]
    return "\n".join(lines) + "\n"


def _is_data(cls: type) -> bool:
    return dataclasses.is_dataclass(cls)


def _entry(what: str, text: str) -> str:
    return _joined(f"- `{what}`" + (f": {text}" if text else ""))


def types_of(kind: Kind) -> str:
    """Links to the types that the methods and facts of a kind speak of, directly or by others."""
    known, found = given_types(), set[str]()
    new = {name for cls in (*configs(kind), *classes(kind)) for name in _mentioned(cls)}
    while new := (new & set(known)) - found:
        found |= new
        new = {name for item in new for name in _mentioned(known[item])}
    links = [f"[`{name}`]({page_of(known[name])}.md#{name.lower()})" for name in sorted(found)]
    return _joined(f"Types: {', '.join(links)}.") + "\n"


def _mentioned(cls: type) -> set[str]:
    """Names in the annotations of a class's fields and of its own methods."""
    texts = [str(item.type) for item in dataclasses.fields(cls)] if _is_data(cls) else []
    for value in own_methods(cls).values():
        function: Any = value.fget if isinstance(value, property) else value
        texts += map(str, inspect.get_annotations(function).values())
    return set(re.findall(r"\w+", " ".join(texts)))


Part = Literal["methods", "facts", "claims", "types"]


def part(name: str, kind: str) -> str | Table:
    """`methods`, `facts`, `claims` or `types` of a kind: text, or a table with its head."""
    makers = {"methods": methods, "facts": facts, "claims": claims, "types": types_of}
    return makers[name](KINDS[kind])
