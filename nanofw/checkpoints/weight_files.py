"""Which files of a checkpoint folder hold its weights, and the shapes that their headers state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from nanofw.checkpoints.files import is_inside, is_regular, read_json, shown
from nanofw.checkpoints.formats import describe
from nanofw.errors import ModelError
from nanofw.narrowing import is_list, is_object

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
"""The tensors that `tie_word_embeddings` makes one."""
_MAX_INDEX_BYTES = 64 << 20
_MAX_HEADER_BYTES = 100_000_000  # the bound of safetensors itself
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The files that are read.

    Attributes:
        folder: where they are.
        files: file name -> names of the tensors to read from it; None: all that it has.
        note: a sentence about what lies beside them and is not read; empty: nothing.
    """

    folder: Path
    files: Mapping[str, tuple[str, ...] | None]
    note: str = ""


def find_weight_files(folder: Path) -> WeightFiles:
    """Find the weights in a folder, without reading them.

    A whole file counts before an index, as in transformers. With an index, only the files that it
    names count; what else lies in the folder is not read.

    Raises:
        ModelError: no weights, or files that the index names are missing or outside the folder.
    """
    if not folder.is_dir():
        raise ModelError(f"model.path: there is no folder {folder}")
    if is_regular(folder / SINGLE):
        has_index = is_regular(folder / INDEX)
        note = f"{folder / SINGLE} is read; the {INDEX} beside it is not" if has_index else ""
        return WeightFiles(folder, {SINGLE: None}, note)
    if is_regular(folder / INDEX):
        return _indexed(folder)
    others = sorted(file.name for file in folder.glob("*.safetensors"))[:_SHOWN]
    found = f"; it has {', '.join(others)}, which no {INDEX} names" if others else ""
    raise ModelError(
        f"{folder} has neither {SINGLE} nor {INDEX}{found}{describe(folder)}. Weights must be "
        "safetensors: transformers writes them with save_pretrained"
    )


def read_shapes(path: Path) -> Mapping[str, tuple[int, ...]]:
    """Name of each tensor in a file of safetensors -> its shape.

    Raises:
        ModelError: the file is not one of these.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > _MAX_HEADER_BYTES:
                raise ValueError(f"its header has {size:,} bytes")
            header: object = json.loads(file.read(size))
        if not is_object(header):
            raise ValueError("its header is not an object")
        return {name: _shape(name, of) for name, of in header.items() if name != "__metadata__"}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as safetensors: {error}") from None


def _shape(name: str, tensor: object) -> tuple[int, ...]:
    shape = tensor.get("shape") if is_object(tensor) else None
    if not is_list(shape) or not all(isinstance(size, int) for size in shape):
        raise ValueError(f"the shape of {shown(name)} is {shown(shape)}")
    return tuple(cast("Sequence[int]", shape))


def _indexed(folder: Path) -> WeightFiles:
    path = folder / INDEX
    try:
        weight_map: object = read_json(path, max_bytes=_MAX_INDEX_BYTES).get("weight_map")
    except ModelError as error:
        raise ModelError(f"{path} is not an index of safetensors: {error}") from None
    if not isinstance(weight_map, dict) or not weight_map:
        what = shown(cast("object", weight_map))
        raise ModelError(f"{path} is not an index of safetensors: weight_map is {what}")
    files: dict[str, list[str]] = {}
    for name, file in cast("dict[str, object]", weight_map).items():
        if not is_inside(file):
            raise ModelError(
                f"{path} is not an index of safetensors: weight_map: the file of {shown(name)} is "
                f"{shown(file)}, which is not the name of a file in this folder"
            )
        files.setdefault(str(file), []).append(name)
    missing = sorted(file for file in files if not is_regular(folder / file))
    if missing:
        more = len(missing) - _SHOWN
        listed = ", ".join(missing[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        raise ModelError(
            f"{path} names files that are not there: {listed}. The checkpoint was not "
            "downloaded to its end; fetch them, nothing was loaded"
        )
    return WeightFiles(folder, {file: tuple(names) for file, names in sorted(files.items())})
