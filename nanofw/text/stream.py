"""The text of one request, as its tokens come."""

from __future__ import annotations

from collections.abc import Iterable

from nanofw.text.stop import StopFinder, StopStrings
from nanofw.text.tokenizer import Tokenizer


class TextStream:
    """Detokenizes one request and looks for its stop strings.

    Args:
        tokenizer: whose vocabulary the ids are from.
        stop: stop strings; None for none.
        include_stop: the text ends with the stop string instead of before it.
        min_tokens: stop strings do not count in the text of the first `min_tokens` tokens.
        skip_special_tokens: leave special tokens out of the text.

    Attributes:
        token_ids: the tokens so far; nothing past the one that completed a stop string.
        match: the stop string that was found, or None.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: StopStrings | None = None,
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
    ) -> None:
        self.token_ids: list[int] = []
        self.match: str | None = None
        self._tokenizer, self._skip_special_tokens = tokenizer, skip_special_tokens
        self._stream = tokenizer.stream(skip_special_tokens=skip_special_tokens)
        self._finder = StopFinder(stop) if stop else None
        self._include_stop, self._min_tokens = include_stop, min_tokens
        self._parts: list[str] = []
        self._num_certain = 0
        """Tokens whose text has left the detokenizer."""

    @property
    def text(self) -> str:
        """What was handed out so far."""
        return "".join(self._parts)

    def push_tokens(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens make certain. Tokens past a stop string are ignored."""
        if self._finder is not None:
            return "".join([self._push_token(int(token_id)) for token_id in token_ids])
        shown = ""
        for token_id in token_ids:
            self.token_ids.append(token_id)
            shown += self._stream.push_token(token_id)
        if shown:
            self._parts.append(shown)
        return shown

    def finish(self) -> str:
        """The text that waited for more tokens. The request is over."""
        if self.match is not None:
            return ""
        text = self._accept(self._stream.finish())
        if self._finder is not None and self.match is None:
            text += self._emit(self._finder.finish())
        return text

    def _push_token(self, token_id: int) -> str:
        if self.match is not None:
            return ""
        self.token_ids.append(token_id)
        text = self._stream.push_token(token_id)
        return self._accept(text) if text else ""

    def _accept(self, text: str) -> str:
        if self._finder is None:
            return self._emit(text)
        if len(self.token_ids) < self._min_tokens:
            self._num_certain = len(self.token_ids)
            return self._emit(text)
        text = self._finder.push_text(text)
        self.match = self._finder.match
        if self.match is None:
            self._num_certain = len(self.token_ids)
            return self._emit(text)
        emitted = self._emit(text)
        self._drop_surplus_tokens()
        return emitted + (self._emit(self.match) if self._include_stop else "")

    def _emit(self, text: str) -> str:
        if text:
            self._parts.append(text)
        return text

    def _drop_surplus_tokens(self) -> None:
        """Keep the fewest tokens whose text holds the stop string.

        Several are in question when the detokenizer held some back: the bytes of a run are
        certain only when the run ends.
        """
        assert self.match is not None
        wanted = self.text + self.match
        for num_tokens in range(self._num_certain + 1, len(self.token_ids)):
            kept = self.token_ids[:num_tokens]
            text = self._tokenizer.decode(kept, skip_special_tokens=self._skip_special_tokens)
            if text.startswith(wanted):
                self.token_ids = kept
                return
