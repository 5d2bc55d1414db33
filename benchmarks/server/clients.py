"""Many streams of one server, read by a process that does little else than note the time.

    python -m benchmarks.server.clients URL --open 200 --requests 1000 --tokens 64

Each of `--open` connections sends one request after the other and reads its answer. What it prints
is one object of JSON: when each piece of an answer came, as seconds of the machine's monotonic
clock, which all processes share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from array import array
from urllib.parse import urlsplit

TOKEN = b'"finish_reason":null,"token_ids"'
"""Stands once in each event that brings a token."""


class Stream(asyncio.Protocol):
    """One connection, on which requests follow each other."""

    def __init__(self, load: Load) -> None:
        self._load, self._tail = load, b""
        self._num = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def _next(self) -> None:
        if self._load.num_sent == self._load.num_requests:
            self._transport.close()
            return
        self._load.num_sent += 1
        self._sent, self._num, self._tail = time.monotonic(), 0, b""
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if not self._num and not self._tail and not data.startswith(b"HTTP/1.1 200"):
            self._load.fail(data)
            return
        data = self._tail + data
        found = data.count(TOKEN)
        if found:
            self._load.times.append(now)
            self._load.counts.append(found)
            if not self._num:
                self._load.first.append(now - self._sent)
                self._load.last_begin = now
            self._num += found
        self._tail = data[1 - len(TOKEN) :]
        if data.endswith(b"\r\n0\r\n\r\n"):
            self._load.ended.append(now - self._sent)
            self._load.first_end = min(self._load.first_end, now)
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.lost()


class Load:
    """What all connections share.

    Attributes:
        times: when data with tokens came; counts: tokens in it.
        first, ended: seconds from the request to its first token and to its end.
        last_begin, first_end: when the last stream began, and when the first one ended.
    """

    def __init__(self, request: bytes, num_open: int, num_requests: int) -> None:
        self.request, self.num_requests, self.num_sent = request, num_requests, 0
        self.times, self.counts = array("d"), array("l")
        self.first, self.ended = array("d"), array("d")
        self.last_begin, self.first_end = 0.0, float("inf")
        self._left = num_open
        self.done = asyncio.get_running_loop().create_future()

    def fail(self, data: bytes) -> None:
        """An answer is an error."""
        if not self.done.done():
            self.done.set_exception(SystemExit(f"the server answers: {data[:500]!r}"))

    def lost(self) -> None:
        """A connection has ended."""
        self._left -= 1
        if not self._left and not self.done.done():
            self.done.set_result(None)


def request_of(host: str, max_tokens: int) -> bytes:
    body = json.dumps({
        "prompt": [1, 2, 3, 4, 5, 6, 7, 8], "max_tokens": max_tokens, "ignore_eos": True,
        "return_token_ids": True, "stream": True,
    }).encode()  # fmt: skip
    return (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def draw(url: str, num_open: int, num_requests: int, max_tokens: int) -> Load:
    """All requests, by the given number of connections."""
    place = urlsplit(url)
    load = Load(request_of(place.netloc, max_tokens), num_open, num_requests)
    loop = asyncio.get_running_loop()
    for _ in range(num_open):
        await loop.create_connection(lambda: Stream(load), place.hostname or "", place.port or 80)
    await load.done
    return load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--open", type=int, default=200)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    begin = time.monotonic()
    load = asyncio.run(draw(options.url, options.open, options.requests, options.tokens))
    json.dump({
        "seconds": time.monotonic() - begin, "cpu": time.process_time(),
        "times": list(load.times), "counts": list(load.counts), "first": list(load.first),
        "ended": list(load.ended), "last_begin": load.last_begin, "first_end": load.first_end,
    }, sys.stdout)  # fmt: skip


if __name__ == "__main__":
    main()
