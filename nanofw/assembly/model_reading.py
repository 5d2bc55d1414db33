"""Who reads the description of a run's model: the plugin that brings it, or the core."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nanofw.assembly.model_source import locate, read_spec
from nanofw.checkpoints.families import FAMILIES
from nanofw.checkpoints.family import CONFIG, stated_architecture
from nanofw.checkpoints.files import read_json, shown
from nanofw.config.load import LoadedConfig
from nanofw.contracts.model_spec import BYTES_PER_ELEMENT, ModelSpec
from nanofw.errors import ModelError, NanofwError, PluginError
from nanofw.plugins import Component, Registry, load_plugin, load_target
from nanofw.plugins.component import guarded

logger: logging.Logger = logging.getLogger(__name__)

_COUNTS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads",
    "head_dim", "max_model_len",
)  # fmt: skip
OFFER = (
    "transformers may be able to run it, at the price of speed: model.name=transformers "
    "(pip install 'nanofw[transformers]')"
)
_SIZES = ("layer_parameters", "active_parameters", "layer_bytes", "kv_elements")


def read_model(loaded: LoadedConfig, registry: Registry, *, weights: bool) -> ModelSpec:
    """The description of the model of a run; see `_read` for arguments and errors."""
    is_random = loaded.config.model.weights == "random"
    spec = _read(loaded, registry, weights=weights and not is_random)
    return dataclasses.replace(spec, random_weights=True) if is_random and weights else spec


def _read(loaded: LoadedConfig, registry: Registry, *, weights: bool) -> ModelSpec:
    """The description of the model that a configuration names.

    The plugin's own reader counts (`Plugin.spec`), whatever the core's thinks of the file.

    Args:
        weights: whether the run will load weights.

    Raises:
        ConfigError: the configuration names no model.
        ModelError: the checkpoint is not there or not supported.
        PluginError: the plugin is not there, or its reader is broken.
    """
    path, name = loaded.config.model.path, loaded.config.model.name
    if path is None:
        message = "is required: a folder, a hub id, or embedded:demo"
        raise loaded.error(message, ("model", "path"))
    family = None if name is None else name.rpartition(":")[2]
    if path.startswith("shape:"):
        return read_spec(path, weights=weights)
    folder = locate(path, weights=weights)
    config_json: Mapping[str, object] = read_json(folder / CONFIG)
    architecture = stated_architecture(config_json)
    component = _implementation(loaded, registry, architecture)
    if component is not None and name is not None:
        _check_served(component, architecture, folder)
    if component is None and architecture:
        return _read_unknown(folder, weights)
    if component is None or component.plugin.spec is None:
        return read_spec(str(folder), weights=weights, family=family)
    spec = _read_by(component, config_json, folder)
    for note in spec.notes:
        logger.warning("%s", note)
    return spec


def _read_unknown(folder: Path, weights: bool) -> ModelSpec:
    """The description of a checkpoint whose architecture no plugin serves."""
    try:
        return read_spec(str(folder), weights=weights)
    except ModelError as error:
        raise ModelError(f"{error}. {OFFER}") from error


def _implementation(
    loaded: LoadedConfig, registry: Registry, architecture: str
) -> Component | None:
    """The plugin of a model, without its options; None: no plugin serves this architecture."""
    name = loaded.config.model.name
    if name is None and architecture not in registry.names("model"):
        return None
    try:
        wanted = architecture if name is None else name
        entry = registry.find("model", wanted, by_default=name is None)
    except PluginError as error:
        if name is None:
            return None  # the choice of components says why
        source = loaded.values.source(("model", "name"))
        raise type(error)(f"{source}: model.name: {error}") from None
    return Component(plugin=load_plugin(entry), entry=entry)


def _check_served(component: Component, architecture: str, folder: Path) -> None:
    """Refuse to let a plugin stand for a checkpoint that it does not claim to serve.

    The core's families have rules of their own, see `read_checkpoint`.
    """
    served = component.plugin.architectures or (component.name,)
    if "*" in served or architecture in served or component.name in FAMILIES:
        return
    raise ModelError(
        f"model.name: {component.label} serves {', '.join(served)}, and {folder / CONFIG} states "
        f"the architecture {shown(architecture)}. A plugin that serves any checkpoint states "
        "architectures=('*',)"
    )


def _read_by(component: Component, config_json: Mapping[str, object], folder: Path) -> ModelSpec:
    """What the plugin's reader makes of the folder, checked."""
    target = component.plugin.spec
    assert target is not None
    what = f"the reader {target} of {component.label}"
    function = guarded(lambda: load_target(target), what, "import")
    spec: Any = guarded(
        lambda: function(MappingProxyType(dict(config_json)), folder),
        what, f"read {folder / CONFIG}", passing=(NanofwError,),
    )  # fmt: skip
    if not isinstance(spec, ModelSpec):
        raise PluginError(f"{what} returned {shown(spec)}, no ModelSpec")
    for key in (*_COUNTS, *_SIZES):
        value: Any = getattr(spec, key)
        if value is None and key in _SIZES:
            continue
        if type(value) is not int or value < 1:
            raise PluginError(f"{what}: {key} should be a positive integer, not {shown(value)}")
    if spec.dtype not in BYTES_PER_ELEMENT:
        known = ", ".join(BYTES_PER_ELEMENT)
        raise PluginError(f"{what}: dtype should be one of {known}, not {shown(spec.dtype)}")
    return spec
