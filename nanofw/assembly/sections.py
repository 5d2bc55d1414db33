"""The sections of a configuration that name components, and the one of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nanofw.assembly.model_reading import OFFER
from nanofw.checkpoints.families import FAMILIES
from nanofw.checkpoints.families.other import NOT_DENSE
from nanofw.config.schema import ComponentSection, Config
from nanofw.config.source import KeyPath
from nanofw.contracts.kinds import KINDS, Kind
from nanofw.contracts.model_spec import ModelSpec
from nanofw.errors import ModelError, misspelt
from nanofw.plugins import Registry


@dataclass(frozen=True, slots=True)
class NamedSection:
    """A section of the configuration that names a component of a kind.

    Attributes:
        is_default: the name comes from the defaults.
    """

    path: KeyPath
    kind: str
    section: ComponentSection
    is_default: bool = False


def executor_section(config: Config) -> NamedSection:
    """The section that is looked at first: the executor says which others count."""
    return NamedSection(("executor",), "executor", config.executor)


def named_sections(
    config: Config, built: Sequence[str], model: NamedSection | None = None
) -> Iterator[NamedSection]:
    """The sections of a run beside the executor's, in the order of the table of kinds.

    Args:
        built: kinds that the executor makes; of others that it could, only those that somebody
            named are there.
        model: the implementation of the model; None leaves it out.
    """
    for kind in KINDS.values():
        is_skipped = kind.made_by == "executor" and kind.name not in built
        if kind.name == "executor" or (is_skipped and kind.default is not None):
            continue
        if kind.name == "model":
            yield from [] if model is None else [model]
        else:
            yield from _sections_of(kind, _at(config, kind.section))


def _sections_of(kind: Kind, value: Any) -> list[NamedSection]:
    if value is None:
        return []
    if not kind.is_list:
        return [NamedSection(kind.section, kind.name, value)]
    return [
        NamedSection((*kind.section, index), kind.name, item) for index, item in enumerate(value)
    ]


def _at(config: Config, path: Sequence[str]) -> object:
    value: object = config
    for key in path:
        value = getattr(value, key)
    return value


def named_model(config: Config) -> NamedSection | None:
    """The implementation that the configuration names; None: the checkpoint decides."""
    asked = config.model
    if asked.name is None:
        return None
    section = ComponentSection(name=asked.name, **asked.options)
    return NamedSection(("model",), "model", section)


def model_section(config: Config, spec: ModelSpec, registry: Registry) -> NamedSection:
    """The implementation that is asked for, or the one of the checkpoint's architecture.

    Raises:
        ModelError: no plugin serves the architecture.
    """
    if (named := named_model(config)) is not None:
        return named
    known = [name for name in registry.names("model") if name != "transformers"]
    left_out = [entry.name for entry, _ in registry.left_out]
    if spec.architecture in (*known, *left_out):
        section = ComponentSection(name=spec.architecture)
        return NamedSection(("model",), "model", section, is_default=True)
    raise ModelError(
        f"{spec.path}: architecture {spec.architecture!r} is not supported"
        f"{misspelt(spec.architecture, known)}; supported: {', '.join(known)}. {OFFER}. "
        "Others can be added as plugins of kind model, see docs/models.md"
    )


def check_cost_is_known(spec: ModelSpec) -> None:
    """A simulated run costs what a dense decoder costs: refuse to pass another model for one."""
    telling = [key for key in NOT_DENSE if spec.raw.get(key) not in (None, 0, 1, [], {})]
    if spec.architecture not in FAMILIES and telling and not spec.states_its_size:
        raise ModelError(
            f"{spec.path}: architecture {spec.architecture!r} is not dense (config.json has "
            f"{', '.join(telling)}), and the time of its steps is not known: it cannot be "
            "simulated unless its plugin's reader states layer_parameters and active_parameters"
        )
