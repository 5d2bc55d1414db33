"""A server that only writes: the same events at the same times, without an engine and without HTTP.

    python -m benchmarks.server.plain --step 0.4 --tokens 100

What asyncio and the system take to write one event to each of many connections. It stands beside
`nanofw serve` in `benchmarks.server.load`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys

from benchmarks.server.clients import TOKEN

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
RECORD = {
    "id": "cmpl-" + 32 * "0", "object": "text_completion", "created": 1_700_000_000,
    "model": "embedded:demo", "system_fingerprint": "nanofw-0.0.0",
    "choices": [{"index": 0, "text": " abc", "logprobs": None, "finish_reason": None,
                 "token_ids": [123]}],
}  # fmt: skip


def chunk_of(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


EVENT = chunk_of(b"data: " + json.dumps(RECORD, separators=(",", ":")).encode() + b"\n\n")
END = chunk_of(b"data: [DONE]\n\n") + b"0\r\n\r\n"
assert TOKEN in EVENT


class Connection(asyncio.Protocol):
    """One stream after the other."""

    def __init__(self, streams: dict[Connection, int]) -> None:
        self._streams = streams

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(HEAD)
        self._streams[self] = 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._streams.pop(self, None)


async def serve(step_s: float, num_tokens: int) -> None:
    """Write an event to each stream at the end of each step."""
    loop, streams = asyncio.get_running_loop(), dict[Connection, int]()
    server = await loop.create_server(lambda: Connection(streams), "127.0.0.1", 0, backlog=2048)
    host, port = server.sockets[0].getsockname()
    print(f"listening at http://{host}:{port}, it only writes\nnanofw: ready", file=sys.stderr)
    sys.stderr.flush()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    due = loop.time()
    while not stop.is_set():
        due += step_s
        await asyncio.sleep(due - loop.time())
        for connection, sent in list(streams.items()):
            if sent + 1 < num_tokens:
                streams[connection] = sent + 1
                connection.transport.write(EVENT)
            else:
                del streams[connection]
                connection.transport.write(EVENT + END)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=float, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    options, _ = parser.parse_known_args()
    asyncio.run(serve(options.step, options.tokens))


if __name__ == "__main__":
    main()
