"""The tokenizer files of a folder, with the meaning that transformers gives them.

`tokenizer.json` need not have every token: `tokenizer_config.json`, `special_tokens_map.json` and
`added_tokens.json` beside it name further ones, or say that one of them is special.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import tokenizers

from nanofw.checkpoints.files import read_json
from nanofw.errors import ModelError
from nanofw.narrowing import is_object

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
SPECIAL_TOKENS_MAP, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"
FILES = (TOKENIZER, CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS)

MAX_TOKENIZER_BYTES = 1 << 28
"""The largest that are published have some 40 MB."""
_TOKEN_FIELDS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""In the order in which those that `tokenizer.json` lacks get their ids."""

_DECODER, _EXTRA = "added_tokens_decoder", "extra_special_tokens"


def load_backend(folder: Path) -> tokenizers.Tokenizer:
    """The folder's tokenizer with all its tokens. Callers share it and must not change it.

    Raises:
        ModelError: there is no `tokenizer.json`, or a file cannot be read.
    """
    return _load(folder, _versions(folder))[0]


def tokenizer_json(folder: Path) -> str:
    """What `tokenizer.json` would say if it had all tokens. Raises as `load_backend`."""
    backend, is_changed = _load(folder, _versions(folder))
    if is_changed:
        return backend.to_str()
    return (folder / TOKENIZER).read_text(encoding="utf-8")


def num_token_ids(folder: Path) -> int | None:
    """Ids that the tokenizer has: the highest one, plus one. None: the folder has no tokenizer.

    Raises:
        ModelError: a file cannot be read.
    """
    if not (folder / TOKENIZER).is_file():
        return None
    return max(load_backend(folder).get_vocab(with_added_tokens=True).values(), default=-1) + 1


def read_tokenizer_config(folder: Path) -> dict[str, object]:
    """`tokenizer_config.json` of a folder, and what `special_tokens_map.json` says of tokens.

    As in transformers the map counts only where the configuration has no `added_tokens_decoder`,
    and wins there.

    Raises:
        ModelError: a file is not a JSON object.
    """
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    path = folder / SPECIAL_TOKENS_MAP
    if path.is_file() and _DECODER not in config:
        config |= read_json(path)
    return config


def special_token_texts(config: Mapping[str, object]) -> dict[str, str]:
    """The text of each token that the configuration names: bos_token and so on."""
    keys = [*_NAMES, *(key for key in config if key.endswith("_token") and key not in _NAMES)]
    named = {key: token_text(config.get(key)) for key in keys}
    extra = config.get(_EXTRA)
    if isinstance(extra, dict):  # named ones of this model
        items = cast("dict[str, object]", extra).items()
        named |= {key: token_text(value) for key, value in items}
    return {key: text for key, text in named.items() if text is not None}


def token_text(value: object) -> str | None:
    """The text of a token as configurations spell it: a string, or an object with `content`."""
    if isinstance(value, dict):
        return token_text(cast("dict[str, object]", value).get("content"))
    return value if isinstance(value, str) else None


def _versions(folder: Path) -> tuple[tuple[int, int] | None, ...]:
    """What changes when a file changes."""
    found: list[tuple[int, int] | None] = []
    for name in FILES:
        try:
            facts = (folder / name).stat()
        except OSError:
            found.append(None)
        else:
            found.append((facts.st_mtime_ns, facts.st_size))
    return tuple(found)


@lru_cache(maxsize=2)
def _load(folder: Path, versions: object) -> tuple[tokenizers.Tokenizer, bool]:
    """The tokenizer, and whether it has more than its file says."""
    path = folder / TOKENIZER
    if not path.is_file():
        raise ModelError(
            f"{folder} has no tokenizer.json. Give prompts as token ids, or convert the "
            "tokenizer once with transformers: AutoTokenizer.from_pretrained(folder)"
            ".save_pretrained(folder)"
        )
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise ModelError(f"{path} is larger than {MAX_TOKENIZER_BYTES:,} bytes")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the library's panics are not of the class Exception
        raise ModelError(f"{path} cannot be read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    missing = _missing_tokens(folder, backend)
    if missing:
        cast("Any", backend).add_tokens(missing)  # the library states a type that it does not need
    return backend, bool(missing)


def _missing_tokens(folder: Path, backend: tokenizers.Tokenizer) -> list[tokenizers.AddedToken]:
    """Tokens that other files name and `tokenizer.json` lacks, or has with other properties."""
    config = read_tokenizer_config(folder)
    named = list(special_token_texts(config).values())
    extra = _extra_texts(config)
    usual = {text for name in _NAMES if (text := token_text(config.get(name))) is not None}
    listed = _listed_tokens(folder, config, {*usual, *extra}, backend)
    by_text = {token.content: token for token in listed.values()}
    for text in named:  # transformers makes those special that have a name
        if text in by_text:
            by_text[text].special = True
    present = backend.get_added_tokens_decoder().values()
    there = {repr(token) for token in present}
    made = [token for _, token in sorted(listed.items()) if repr(token) not in there]
    known = {token.content for token in (*present, *made)}
    wanted = dict.fromkeys([*named, *extra])
    made += [tokenizers.AddedToken(text, special=True) for text in wanted if text not in known]
    return made


def _listed_tokens(
    folder: Path, config: Mapping[str, object], special: set[str], backend: tokenizers.Tokenizer
) -> dict[int, tokenizers.AddedToken]:
    """Tokens by the id that a file gives them; ids only order them."""
    decoder, made = config.get(_DECODER), dict[int, tokenizers.AddedToken]()
    if isinstance(decoder, dict):
        for index, token in cast("dict[str, object]", decoder).items():
            text = token_text(token)
            if text is None or not index.isdigit() or not is_object(token):
                raise ModelError(
                    f"{folder / CONFIG}: {_DECODER} has no token with a content under {index!r}"
                )
            flags = {
                name: flag for name in _TOKEN_FIELDS if isinstance(flag := token.get(name), bool)
            }
            made[int(index)] = tokenizers.AddedToken(text, **flags)
        return made
    path = folder / ADDED_TOKENS
    if path.is_file():
        for text, index in read_json(path).items():
            if not isinstance(index, int):
                raise ModelError(f"{path}: {text!r} has no id that is an integer")
            is_special = text in special
            made[index] = tokenizers.AddedToken(
                text, lstrip=False, rstrip=False, normalized=not is_special, special=is_special
            )
    return made | backend.get_added_tokens_decoder()  # what tokenizer.json says of a token wins


def _extra_texts(config: Mapping[str, object]) -> list[str]:
    extra = config.get(_EXTRA) or config.get("additional_special_tokens")
    if not isinstance(extra, list):
        return []
    return [text for text in map(token_text, cast("Iterable[object]", extra)) if text is not None]
