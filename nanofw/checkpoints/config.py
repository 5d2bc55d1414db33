"""From the folder of a checkpoint to a `ModelSpec`, without torch and without its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from nanofw.checkpoints.families import FAMILIES, OTHER
from nanofw.checkpoints.family import CONFIG, Family, named, stated_architecture
from nanofw.checkpoints.files import read_json, shown
from nanofw.contracts.model_spec import BYTES_PER_ELEMENT, ModelSpec
from nanofw.errors import ModelError


def read_checkpoint(folder: Path, *, family: str | None = None) -> ModelSpec:
    """The description of the checkpoint in a folder; its dtype is the checkpoint's own.

    Args:
        family: the architecture whose reader is taken; None: the one that the file states.

    Raises:
        ModelError: no or broken `config.json`, missing keys, quantized weights, a decoder inside
            a model of another kind, an unknown rope, layer or element type, or a file that says
            that it belongs to another family.
    """
    config = read_json(folder / CONFIG)
    place = str(folder / CONFIG)
    _refuse_quantized(config, place)
    _refuse_parts(config, place)
    if family is None:
        architecture = _architecture(config, place)
        reader = FAMILIES.get(architecture, OTHER)
        _check_stated(config, reader, architecture, place)
    else:
        reader = FAMILIES.get(family, OTHER)
        _check_forced(config, reader, place)
    return reader.read(config, folder)


def _refuse_quantized(config: Mapping[str, object], place: str) -> None:
    found = config.get("quantization_config") or config.get("compression_config")
    if not found:
        return
    method = (
        cast("dict[str, object]", found).get("quant_method") if isinstance(found, dict) else None
    )
    raise ModelError(
        f"{place}: quantization {shown(method)[1:-1] if method else 'of an unknown kind'} is not "
        f"supported; supported: weights in {', '.join(BYTES_PER_ELEMENT)}"
    )


def _refuse_parts(config: Mapping[str, object], place: str) -> None:
    """Refuse files that do not describe one decoder whose layers are alike."""
    if isinstance(config.get("text_config"), dict):
        raise ModelError(
            f"{place}: {stated_architecture(config) or 'the model'} keeps its decoder in "
            "text_config, beside parts for images or sound; only plain decoders are supported"
        )
    if config.get("per_layer_config"):
        raise ModelError(f"{place}: per_layer_config: layers of different shapes are not supported")


def _architecture(config: Mapping[str, object], place: str) -> str:
    name = stated_architecture(config)
    if not name:
        raise ModelError(
            f"{place} does not say which architecture it is (key architectures, a list of names)"
        )
    return name


def _check_stated(
    config: Mapping[str, object], reader: Family, architecture: str, place: str
) -> None:
    """Refuse a file whose two statements of its family do not agree."""
    model_type = config.get("model_type")
    if reader is OTHER or model_type is None or model_type in reader.model_types:
        return
    raise ModelError(
        f"{place}: architectures says {architecture} and model_type says {shown(model_type)}, "
        f"which is another family{_unknown(config, reader)}; correct the one that is wrong"
    )


def _check_forced(config: Mapping[str, object], reader: Family, place: str) -> None:
    """Refuse to read a file of another family because `model.name` says so."""
    stated = stated_architecture(config)
    if reader is OTHER or stated == reader.architecture:
        return
    model_type, foreign = config.get("model_type"), reader.foreign_keys(config)
    if model_type in reader.model_types or (model_type is None and not foreign):
        return
    raise ModelError(
        f"model.name: {reader.architecture} cannot stand for {place}, which says architectures "
        f"{shown(stated)} and model_type {shown(model_type)}{_unknown(config, reader)}. Leave "
        "model.name out or install a plugin for that architecture; if the computation is "
        f"the same, state {reader.architecture} and {reader.model_types[0]} in the file"
    )


def _unknown(config: Mapping[str, object], reader: Family) -> str:
    foreign = reader.foreign_keys(config)
    return f"; {reader.architecture} does not know {named(foreign)}" if foreign else ""
