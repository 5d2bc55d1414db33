"""Stop strings, found while the text comes and across the borders of tokens.

All strings of a request are searched at once with the automaton of Aho and Corasick (1975):
one state per prefix of a string, so each character costs one look-up whatever came before, and
the state's depth is the number of characters that may still turn out to be a part of one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from nanofw.errors import shown


class StopStrings:
    """The automaton of some stop strings. Immutable; requests share it.

    Raises:
        ValueError: a stop string is empty or not a string.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        for string in strings:
            _check_string(string)
        self.strings: tuple[str, ...] = tuple(dict.fromkeys(strings))
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._found: list[str | None] = [None]
        for string in self.strings:
            self._insert(string)
        self._fallback = self._link()
        self._firsts = frozenset(string[0] for string in self.strings)

    def __bool__(self) -> bool:
        return bool(self.strings)

    def advance(self, state: int, character: str) -> int:
        """The state after one more character."""
        while state and character not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(character, 0)

    def may_begin(self, text: str) -> bool:
        """Whether a stop string may begin in a text; a quick no for most texts."""
        return not self._firsts.isdisjoint(text)

    def depth(self, state: int) -> int:
        """Characters at the end of the text that begin a stop string."""
        return self._depth[state]

    def found(self, state: int) -> str | None:
        """The longest stop string that ends here."""
        return self._found[state]

    def _insert(self, string: str) -> None:
        state = 0
        for character in string:
            following = self._next[state].get(character)
            if following is None:
                following = self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._found.append(None)
            state = following
        self._found[state] = string

    def _link(self) -> list[int]:
        """For each state the longest proper suffix that is a state too, breadth first."""
        fallback = self._fallback = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, following in self._next[state].items():
                fallback[following] = self.advance(fallback[state], character)
                queue.append(following)
            self._found[state] = self._found[state] or self._found[fallback[state]]
        return fallback


def _check_string(string: object) -> None:
    if not isinstance(string, str) or not string:
        raise ValueError(f"a stop string must be a non-empty string, not {shown(string)}")


class StopFinder:
    """The search in one request's text.

    The string whose end comes first is found, the longest among those that end there; so the
    answer does not depend on how the text was cut into tokens.
    """

    def __init__(self, strings: StopStrings) -> None:
        self._strings = strings
        self._state = 0
        self._held = ""
        self.match: str | None = None

    def push_text(self, text: str) -> str:
        """Characters that belong to the output for certain; ends with the text before a match."""
        assert self.match is None, "text after the stop string was found"
        if not self._state and not self._strings.may_begin(text):
            return text
        pending = self._held + text
        for length, character in enumerate(text, len(self._held) + 1):
            self._state = self._strings.advance(self._state, character)
            self.match = self._strings.found(self._state)
            if self.match is not None:
                self._held = ""
                return pending[: length - len(self.match)]
        depth = self._strings.depth(self._state)
        self._held = pending[len(pending) - depth :]
        return pending[: len(pending) - depth]

    def finish(self) -> str:
        """Characters that looked like the beginning of a stop string and were not."""
        held, self._held, self._state = self._held, "", 0
        return held
