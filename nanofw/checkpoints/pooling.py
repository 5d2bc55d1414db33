"""How a checkpoint makes embeddings: the modules of sentence-transformers beside its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import cast

from nanofw.checkpoints.files import is_inside, read_json, read_json_list, shown
from nanofw.contracts.requests import Pooling
from nanofw.errors import ModelError

MODULES = "modules.json"
_KEYS: Mapping[str, Pooling] = MappingProxyType(
    {
        "pooling_mode_lasttoken": "last",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_cls_token": "cls",
    }
)
_WORDS: Mapping[str, Pooling] = MappingProxyType(
    {"lasttoken": "last", "last": "last", "mean": "mean", "cls": "cls"}
)
"""Values of the newer key `pooling_mode`."""


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """What becomes of the hidden states of a text.

    Attributes:
        pooling: which of them count.
        normalize: the embedding is divided by its length.
    """

    pooling: Pooling = "last"
    normalize: bool = True


def read_embedding_spec(folder: Path) -> EmbeddingSpec:
    """What a checkpoint says of its embeddings: the last hidden state, normalised, where it says
    nothing.

    Raises:
        ModelError: a file is broken, or describes what is not supported.
    """
    path = folder / MODULES
    if not path.is_file():
        return EmbeddingSpec()
    modules = [_module(item, path) for item in read_json_list(path)]
    kinds = [kind for kind, _ in modules]
    if unknown := sorted({*kinds} - {"Transformer", "Pooling", "Normalize"}):
        raise ModelError(
            f"{path}: modules of type {', '.join(map(shown, unknown))} are not supported; "
            "supported: Transformer, Pooling, Normalize"
        )
    places = [place for kind, place in modules if kind == "Pooling"]
    pooling = _pooling(folder, places[0], path) if places else "last"
    return EmbeddingSpec(pooling, "Normalize" in kinds)


def _module(item: object, path: Path) -> tuple[str, str]:
    """The class of a module without its package, and its folder."""
    values = cast("dict[str, object]", item) if isinstance(item, dict) else {}
    kind, place = values.get("type"), values.get("path", "")
    if not isinstance(kind, str) or not (place == "" or is_inside(place)):
        raise ModelError(
            f"{path}: a module should have a type and a path, not be {shown(cast('object', item))}"
        )
    return kind.rpartition(".")[2], cast("str", place)


def _pooling(folder: Path, place: str, modules: Path) -> Pooling:
    path = folder / place / "config.json"
    if not path.is_file():
        raise ModelError(f"{modules} names {path}, which is not there")
    values = read_json(path)
    word: object = values.get("pooling_mode")
    if isinstance(word, str):
        if word not in _WORDS:
            raise ModelError(f"{path}: pooling_mode {shown(word)} is not supported; {_supported()}")
        return _WORDS[word]
    stated = [key for key, value in values.items() if key.startswith("pooling_mode_") and value]
    if len(stated) != 1 or stated[0] not in _KEYS:
        found = ", ".join(stated) or "no pooling mode"
        raise ModelError(f"{path}: {found} is not supported; {_supported()}")
    return _KEYS[stated[0]]


def _supported() -> str:
    return f"supported: one of {', '.join(_KEYS)}"
