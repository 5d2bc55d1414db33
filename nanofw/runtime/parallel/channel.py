"""Messages over a pair of connected sockets: a length of 8 bytes, then the content.

The pair has no name, port or file: it goes away with the last process that holds an end.
"""

from __future__ import annotations

import select
import socket
import threading

_HEADER_BYTES = 8
_READ_BYTES = 1 << 20


class Channel:
    """One end. object thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = bytearray()
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """For selectors; -1 once closed."""
        return self._socket.fileno()

    def send(self, content: bytes) -> None:
        """Send one message whole, however large.

        Raises:
            TimeoutError: the other side did not read for as long as the socket's timeout.
            OSError: the other side is gone.
        """
        header = len(content).to_bytes(_HEADER_BYTES, "little")
        with self._lock:
            if len(content) < _READ_BYTES:
                self._send_all(header + content)
            else:
                self._send_all(header)
                self._send_all(content)

    def receive(self) -> bytes:
        """Wait for the next message. Raises EOFError when the other side is gone."""
        while (message := self._next()) is None:
            self._read()
        return message

    def take(self) -> list[bytes]:
        """What came, after a selector said that something did: messages that are whole.

        Raises EOFError when the other side is gone and nothing whole is left.
        """
        self._read()
        messages: list[bytes] = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()

    def _send_all(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except TimeoutError:
                if not self._is_read():
                    raise

    def _is_read(self) -> bool:
        """Whether there is room to send after all: this process may have been stopped meanwhile."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        return bool(poll.poll(0))

    def _read(self) -> None:
        try:
            part = self._socket.recv(_READ_BYTES)
        except ConnectionError:
            part = b""
        if not part:
            raise EOFError("the other side is gone")
        self._received += part

    def _next(self) -> bytes | None:
        received = self._received
        end = _HEADER_BYTES + int.from_bytes(received[:_HEADER_BYTES], "little")
        if len(received) < max(end, _HEADER_BYTES):
            return None
        message = bytes(received[_HEADER_BYTES:end])
        del received[:end]
        return message
