"""Clients that misbehave, and how a server ends. Bounded in time and count, on 127.0.0.1 alone."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.running import Running, metric, parsed_events, post, running

LONG = {"prompt": "a", "max_tokens": 1900, "ignore_eos": True, "temperature": 0}
FRAGILE = """
from nanofw.plugins import Plugin, Policy, hookimpl


class Fragile(Policy):
    num_steps = 0

    def key(self, request, view):
        return request.arrival

    def on_progress(self, *arrays):
        self.num_steps += 1
        if self.num_steps == 30:
            raise RuntimeError("asleep")


@hookimpl
def scheduler():
    return Plugin("fragile", ":Fragile", api="scheduler/2")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    limits = "{max_body_bytes: 200000, read_timeout_s: 0.5, write_timeout_s: 0.5, keep_alive_s: 5}"
    with running("qwen3-demo", f"server.limits={limits}") as server:
        yield server


def connect(server: Running) -> socket.socket:
    place = urlsplit(server.url)
    assert place.hostname is not None
    assert place.port is not None
    return socket.create_connection((place.hostname, place.port), timeout=30)


def head(length: int, more: str = "") -> bytes:
    return (
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n{more}\r\n"
    ).encode()


def sent(server: Running, body: object) -> socket.socket:
    """A connection on which a request was sent."""
    connection = connect(server)
    data = json.dumps(body).encode()
    connection.sendall(head(len(data)) + data)
    return connection


