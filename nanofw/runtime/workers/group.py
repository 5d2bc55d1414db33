"""All workers of a run: messages to them, replies from them, and what happens when one fails."""

from __future__ import annotations

import contextlib
import selectors
import time
import weakref
from collections.abc import Iterable

from nanofw import errors
from nanofw.errors import ExecutorError, NanofwError
from nanofw.runtime.workers.messages import Failed, Message, Reply, Stop, decode_reply, encode
from nanofw.runtime.workers.process import RankProcess

_CLOSE_WAIT_S = 5.0
_OTHERS_WAIT_S = 1.0


class WorkerGroup:
    """Starts one process per rank. A failure of one ends all, and is raised as one error.

    Args:
        size: ranks.
        send_timeout_s: how long a worker may leave a message unread.
    """

    def __init__(self, size: int, send_timeout_s: float) -> None:
        self._processes: list[RankProcess] = []
        self._selector = selectors.DefaultSelector()
        self._failure: NanofwError | None = None
        self._finalizer = weakref.finalize(self, _end, self._processes, self._selector)
        try:
            for rank in range(size):
                process = RankProcess(rank, send_timeout_s)
                self._processes.append(process)
                self._selector.register(process.channel, selectors.EVENT_READ, process)
        except BaseException:
            self._finalizer()
            raise

    @property
    def pids(self) -> list[int]:
        """Of the workers, in rank order."""
        return [process.pid for process in self._processes]

    def send(self, message: Message, ranks: Iterable[int] | None = None) -> None:
        """Send a message to some ranks; None: to all of them."""
        self.send_bytes(encode(message), ranks)

    def send_bytes(self, content: bytes, ranks: Iterable[int] | None = None) -> None:
        """Send an encoded message."""
        self._check_open()
        for rank in range(len(self._processes)) if ranks is None else ranks:
            process = self._processes[rank]
            try:
                process.channel.send(content)
            except TimeoutError:
                self._stalled([rank], "read its messages")
            except OSError:
                self._fail(process)

    def receive(self, deadline: float) -> list[tuple[int, Reply]]:
        """Wait for replies: ranks and what they said; empty once `deadline` has passed.

        Raises:
            NanofwError: a rank failed, with its traceback or signal.
        """
        self._check_open()
        replies: list[tuple[int, Reply]] = []
        for key, _ in self._selector.select(max(0.0, deadline - time.monotonic())):
            process: RankProcess = key.data
            try:
                replies += [(process.rank, decode_reply(m)) for m in process.channel.take()]
            except EOFError:
                self._fail(process)
        for rank, reply in replies:
            if isinstance(reply, Failed):
                self._fail(self._processes[rank], reply)
        return replies

    def stalled(self, ranks: Iterable[int], what: str, timeout_s: float) -> None:
        """Raise: these ranks did not `what` within so many seconds."""
        self._stalled(list(ranks), f"{what} within {timeout_s:g} s")

    def close(self) -> None:
        """Let the workers leave; those that do not are ended. Idempotent."""
        if not self._finalizer.alive:
            return
        if self._failure is None:
            stop = encode(Stop())
            for process in self._processes:
                with contextlib.suppress(OSError):
                    process.channel.send(stop)
            deadline = time.monotonic() + _CLOSE_WAIT_S
            for process in self._processes:
                process.wait(max(0.0, deadline - time.monotonic()))
        self._finalizer()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args) from self._failure
        if not self._finalizer.alive:
            raise ExecutorError("the executor is closed")

    def _stalled(self, ranks: list[int], what: str) -> None:
        stacks = [
            f"rank {rank}:\n{_indented(self._processes[rank].stack()) or '  (no answer)'}"
            for rank in ranks
        ]
        listed = " and ".join(f"rank {rank}" for rank in ranks)
        self._end_with(
            ExecutorError(
                f"{listed} did not {what} (executor.step_timeout_s); what they were doing:\n"
                + "\n".join(stacks)
            )
        )

    def _fail(self, process: RankProcess, report: Failed | None = None) -> None:
        """Raise for a rank that failed. The others notice it too: who was first counts."""
        reports = {process.rank: report}
        deadline = time.monotonic() + _OTHERS_WAIT_S
        while _only_echoes(reports) and len(reports) < len(self._processes):
            if time.monotonic() > deadline:
                break
            self._gather_reports(reports, deadline)
        rank, cause = min(reports.items(), key=lambda item: _distance(item[1]))
        self._end_with(self._error(self._processes[rank], cause))

    def _gather_reports(self, reports: dict[int, Failed | None], deadline: float) -> None:
        for key, _ in self._selector.select(max(0.0, deadline - time.monotonic())):
            process: RankProcess = key.data
            if process.rank in reports:
                self._selector.unregister(process.channel)
                continue
            try:
                replies = [decode_reply(content) for content in process.channel.take()]
            except EOFError:
                reports[process.rank] = None
                continue
            for reply in replies:
                if isinstance(reply, Failed):
                    reports[process.rank] = reply

    def _error(self, process: RankProcess, report: Failed | None) -> NanofwError:
        if report is None:
            process.wait(_OTHERS_WAIT_S)
            words = _indented(process.last_words())
            return ExecutorError(
                f"rank {process.rank} (process {process.pid}) {process.end_text()}"
                + (f"\n{words}" if words else "")
            )
        kind = getattr(errors, report.error, ExecutorError)
        message = f"rank {process.rank}: {report.message}\n{_indented(report.traceback)}"
        try:
            return kind(message)
        except TypeError:
            return ExecutorError(message)

    def _end_with(self, error: NanofwError) -> None:
        self._failure = error
        self._finalizer()
        raise error


def _end(processes: list[RankProcess], selector: selectors.BaseSelector) -> None:
    """Leave nothing behind. Also called when the group is collected or the interpreter ends."""
    for process in processes:
        process.kill()
    for process in processes:
        process.close()
    selector.close()


def _only_echoes(reports: dict[int, Failed | None]) -> bool:
    return all(report is not None and report.is_echo for report in reports.values())


def _distance(report: Failed | None) -> int:
    """How far from the cause: what raised by itself, a death without a word, an echo."""
    if report is None:
        return 1
    return 2 if report.is_echo else 0


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.rstrip().splitlines())
