"""The tensors of a checkpoint, read one at a time."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from nanofw.checkpoints.weight_files import EMBEDDING, HEAD, INDEX, WeightFiles, find_weight_files
from nanofw.contracts.model_spec import ModelSpec
from nanofw.errors import ModelError

logger: logging.Logger = logging.getLogger(__name__)

_ROWS = 8192  # compared at once


@dataclass(frozen=True, slots=True)
class Checkpoint(WeightFiles):
    """The files of a folder's weights, and the tensors in them."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and content of every tensor, on the CPU, one at a time.

        Raises:
            ModelError: a file is damaged or lacks a tensor that the index promises.
        """
        for path, names in self._paths():
            with _opened(path) as file:
                for name in _wanted(path, file, names):
                    yield name, file.get_tensor(name)

    def differ(self, one: str, two: str) -> bool:
        """Whether both tensors are there and are not the same numbers."""
        places = {name: path for path, names in self._paths() for name in _names(path, names)}
        if one not in places or two not in places:
            return False
        with _opened(places[one]) as first, _opened(places[two]) as second:
            left, right = first.get_slice(one), second.get_slice(two)
            if left.get_shape() != right.get_shape():
                return True
            num_rows = (left.get_shape() or [0])[0]
            return any(
                not torch.equal(left[start : start + _ROWS], right[start : start + _ROWS])
                for start in range(0, num_rows, _ROWS)
            )

    def _paths(self) -> Iterator[tuple[Path, tuple[str, ...] | None]]:
        for file, names in self.files.items():
            yield self.folder / file, names


def open_checkpoint(folder: Path) -> Checkpoint:
    """The weights in a folder; see `find_weight_files`, also for what it raises."""
    found = find_weight_files(folder)
    return Checkpoint(found.folder, found.files, found.note)


def settle_ties(spec: ModelSpec, checkpoint: Checkpoint) -> ModelSpec:
    """The spec with embedding and head apart where the checkpoint has both, and they differ.

    `config.json` then does not describe its weights; the weights count, as in transformers.
    """
    if not spec.tie_word_embeddings or not checkpoint.differ(EMBEDDING, HEAD):
        return spec
    logger.warning(
        "%s: tie_word_embeddings is true, but %s and %s are both there and differ: they are not "
        "tied. Set tie_word_embeddings to false in config.json",
        checkpoint.folder, EMBEDDING, HEAD,
    )  # fmt: skip
    return dataclasses.replace(spec, tie_word_embeddings=False)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path} cannot be read as safetensors ({error}): it is damaged or was not "
            "downloaded to its end; fetch it again"
        ) from error


def _names(path: Path, names: tuple[str, ...] | None) -> tuple[str, ...]:
    """Names of the tensors that are read from a file."""
    if names is not None:
        return names
    with _opened(path) as file:
        return tuple(file.keys())


def _wanted(path: Path, file: Any, names: tuple[str, ...] | None) -> list[str]:
    present = set(file.keys())
    wanted = sorted(present) if names is None else list(names)
    lacking = [name for name in wanted if name not in present]
    if lacking:
        raise ModelError(f"{path} lacks tensors that {INDEX} promises: {', '.join(lacking[:8])}")
    return wanted
