"""The files of a checkpoint: which there are, what is in them, one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from nanofw.errors import ModelError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder of safetensors.

    Attributes:
        folder: where it is.
        files: file name -> names of the tensors to read from it; None: all that it has.
    """

    folder: Path
    files: Mapping[str, tuple[str, ...] | None]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and content of every tensor, on the CPU, one at a time.

        Raises:
            ModelError: a file is damaged or lacks a tensor that the index promises.
        """
        for file, names in self.files.items():
            path = self.folder / file
            try:
                with safe_open(path, framework="pt") as opened:
                    yield from _read(path, opened, names)
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"{path} cannot be read as safetensors ({error}): it is damaged or was not "
                    "downloaded to its end; fetch it again"
                ) from error


def open_checkpoint(folder: Path) -> Checkpoint:
    """Find the weights in a folder, without reading them.

    With an index, only the files that it names count; what else lies in the folder is not read.

    Raises:
        ModelError: no weights, or files that the index names are missing.
    """
    if not folder.is_dir():
        raise ModelError(f"model.path: there is no folder {folder}")
    if (folder / INDEX).is_file():
        return _indexed(folder)
    if (folder / SINGLE).is_file():
        return Checkpoint(folder, {SINGLE: None})
    others = sorted(file.name for file in folder.glob("*.safetensors"))
    found = f"; it has {', '.join(others)}, which no {INDEX} names" if others else ""
    raise ModelError(
        f"{folder} has neither {SINGLE} nor {INDEX}{found}. Weights must be safetensors: "
        "transformers writes them with save_pretrained"
    )


def _indexed(folder: Path) -> Checkpoint:
    path = folder / INDEX
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        files: dict[str, list[str]] = {}
        for name, file in weight_map.items():
            if not isinstance(file, str):
                raise TypeError(f"the file of {name} is {file!r}")
            files.setdefault(file, []).append(name)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{path} is not an index of safetensors: {error!r}") from error
    missing = sorted(file for file in files if not (folder / file).is_file())
    if missing:
        raise ModelError(
            f"{path} names files that are not there: {', '.join(missing)}. The checkpoint was not "
            "downloaded to its end; fetch them, nothing was loaded"
        )
    return Checkpoint(folder, {file: tuple(names) for file, names in sorted(files.items())})


def _read(
    path: Path, opened: Any, names: tuple[str, ...] | None
) -> Iterator[tuple[str, torch.Tensor]]:
    present = set(opened.keys())
    wanted = sorted(present) if names is None else names
    lacking = [name for name in wanted if name not in present]
    if lacking:
        raise ModelError(f"{path} lacks tensors that {INDEX} promises: {', '.join(lacking[:8])}")
    for name in wanted:
        yield name, opened.get_tensor(name)
