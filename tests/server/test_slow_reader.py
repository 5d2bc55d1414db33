"""A client that does not read its stream, whose events the connection's `BodyWriter` writes."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.server.running import Running, parsed_events, post, running

EVENT_BYTES = 60_000
"""Each event has the model's name: a long one fills the buffers of the system soon."""
NUM_TOKENS = 1000
ASKED = {"prompt": "a", "ignore_eos": True, "return_token_ids": True}


def memory_of(server: Running) -> int:
    """Bytes that its process has in memory."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def unread_stream(server: Running) -> socket.socket:
    """A connection on which a stream was asked for, with little room for what is not read."""
    place = urlsplit(server.url)
    assert place.hostname is not None
    assert place.port is not None
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect((place.hostname, place.port))
    body = json.dumps({**ASKED, "max_tokens": NUM_TOKENS, "stream": True}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="reads /proc")
def test_a_reader_that_does_not_read_costs_little_memory_and_loses_nothing() -> None:
    name = EVENT_BYTES * "x"
    settings = ("executor.seconds_per_step=0.001", "server.log_requests=false")
    with running("sim", *settings, f"server.model_names=[{name}]") as server:
        post(server, "/v1/completions", {**ASKED, "max_tokens": 4})
        with unread_stream(server) as unread:
            assert unread.recv(15) == b"HTTP/1.1 200 OK"
            before = memory_of(server)
            other = post(server, "/v1/completions", {**ASKED, "max_tokens": NUM_TOKENS - 100})
            assert other.json()["usage"]["completion_tokens"] == NUM_TOKENS - 100
            grown = memory_of(server) - before
            data = b""
            while part := unread.recv(1 << 20):
                data += part
    unbounded = EVENT_BYTES * (NUM_TOKENS - 200)
    assert grown < unbounded / 3
    events = parsed_events(body_of(data).decode())
    choices = [event["choices"][0] for event in events]
    assert sum(len(choice["token_ids"]) for choice in choices[:-1]) == NUM_TOKENS
    assert len(choices[-1]["token_ids"]) == NUM_TOKENS
    assert len(choices) < NUM_TOKENS / 2  # those that waited were joined


def body_of(answer: bytes) -> bytes:
    """The body of a chunked answer."""
    rest, parts = answer.partition(b"\r\n\r\n")[2], list[bytes]()
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return b"".join(parts)
