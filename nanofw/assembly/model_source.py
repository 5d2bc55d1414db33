"""Where `model.path` leads: a folder, the embedded model, a hub, or a bare shape."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

import nanofw
from nanofw.checkpoints.config import read_checkpoint
from nanofw.checkpoints.formats import describe_file
from nanofw.contracts.model_spec import ModelSpec
from nanofw.errors import ModelError, near

logger: logging.Logger = logging.getLogger(__name__)

EMBEDDED = Path(nanofw.__file__).parent / "models" / "embedded"

_CONFIG_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]
_WEIGHT_FILES = [*_CONFIG_FILES, "*.safetensors"]


def read_spec(path: str, *, weights: bool = True, family: str | None = None) -> ModelSpec:
    """The description of the model at a path; what its reader left aside is logged.

    Args:
        path: a folder, `embedded:demo`, a hub id such as `Qwen/Qwen3-0.6B`, or `shape:qwen3-8b`
            (a published shape without weights, for simulated runs).
        weights: whether the run will load weights; otherwise only configuration is fetched.
        family: the architecture that the configuration names; None: the checkpoint's own.

    Raises:
        ModelError: nothing is there, or it is not supported.
    """
    scheme, _, name = path.partition(":")
    if scheme == "shape" and name:
        if weights:
            raise ModelError(f"{path} has no weights; it runs with executor: {{name: sim}} only")
        shape: Any = importlib.import_module("nanofw.sim.shapes").shape
        return shape(name)
    spec = read_checkpoint(locate(path, weights=weights), family=family)
    for note in spec.notes:
        logger.warning("%s", note)
    return spec


def locate(path: str, *, weights: bool = True) -> Path:
    """The local folder of a checkpoint; fetches from the hub what is not there yet."""
    if path.startswith("embedded:"):
        return _embedded(path.removeprefix("embedded:"))
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or folder.suffix == ".gguf":
        raise ModelError(f"model.path {path!r} is not a folder: {describe_file(folder)}")
    if path.startswith((".", "/", "~")) or path.count("/") != 1:
        known = [f"embedded:{name}" for name in embedded_models()]
        raise ModelError(
            f"model.path {path!r}: no such folder{near(path, known)}; it is a folder, a hub id "
            f"such as Qwen/Qwen3-0.6B, or one of {', '.join(known)}"
        )
    return _fetch(path, weights)


def embedded_models() -> list[str]:
    """Names of the models that ship with nanofw."""
    return sorted(path.parent.name for path in EMBEDDED.glob("*/config.json"))


def _embedded(name: str) -> Path:
    folder = EMBEDDED / name
    if not (folder / "config.json").is_file():
        known = embedded_models()
        raise ModelError(
            f"no embedded model {name!r}{near(name, known)}; known: {', '.join(known) or 'none'}"
        )
    return folder


def _fetch(repository: str, weights: bool) -> Path:
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError:
        raise ModelError(
            f"model.path {repository!r} is not a folder here, and fetching it from the hub needs "
            f"huggingface_hub: pip install 'nanofw[hub]'"
        ) from None
    patterns = _WEIGHT_FILES if weights else _CONFIG_FILES
    try:
        return Path(hub.snapshot_download(repository, allow_patterns=patterns))
    except Exception as error:
        raise ModelError(
            f"model.path {repository!r} is not a folder here and could not be fetched "
            f"from the hub: {type(error).__name__}: {str(error).splitlines()[0]}"
        ) from error
