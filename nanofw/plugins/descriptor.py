"""What a manifest says of a plugin: plain data, no import of what it describes."""

from __future__ import annotations

import importlib
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, TypeAlias

from pydantic import BaseModel, ConfigDict

from nanofw.narrowing import Claims


class Options(BaseModel):
    """Base of option models: frozen; unknown keys are errors; docstrings describe fields.

    Numbers are finite: a policy that multiplies a time by infinity has no order any more. A field
    that means something by infinity says so with `Field(allow_inf_nan=True)`.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


@dataclass(frozen=True, slots=True)
class Requirement:
    """A module that a plugin cannot do without, and how to get it.

    Attributes:
        module: importable name, `flash_attn_interface` say.
        install: the line that brings it, `pip install 'nanofw[fa3]'`.
    """

    module: str
    install: str


OptionsModel: TypeAlias = type[BaseModel] | str


@dataclass(frozen=True, slots=True)
class Plugin:
    """One component that a manifest offers.

    Its class is constructed as `target(options, config)`, with the `*Config` of its contract;
    `options` is None when none are named here.

    Attributes:
        name: what the configuration calls it; the entry point is `KIND.NAME`.
        target: `"pkg.module:Class"`, imported only when a run has chosen the plugin;
            `":Class"` is a class of the manifest's own module.
        api: kind and version of the contract that it was written for, `"scheduler/2"`.
        options: pydantic model of its configuration, or `"pkg.module:Model"`; None: it has none.
        capabilities: what it claims, as data; see docs/plugins/capabilities.md. A feature that is
            not named is not claimed.
        spec: of a model: `"pkg.module:function"`, a torch-free function
            `(config_json, folder) -> ModelSpec` that reads its checkpoints; None: the core reads.
        architectures: of a model: those of the checkpoints that it serves when `model.name` names
            it, `"*"` for any; empty: the one that is its name.
        requires: modules, or pip requirements such as `"llguidance>=1"`, that it needs.
        checks: `"pkg.module:Class"`, checks of `nanofw.testing` that say more of the plugin, such
            as the arguments of requests, for `nanofw plugins test`; None: those of its kind.
        summary: one line for `nanofw plugins list`.
    """

    name: str
    target: str
    _: KW_ONLY
    api: str
    options: OptionsModel | None = None
    capabilities: Claims = field(default_factory=dict[str, Any])
    spec: str | None = None
    architectures: tuple[str, ...] = ()
    requires: tuple[Requirement | str, ...] = ()
    checks: str | None = None
    summary: str = ""

    @property
    def kind(self) -> str:
        return self.api.partition("/")[0]


def load_target(target: str) -> Any:
    """Import what `"pkg.module:Name"` names."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise ValueError(f"{target!r} is not of the form 'package.module:Name'")
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value
