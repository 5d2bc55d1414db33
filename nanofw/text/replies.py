"""A model's reply, as its text comes: reasoning, content, calls of tools."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from nanofw.contracts.reply_format import ReasoningFormat, ToolCall, ToolFormat


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply.

    Attributes:
        content: its text without reasoning and calls.
        tool_calls: in their order.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplyPart:
    """A piece of a reply: one of the three."""

    content: str = ""
    reasoning: str = ""
    call: ToolCall | None = None


class _Mode(Enum):
    START = auto()
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()


class ReplyReader:
    """Takes a reply apart. Joined to one text or in any pieces, the parts say the same.

    Text that looks like a call and is not one is content: nothing is lost.

    Args:
        tools: how calls are written; None: they are not looked for.
        reasoning: how reasoning is written; None: it is not looked for.
        in_reasoning: the prompt has its beginning already.
    """

    def __init__(
        self,
        tools: ToolFormat | None = None,
        *,
        reasoning: ReasoningFormat | None = None,
        in_reasoning: bool = False,
    ) -> None:
        self._tools, self._reasoning = tools, reasoning
        self._mode = _Mode.START if reasoning else _Mode.CONTENT
        if reasoning and in_reasoning:
            self._mode = _Mode.REASONING
        self._held = ""
        self._skip_blanks = reasoning is not None and in_reasoning
        self.num_calls: int = 0

    def read(self, text: str) -> Reply:
        """A whole reply at once. Nothing was pushed before."""
        parts = [*self.push(text), *self.finish()]
        return Reply(
            "".join(part.content for part in parts),
            "".join(part.reasoning for part in parts),
            tuple(part.call for part in parts if part.call is not None),
        )

    def push(self, text: str) -> list[ReplyPart]:
        """What a piece of text makes certain."""
        self._held += text
        parts: list[ReplyPart] = []
        while self._advance(parts):
            pass
        return _joined(parts)

    def finish(self) -> list[ReplyPart]:
        """What had waited for more text. The reply is over."""
        held, self._held = self._held, ""
        parts: list[ReplyPart] = []
        match self._mode:
            case _Mode.CALL:
                self._take_call(held, parts, closed=False)
            case _Mode.REASONING:
                parts.append(ReplyPart(reasoning=held))
            case _:
                parts.append(ReplyPart(content=held))
        return _joined(parts)

    def _advance(self, parts: list[ReplyPart]) -> bool:
        """Take what is certain from the held text; whether there may be more."""
        if self._skip_blanks:
            self._held = self._held.lstrip()
            if not self._held:
                return False
            self._skip_blanks = False
        match self._mode:
            case _Mode.START:
                return self._begin()
            case _Mode.REASONING:
                assert self._reasoning is not None
                found, text = self._until(self._reasoning.end)
                parts.append(ReplyPart(reasoning=text))
                return found and self._enter(_Mode.CONTENT)
            case _Mode.CONTENT:
                found, text = self._until(self._tools.begin if self._tools else "")
                parts.append(ReplyPart(content=text))
                return found and self._enter(_Mode.CALL)
            case _Mode.CALL:
                assert self._tools is not None
                before, end, after = self._held.partition(self._tools.end)
                if not end:
                    return False
                self._held = after
                self._skip_blanks = self._take_call(before, parts, closed=True)
                self._mode = _Mode.CONTENT
                return True

    def _enter(self, mode: _Mode) -> bool:
        self._mode, self._skip_blanks = mode, mode is not _Mode.CALL
        return True

    def _begin(self) -> bool:
        """Whether the reply begins with reasoning is known."""
        assert self._reasoning is not None
        text, begin = self._held.lstrip(), self._reasoning.begin
        if text.startswith(begin):
            self._held = text.removeprefix(begin)
            return self._enter(_Mode.REASONING)
        if begin.startswith(text):
            return False
        self._mode = _Mode.CONTENT
        return True

    def _until(self, tag: str) -> tuple[bool, str]:
        """Whether the tag is there, and the text before it that is certain."""
        if not tag:
            text, self._held = self._held, ""
            return False, text
        before, found, after = self._held.partition(tag)
        if found:
            self._held = after
            return True, before
        length = next(n for n in range(len(tag) - 1, -1, -1) if self._held.endswith(tag[:n]))
        text, self._held = self._held[: len(self._held) - length], tag[:length]
        return False, text

    def _take_call(self, text: str, parts: list[ReplyPart], *, closed: bool) -> bool:
        """Whether the text between the tags was a call."""
        assert self._tools is not None
        try:
            call = self._tools.read_call(text)
        except (ValueError, RecursionError):
            end = self._tools.end if closed else ""
            parts.append(ReplyPart(content=f"{self._tools.begin}{text}{end}"))
            return False
        self.num_calls += 1
        parts.append(ReplyPart(call=call))
        return True


def _joined(parts: list[ReplyPart]) -> list[ReplyPart]:
    """The parts that have something; neighbours of one kind as one."""
    made: list[ReplyPart] = []
    for part in parts:
        last = made[-1] if made else ReplyPart()
        if part.call is not None:
            made.append(part)
        elif part.content and last.content:
            made[-1] = ReplyPart(content=last.content + part.content)
        elif part.reasoning and last.reasoning:
            made[-1] = ReplyPart(reasoning=last.reasoning + part.reasoning)
        elif part.content or part.reasoning:
            made.append(part)
    return made
