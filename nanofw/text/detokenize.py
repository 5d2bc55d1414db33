"""Incremental detokenization that equals decoding the whole.

`tokenizers` decodes a list of token strings through a chain of decoders. Here the same chain
runs on one token at a time: each link keeps what it cannot know yet (the first bytes of a
character, a run of byte tokens) and lets go of the rest. The parts joined are therefore what
`Tokenizer.decode` gives for the whole list, at a cost that is linear in its length.

Links work on pieces `(text, begins)`: `begins` is False for a piece that continues the token
of the piece before, which is the case behind a link that fuses tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from nanofw.narrowing import is_dict, is_list
from nanofw.text.byte_level import Utf8Stream, byte_alphabet

Piece: TypeAlias = tuple[str, bool]


class TokenStream(Protocol):
    """Token ids in, text out, one request."""

    def push_token(self, token_id: int) -> str:
        """Text that is certain after this token; may be empty."""
        ...

    def finish(self) -> str:
        """The text that waited for more tokens. Nothing may be pushed afterwards."""
        ...


class Link(Protocol):
    """One decoder of a chain, working on a stream of pieces."""

    def push_piece(self, text: str, begins: bool) -> Iterable[Piece]: ...
    def finish(self) -> Iterable[Piece]: ...


class ReplaceLink:
    """Replaces a fixed string within each token."""

    def __init__(self, pattern: str, content: str) -> None:
        self._pattern, self._content = pattern, content

    def push_piece(self, text: str, begins: bool) -> Iterable[Piece]:
        return ((text.replace(self._pattern, self._content), begins),)

    def finish(self) -> Iterable[Piece]:
        return ()


class FuseLink:
    """Makes all tokens one."""

    def __init__(self) -> None:
        self._first = True

    def push_piece(self, text: str, begins: bool) -> Iterable[Piece]:
        piece = (text, self._first)
        self._first = False
        return (piece,)

    def finish(self) -> Iterable[Piece]:
        return ()


class JoinLink:
    """A blank between tokens: what a tokenizer without a decoder does."""

    def __init__(self) -> None:
        self._first = True

    def push_piece(self, text: str, begins: bool) -> Iterable[Piece]:
        piece = (text if self._first else f" {text}", True)
        self._first = False
        return (piece,)

    def finish(self) -> Iterable[Piece]:
        return ()


class StripLink:
    """Cuts up to `start` leading copies of a character from each token."""

    def __init__(self, content: str, start: int) -> None:
        self._content, self._start = content, start
        self._left = start

    def push_piece(self, text: str, begins: bool) -> Iterable[Piece]:
        if begins:
            self._left = self._start
        while self._left and text.startswith(self._content):
            text, self._left = text[1:], self._left - 1
        if text:
            self._left = 0
        return ((text, begins),)

    def finish(self) -> Iterable[Piece]:
        return ()


class MetaspaceLink:
    """The blank of SentencePiece; the first token loses it when encoding prepends one."""

    def __init__(self, replacement: str, drop_first: bool) -> None:
        self._replacement, self._drop_first = replacement, drop_first
        self._index = -1

    def push_piece(self, text: str, begins: bool) -> Iterable[Piece]:
        self._index += begins
        blank = "" if self._drop_first and self._index == 0 else " "
        return ((text.replace(self._replacement, blank), begins),)

    def finish(self) -> Iterable[Piece]:
        return ()


class ByteFallbackLink:
    """Tokens `<0x41>` are bytes. A run of them is text when all of it is UTF-8, and otherwise
    one U+FFFD for each byte, so a run is certain only at its end."""

    def __init__(self) -> None:
        self._run = bytearray()

    def push_piece(self, text: str, begins: bool) -> Iterable[Piece]:
        byte = _fallback_byte(text)
        if byte is not None:
            self._run.append(byte)
            return ()
        return (*self.finish(), (text, True)) if self._run else ((text, True),)

    def finish(self) -> Iterable[Piece]:
        run, self._run = bytes(self._run), bytearray()
        try:
            text = run.decode("utf-8")
        except UnicodeDecodeError:
            return [("\ufffd", True)] * len(run)
        return ((text, True),) if text else ()


def _fallback_byte(token: str) -> int | None:
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return None
    digits = token[3:5]
    if not all(digit in "0123456789abcdefABCDEF" for digit in digits):
        return None
    return int(digits, 16)


class ByteLevelLink:
    """Spelled bytes to text; a token with any other character stands for itself."""

    def __init__(self) -> None:
        self._text = Utf8Stream()
        self._first = True

    def push_piece(self, text: str, begins: bool) -> Iterable[Piece]:
        return self._piece(self._text.push_bytes(spelled_bytes(text)))

    def finish(self) -> Iterable[Piece]:
        return self._piece(self._text.finish())

    def _piece(self, text: str) -> Iterable[Piece]:
        piece = (text, self._first)
        self._first = False
        return (piece,)


_ALPHABET = byte_alphabet()


def spelled_bytes(token: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary, or of an added token, which is text."""
    try:
        return bytes([_ALPHABET[character] for character in token])
    except KeyError:
        return token.encode("utf-8", errors="replace")