def all_of(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    found = b""
    try:
        while data := connection.recv(1 << 16):
            found += data
    except ConnectionError:
        pass
    return found


def wait_until_idle(server: Running) -> None:
    """Until nothing waits, runs or holds blocks."""
    end = time.monotonic() + 30
    names = ("nanofw_running_requests", "nanofw_waiting_requests", 'nanofw_kv_blocks{state="used"}')
    while any(metric(server, name) for name in names):
        assert time.monotonic() < end, "something is left"


@pytest.mark.parametrize("stream", [False, True])
def test_B041_a_client_that_hangs_up_ends_its_request(server: Running, stream: bool) -> None:
    before = metric(server, 'nanofw_finished_requests_total{reason="abort"}')
    connection = sent(server, {**LONG, "stream": stream})
    while not metric(server, "nanofw_running_requests"):
        pass
    if stream:
        assert b"200 OK" in connection.recv(1000)
    connection.close()
    wait_until_idle(server)
    assert metric(server, 'nanofw_finished_requests_total{reason="abort"}') == before + 1


def test_what_is_ready_at_once_is_sent_as_one_chunk(server: Running) -> None:
    body = {"prompt": "a", "max_tokens": 3, "stream": True, "ignore_eos": True}
    with sent(server, {**body, "stream_options": {"include_usage": True}}) as connection:
        found = b""
        while not found.endswith(b"\r\n0\r\n\r\n"):
            found += connection.recv(1 << 16)
    parts = found.partition(b"\r\n\r\n")[2].split(b"\r\n")
    chunks = parts[1::2]
    assert all(chunk.endswith(b"\n\n") for chunk in chunks if chunk)
    (last,) = [chunk for chunk in chunks if b"[DONE]" in chunk]
    assert b'"finish_reason":"length"' in last
    assert b'"usage":' in last


def test_half_a_head_and_half_a_body_do_not_last(server: Running) -> None:
    with connect(server) as silent, connect(server) as half, connect(server) as slow:
        half.sendall(head(1000)[:40])
        slow.sendall(head(1000) + b'{"prompt":')
        assert all_of(silent) == b""
        assert all_of(half) == b""
        assert b"408 Request Timeout" in all_of(slow)


def test_heads_and_bodies_that_are_too_large(server: Running) -> None:
    many = "".join(f"X-{i}: a\r\n" for i in range(10_000))
    with connect(server) as connection:
        with contextlib.suppress(ConnectionError):  # it may be cut off while it sends
            connection.sendall(head(2, many) + b"{}")
        assert all_of(connection)[:12] in (b"HTTP/1.1 400", b"")
    with connect(server) as connection:
        connection.sendall(head(1 << 30))
        assert b"413" in all_of(connection)
    with connect(server) as connection:
        chunked = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        chunk = b"10000\r\n" + b" " * (1 << 16) + b"\r\n"
        with contextlib.suppress(ConnectionError):  # it may be cut off while it sends
            connection.sendall(chunked + chunk * 100)
        assert all_of(connection)[:12] in (b"HTTP/1.1 413", b"")
    with connect(server) as connection:
        connection.sendall(b"what is this\r\n\r\n")
        assert b"400" in all_of(connection)
    deep = b"[" * 100_000
    answer = httpx.post(
        f"{server.url}/v1/completions", content=deep, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert post(server, "/v1/completions", {"prompt": "a", "max_tokens": 2}).status_code == 200


@pytest.mark.slow  # it fills the buffers of the system first
def test_a_client_that_does_not_read_holds_up_nobody(server: Running) -> None:
    slow = connect(server)
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    data = json.dumps(
        {**LONG, "prompt": ["a"] * 16, "n": 4, "logprobs": 20, "stream": True}
    ).encode()
    slow.sendall(head(len(data)) + data)
    while not metric(server, "nanofw_running_requests"):
        pass
    answer = post(server, "/v1/completions", {"prompt": "a", "max_tokens": 4})
    assert answer.status_code == 200
    wait_until_idle(server)
    slow.close()


def files_of(server: Running) -> int:
    """Files and connections that its process has open."""
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="reads /proc")
def test_a_hundred_rounds_of_faults_leave_nothing(server: Running) -> None:
    asked = {"prompt": "And it", "max_tokens": 8, "temperature": 0}
    expected = post(server, "/v1/completions", asked).json()["choices"][0]["text"]
    wait_until_idle(server)
    before = files_of(server)
    for _ in range(100):
        gone = sent(server, {**LONG, "stream": True})
        unread = sent(server, LONG)
        half_head, half_body, huge = connect(server), connect(server), connect(server)
        half_head.sendall(head(1000)[:40])
        half_body.sendall(head(1000) + b'{"prompt":')
        huge.sendall(head(1 << 30))
        answer = post(server, "/v1/completions", asked)
        assert answer.json()["choices"][0]["text"] == expected
        for connection in (gone, unread, half_head, half_body, huge):
            connection.close()
    wait_until_idle(server)
    end = time.monotonic() + 30
    while files_of(server) > before:
        assert time.monotonic() < end, "connections are left"


def test_a_policy_that_fails_ends_streams_and_the_server(tmp_path: Path) -> None:
    path = tmp_path / "fragile.py"
    path.write_text(FRAGILE, encoding="utf-8")
    arguments = ("sim", f"plugins.load=[{path}]", "scheduler.name=fragile")
    with running(*arguments, "server.failure_exit_s=5") as server:
        answer = post(server, "/v1/completions", {**LONG, "stream": True})
        assert answer.status_code == 200
        *pieces, last = parsed_events(answer.text)
        assert len(pieces) > 20
        assert "asleep" in last["error"]["message"]
        assert last["error"]["code"] == "engine_failed"
        for route in ("ready", "health"):
            state = httpx.get(f"{server.url}/{route}")
            assert (state.status_code, "asleep" in state.text) == (503, True)
        refused = post(server, "/v1/completions", LONG)
        assert refused.status_code == 503
        assert server.wait() == 3
        assert any("asleep" in line for line in server.lines[-3:])


@pytest.mark.parametrize("drain_s", [30, 0.2])
def test_a_signal_lets_open_streams_end(drain_s: float) -> None:
    with running("sim", f"server.limits.drain_s={drain_s}") as server:
        num = 60 if drain_s == 30 else 1900
        body = {**LONG, "max_tokens": num, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream:
            parts = stream.iter_text()
            text = next(parts)
            server.process.send_signal(signal.SIGTERM)
            text += "".join(parts)
        last = parsed_events(text)[-1]
        if drain_s == 30:
            assert last["choices"][0]["finish_reason"] == "length"
        else:
            assert last["error"]["code"] == "draining"
        assert server.wait() == 0
        assert server.lines[-1] == "nanofw: ended"


PATIENT = """
import time
from pathlib import Path
from nanofw.plugins import Plugin, Policy, hookimpl


class Patient(Policy):
    def __init__(self, options, config):
        super().__init__(options, config)
        while not Path("{go}").exists():
            time.sleep(0.01)

    def key(self, request, view):
        return request.arrival


@hookimpl
def scheduler():
    return Plugin("patient", ":Patient", api="scheduler/2", capabilities={{"overlap": True}})
"""
"""A policy that is constructed as soon as a file is there: until then the server loads."""


def test_while_it_loads_it_says_so_and_what_keeps_it_from_loading(tmp_path: Path) -> None:
    for path in (Path(__file__).parents[2] / "nanofw/models/embedded/demo").glob("*.json"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 64)
    words = [sys.executable, "-m", "nanofw", "serve", f"model.path={tmp_path}", "server.port=0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3
    assert "model.safetensors" in done.stderr
    policy = tmp_path / "patient.py"
    policy.write_text(PATIENT.format(go=tmp_path / "go"), encoding="utf-8")
    words = ["qwen3-demo", f"plugins.load=[{policy}]", "scheduler.name=patient"]
    with running(*words, ready=False) as server:
        assert httpx.get(f"{server.url}/health").json()["status"] == "loading"
        answer = httpx.get(f"{server.url}/ready")
        assert answer.status_code == 503
        assert "being loaded" in answer.text
        (tmp_path / "go").touch()
        while httpx.get(f"{server.url}/ready").status_code == 503:
            pass
        assert httpx.get(f"{server.url}/health").json()["status"] == "ready"
        assert server.end(signal.SIGINT) == 0
