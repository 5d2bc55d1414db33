"""End tokens of a checkpoint, from `generation_config.json` and `config.json`."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from nanofw.checkpoints.files import read_json, shown
from nanofw.checkpoints.keys import ConfigKeys
from nanofw.errors import ModelError

GENERATION_CONFIG = "generation_config.json"
_KEY = "eos_token_id"
_MOST = 1024


def read_eos_token_ids(keys: ConfigKeys, folder: Path, vocab_size: int) -> tuple[int, ...]:
    """End tokens of both files, those of `generation_config.json` first.

    The family's default counts only where neither file could have said it: there is no
    `generation_config.json`, and `config.json` lacks the key. Ids outside the vocabulary, -1 for
    instance, can end no request and are left out.
    """
    path = folder / GENERATION_CONFIG
    found: list[int] = []
    is_there = path.exists()
    if is_there:
        found += _ids(read_json(path).get(_KEY), str(path))
    if _KEY in keys.config:
        found += _ids(keys.config[_KEY], keys.place)
    elif not is_there:
        found += _ids(keys.defaults.get(_KEY), keys.place)
    return tuple(dict.fromkeys(item for item in found if 0 <= item < vocab_size))


def _ids(value: object, place: str) -> list[int]:
    if value is None:
        return []
    ids: list[object] = cast("list[object]", value) if isinstance(value, list) else [value]
    if len(ids) > _MOST or any(type(item) is not int for item in ids):
        raise ModelError(
            f"{place}: {_KEY} should be a token id or a list of at most {_MOST} of them, "
            f"not {shown(cast('object', value))}"
        )
    return cast("list[int]", ids)
