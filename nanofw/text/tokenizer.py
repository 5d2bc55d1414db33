"""The tokenizer of a checkpoint folder: text to ids and back."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import tokenizers

from nanofw.checkpoints.tokenizer_files import (
    load_backend,
    read_tokenizer_config,
    special_token_texts,
)
from nanofw.text.detokenize import (
    ByteLevelStream,
    ChainStream,
    TokenStream,
    WholeStream,
    build_chain,
    spelled_bytes,
)

logger: logging.Logger = logging.getLogger(__name__)


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

    def __init__(self, backend: tokenizers.Tokenizer, config: dict[str, object]) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.config = config
        self.special_tokens: dict[str, str] = special_token_texts(config)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size: int = len(vocabulary)
        self.max_token_length: int = max(map(len, vocabulary), default=1)
        self.bos_token_id: int | None = self._token_id("bos_token")
        eos_token_id = self._token_id("eos_token")
        self.eos_token_ids: tuple[int, ...] = () if eos_token_id is None else (eos_token_id,)

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
    def _decoder(self) -> dict[str, object] | None:
        backend = self.backend.decoder
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


def load_tokenizer(folder: str | Path) -> FileTokenizer:
    """The tokenizer of a checkpoint folder.

    Raises:
        ModelError: there is no `tokenizer.json`, or a file cannot be read.
    """
    folder = Path(folder)
    return FileTokenizer(load_backend(folder), read_tokenizer_config(folder))
