"""The tokenizer of a checkpoint folder: text to ids and back."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import tokenizers

from nanofw.errors import ModelError
from nanofw.text.detokenize import (
    ByteLevelStream,
    ChainStream,
    TokenStream,
    WholeStream,
    build_chain,
    spelled_bytes,
)

logger = logging.getLogger(__name__)


class Tokenizer(Protocol):
    """What the text side needs of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Ids that it can produce, added tokens included."""
        ...

    @property
    def max_token_length(self) -> int:
        """Characters of the longest token."""
        ...

    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """End tokens that the tokenizer itself names; the model may name others."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text; empty for an empty text before which no token is put."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD."""
        ...

    def stream(self, *, skip_special_tokens: bool = True) -> TokenStream:
        """An incremental `decode` for one request."""
        ...


class TokenTable(dict[int, "str | None"]):
    """Id to token string, filled as it is asked; None for what decoding leaves out."""

    def __init__(self, backend: tokenizers.Tokenizer, skipped: frozenset[str]) -> None:
        super().__init__()
        self._backend, self._skipped = backend, skipped

    def __missing__(self, token_id: int) -> str | None:
        token = self._backend.id_to_token(int(token_id))
        token = None if token in self._skipped else token
        self[token_id] = token
        return token


class ByteTable(dict[int, bytes]):
    """Id to bytes of a byte-level vocabulary, filled as it is asked."""

    def __init__(self, tokens: TokenTable) -> None:
        super().__init__()
        self._tokens = tokens

    def __missing__(self, token_id: int) -> bytes:
        token = self._tokens[token_id]
        data = self[token_id] = b"" if token is None else spelled_bytes(token)
        return data


class FileTokenizer:
    """A `tokenizer.json` with the settings of its `tokenizer_config.json`.

    Args:
        backend: the tokenizer; truncation and padding are switched off.
        config: the parsed `tokenizer_config.json`; may be empty.

    Attributes:
        special_tokens: text of the tokens that the configuration names: bos_token and so on.
        vocab_size, max_token_length, bos_token_id, eos_token_ids: as in `Tokenizer`.
    """

    def __init__(self, backend: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend, self.config = backend, config
        self.special_tokens = special_token_texts(config)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = len(vocabulary)
        self.max_token_length = max(map(len, vocabulary), default=1)
        self.bos_token_id = self._token_id("bos_token")
        eos_token_id = self._token_id("eos_token")
        self.eos_token_ids = () if eos_token_id is None else (eos_token_id,)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text. `add_bos_token` of the configuration wins over `tokenizer.json`."""
        token_ids = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        return self._settle_bos(text, token_ids) if add_special_tokens else token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids; ids outside the vocabulary have none."""
        return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def stream(self, *, skip_special_tokens: bool = True) -> TokenStream:
        """An incremental `decode`; parts joined equal it exactly."""
        links = build_chain(self._decoder)
        if links is None:
            return WholeStream(
                lambda token_ids: self.decode(token_ids, skip_special_tokens=skip_special_tokens)
            )
        if self._decoder is not None and self._decoder["type"] == "ByteLevel":
            return ByteLevelStream(self._byte_tables[skip_special_tokens])
        return ChainStream(self._token_tables[skip_special_tokens], links)

    def _token_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.backend.token_to_id(token)

    def _settle_bos(self, text: str, token_ids: list[int]) -> list[int]:
        wanted, bos = self.config.get("add_bos_token"), self.bos_token_id
        if wanted is None or bos is None:
            return token_ids
        has_bos = token_ids[:1] == [bos]
        if wanted and not has_bos:
            return [bos, *token_ids]
        written = text.startswith(self.special_tokens["bos_token"])
        return token_ids[1:] if has_bos and not wanted and not written else token_ids

    @cached_property
    def _decoder(self) -> dict[str, Any] | None:
        backend: Any = self.backend.decoder
        decoder: dict[str, Any] | None
        decoder = None if backend is None else json.loads(backend.__getstate__())
        if decoder is not None and build_chain(decoder) is None:
            logger.warning(
                "decoder %s of this tokenizer cannot work on a stream: "
                "streamed text comes in one piece at the end",
                decoder["type"],
            )
        return decoder

    @cached_property
    def _token_tables(self) -> tuple[TokenTable, TokenTable]:
        added = self.backend.get_added_tokens_decoder().values()
        special = frozenset(token.content for token in added if token.special)
        return TokenTable(self.backend, frozenset()), TokenTable(self.backend, special)

    @cached_property
    def _byte_tables(self) -> tuple[ByteTable, ByteTable]:
        every, without_special = self._token_tables
        return ByteTable(every), ByteTable(without_special)


def special_token_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """The text of each token that the configuration names: bos_token and so on."""
    named = {key: token_text(value) for key, value in config.items() if key.endswith("_token")}
    return {key: text for key, text in named.items() if text is not None}


def token_text(value: Any) -> str | None:
    """The text of a token as configurations spell it: a string, or an object with `content`."""
    if isinstance(value, dict):
        return token_text(cast("dict[str, Any]", value).get("content"))
    return value if isinstance(value, str) else None


def load_tokenizer(folder: str | Path) -> FileTokenizer:
    """The tokenizer of a checkpoint folder.

    Raises:
        ModelError: there is no `tokenizer.json`, or a file cannot be read.
    """
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(
            f"{folder} has no tokenizer.json. Give prompts as token ids, or convert the "
            "tokenizer once with transformers: AutoTokenizer.from_pretrained(folder)"
            ".save_pretrained(folder)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises plain Exception
        raise ModelError(f"{path} cannot be read: {error}") from error
    return FileTokenizer(backend, read_tokenizer_config(folder))


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json` of a folder, and what `special_tokens_map.json` says of tokens.

    As in transformers the map counts only where the configuration has no `added_tokens_decoder`,
    and wins there.

    Raises:
        ModelError: a file is not a JSON object.
    """
    config: dict[str, Any] = {}
    path = folder / "tokenizer_config.json"
    if path.is_file():
        config = read_object(path)
    path = folder / "special_tokens_map.json"
    if path.is_file() and "added_tokens_decoder" not in config:
        config |= read_object(path)
    return config


def read_object(path: Path) -> dict[str, Any]:
    """A file that holds a JSON object. Raises ModelError when it does not."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return cast("dict[str, Any]", value)