def build_chain(decoder: dict[str, object] | None) -> list[Link] | None:
    """The links of a decoder as `tokenizer.json` describes it, or None when one of them cannot
    work on a stream."""
    if decoder is None:
        return [JoinLink()]
    links: list[Link] = []
    fused = False
    for entry in _flat(decoder):
        link = _build_link(entry, fused)
        if link is None:
            return None
        links.append(link)
        fused = fused or entry["type"] in ("Fuse", "ByteLevel")
    return links


def _flat(decoder: dict[str, object]) -> Iterable[dict[str, object]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    inner = decoder["decoders"]
    entries = filter(is_dict, inner) if is_list(inner) else ()
    return [flat for entry in entries for flat in _flat(entry)]


def _build_link(entry: dict[str, object], fused: bool) -> Link | None:
    match entry:
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
            streams = pattern and (not fused or len(pattern) == 1)
            return ReplaceLink(pattern, content) if streams else None
        case {"type": "Metaspace", "replacement": str(replacement)}:
            return MetaspaceLink(replacement, entry.get("prepend_scheme", "always") != "never")
        case {"type": "Strip", "content": str(content), "start": int(start), "stop": 0}:
            return StripLink(content, start)
        case {"type": "Fuse"}:
            return FuseLink()
        case {"type": "ByteFallback"} if not fused:
            return ByteFallbackLink()
        case {"type": "ByteLevel"} if not fused:
            return ByteLevelLink()
        case _:
            return None


class ChainStream:
    """A `TokenStream` through a chain of links.

    Args:
        tokens: id to token string; None for an id that decoding leaves out.
        links: a fresh chain.
    """

    def __init__(self, tokens: Mapping[int, str | None], links: Sequence[Link]) -> None:
        self._tokens, self._links = tokens, links

    def push_token(self, token_id: int) -> str:
        token = self._tokens[token_id]
        return "" if token is None else self._run([(token, True)], 0)

    def finish(self) -> str:
        return "".join(
            self._run(link.finish(), index + 1) for index, link in enumerate(self._links)
        )

    def _run(self, pieces: Iterable[Piece], start: int) -> str:
        for link in self._links[start:]:
            pieces = [out for piece in pieces for out in link.push_piece(*piece)]
        return "".join(text for text, _ in pieces)


class ByteLevelStream:
    """The chain `[ByteLevel]`, which most tokenizers use, without its detours.

    Args:
        token_bytes: id to bytes; empty for an id that decoding leaves out.
    """

    def __init__(self, token_bytes: Mapping[int, bytes]) -> None:
        self._token_bytes = token_bytes
        self._text = Utf8Stream()

    def push_token(self, token_id: int) -> str:
        return self._text.push_bytes(self._token_bytes[token_id])

    def finish(self) -> str:
        return self._text.finish()


class WholeStream:
    """For a decoder that cannot work on a stream: all text comes at the end.

    Args:
        decode: decodes a whole list of ids.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._token_ids: list[int] = []

    def push_token(self, token_id: int) -> str:
        self._token_ids.append(token_id)
        return ""

    def finish(self) -> str:
        return self._decode(self._token_ids)
