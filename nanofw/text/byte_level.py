"""Bytes as tokens: the printable alphabet of byte-level BPE, and a tokenizer without a file."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

NUM_BYTES = 256


def byte_alphabet() -> dict[str, int]:
    """Character to byte, as byte-level BPE vocabularies spell bytes (Radford et al., GPT-2).

    Printable bytes stand for themselves; the others are shifted to U+0100 and up, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(NUM_BYTES) if byte not in printable)
    alphabet.update((chr(NUM_BYTES + index), byte) for index, byte in enumerate(others))
    return alphabet


class Utf8Stream:
    """Decodes UTF-8 as it comes, as decoding the whole would; wrong bytes become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push_bytes(self, data: bytes) -> str:
        """The text that is certain now; an unfinished character waits."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """The text of an unfinished character at the end: U+FFFD, or nothing."""
        return self._decoder.decode(b"", final=True)


class ByteTokenizer:
    """UTF-8 bytes as token ids 0..255, for runs without a tokenizer, simulated ones above all.

    Ids past 255 have no text of their own and show as `<id>`.
    """

    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __init__(self, vocab_size: int = NUM_BYTES) -> None:
        self.vocab_size = vocab_size
        self.max_token_length = 1

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The bytes of the text; there are no special tokens."""
        return list(text.encode("utf-8", errors="replace"))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the ids."""
        stream = self.stream(skip_special_tokens=skip_special_tokens)
        return "".join(map(stream.push_token, token_ids)) + stream.finish()

    def stream(self, *, skip_special_tokens: bool = True) -> ByteTokenStream:
        """An incremental `decode`."""
        return ByteTokenStream()


class ByteTokenStream:
    """Incremental decoding of a `ByteTokenizer`'s ids."""

    def __init__(self) -> None:
        self._text = Utf8Stream()

    def push_token(self, token_id: int) -> str:
        token_id = int(token_id)
        known = token_id < NUM_BYTES
        return self._text.push_bytes(bytes([token_id]) if known else b"<%d>" % token_id)

    def finish(self) -> str:
        return self._text.finish()
