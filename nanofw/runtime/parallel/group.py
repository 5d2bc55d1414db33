"""All workers of a run: messages to them, replies from them, and what happens when one fails."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterable

from nanofw import errors
from nanofw.errors import ExecutorError, NanofwError
from nanofw.runtime.parallel.messages import Failed, Message, Reply, Stop, decode_reply, encode
from nanofw.runtime.parallel.transport import News, Transport

_CLOSE_WAIT_S = 5.0
_OTHERS_WAIT_S = 1.0


class WorkerGroup:
    """The ranks of a run. A failure of one ends all, and is raised as one error.

    Args:
        transport: to the ranks; the group ends them, also when it is collected or the
            interpreter ends.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._failure: NanofwError | None = None
        self._finalizer = weakref.finalize(self, transport.end_ranks)

    @property
    def pids(self) -> list[int]:
        """Of the workers, in rank order."""
        return self._transport.pids

    def send(self, message: Message, ranks: Iterable[int] | None = None) -> None:
        """Send a message to some ranks; None: to all of them."""
        self.send_bytes(encode(message), ranks)

    def send_bytes(self, content: bytes, ranks: Iterable[int] | None = None) -> None:
        """Send an encoded message."""
        self._check_open()
        for rank in range(self._transport.size) if ranks is None else ranks:
            try:
                self._transport.send(rank, content)
            except TimeoutError:
                self._stalled([rank], "read its messages")
            except OSError:
                self._fail({rank: None})

    @property
    def is_open(self) -> bool:
        """Whether no rank has failed, and none was told to leave."""
        return self._failure is None and self._finalizer.alive

    def receive(self, timeout_s: float) -> list[tuple[int, Reply]]:
        """Wait for replies: ranks and what they said; empty when none came for so long.

        Raises:
            NanofwError: a rank failed, with its traceback or signal.
        """
        self._check_open()
        news = self._transport.poll(timeout_s)
        replies = [
            (rank, decode_reply(content)) for rank, sent in news.items() for content in sent or ()
        ]
        if reports := _reports(replies, news):
            self._fail(reports)
        return replies

    def stalled(
        self, ranks: Iterable[int], what: str, timeout_s: float, option: str = "step_timeout_s"
    ) -> None:
        """Raise: these ranks did not `what` within the seconds of an option of the executor."""
        self._stalled(list(ranks), f"{what} within {timeout_s:g} s (executor.{option})")

    def close(self) -> None:
        """Let the workers leave; those that do not are ended. Idempotent."""
        if not self._finalizer.alive:
            return
        if self._failure is None:
            stop = encode(Stop())
            for rank in range(self._transport.size):
                with contextlib.suppress(OSError):
                    self._transport.send(rank, stop)
            self._transport.wait_for_exit(_CLOSE_WAIT_S)
        self._finalizer()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args) from self._failure
        if not self._finalizer.alive:
            raise ExecutorError("the executor is closed")

    def _stalled(self, ranks: list[int], what: str) -> None:
        stacks = [
            f"rank {rank}:\n{_indented(self._transport.stack(rank)) or '  (no answer)'}"
            for rank in ranks
        ]
        listed = " and ".join(f"rank {rank}" for rank in ranks)
        self._end_with(
            ExecutorError(f"{listed} did not {what}; what they were doing:\n" + "\n".join(stacks))
        )

    def _fail(self, reports: dict[int, Failed | None]) -> None:
        """Raise for ranks that failed. The others notice it too: who was first counts."""
        deadline = time.monotonic() + _OTHERS_WAIT_S
        while _only_echoes(reports) and len(reports) < self._transport.size:
            left = deadline - time.monotonic()
            if left < 0:
                break
            news = self._transport.poll(left)
            replies = [
                (r, decode_reply(content)) for r, sent in news.items() for content in sent or ()
            ]
            reports = {**_reports(replies, news), **reports}
        rank, cause = min(reports.items(), key=lambda item: _distance(item[1]))
        self._end_with(self._error(rank, cause))

    def _error(self, rank: int, report: Failed | None) -> NanofwError:
        if report is None:
            first, *words = self._transport.end_text(rank).splitlines()
            return ExecutorError("\n".join([first, *("  " + line for line in words)]))
        kind = getattr(errors, report.error, ExecutorError)
        message = f"rank {rank}: {report.message}\n{_indented(report.traceback)}"
        try:
            return kind(message)
        except TypeError:
            return ExecutorError(message)

    def _end_with(self, error: NanofwError) -> None:
        self._failure = error
        self._finalizer()
        raise error


def _reports(replies: list[tuple[int, Reply]], news: News) -> dict[int, Failed | None]:
    """Ranks that failed, with what they said of it; None: they are gone without a word."""
    said: dict[int, Failed | None] = {r: reply for r, reply in replies if isinstance(reply, Failed)}
    return {**{rank: None for rank, sent in news.items() if sent is None}, **said}


def _only_echoes(reports: dict[int, Failed | None]) -> bool:
    return all(report is not None and report.is_echo for report in reports.values())


def _distance(report: Failed | None) -> int:
    """How far from the cause: what raised by itself, a death without a word, an echo."""
    if report is None:
        return 1
    return 2 if report.is_echo else 0


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.rstrip().splitlines())
