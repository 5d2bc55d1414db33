"""A server in a process of its own, as users start it."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

MODEL = Path(__file__).parents[2] / "nanofw" / "models" / "embedded" / "demo"
TEMPLATE = """\
{%- if tools %}Call as <tool_call>…</tool_call>:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}
{%- if add_generation_prompt %}assistant:{% endif %}
{%- if enable_thinking is defined %} {{ enable_thinking }}{% endif %}
"""
START_S = 120
END_S = 60


def chat_model(folder: Path) -> Path:
    """The embedded model with a chat template, in a folder."""
    for path in MODEL.iterdir():
        if path.suffix in (".json", ".safetensors"):
            (folder / path.name).symlink_to(path)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


class Running:
    """A server process.

    Attributes:
        url: where it listens.
        lines: what it has said on standard error so far.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.lines = process, []
        self._new: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = self.wait_for(r"listening at (\S+),")[1]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            self._new.put(line)
        self._new.put(None)

    def wait_for(self, pattern: str, timeout_s: float = START_S) -> re.Match[str]:
        """The next line in which the pattern is found."""
        while True:
            line = self._new.get(timeout=timeout_s)
            assert line is not None, "the server ended:\n" + "\n".join(self.lines)
            if match := re.search(pattern, line):
                return match

    def logged(self, request_id: str) -> dict[str, Any]:
        """The log's line of a request; waits for it."""
        line = self.wait_for(f'"request_id":"{re.escape(request_id)}"', END_S)
        return json.loads(line.string)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end; its exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, once it has ended and all that it said was read."""
        code = self.process.wait(END_S)
        self._reader.join(END_S)
        return code


@contextmanager
def running(
    *arguments: str, environment: Mapping[str, str] | None = None, ready: bool = True
) -> Iterator[Running]:
    """A server with these arguments of `nanofw serve`, at a free port.

    Args:
        ready: wait until it has loaded.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "nanofw", "serve", *arguments, "server.port=0"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
    )
    try:
        server = Running(process)
        if ready:
            server.wait_for("nanofw: ready")
        yield server
    finally:
        process.kill()
        process.communicate()


def post(server: Running, path: str, body: object, **options: Any) -> httpx.Response:
    """Send a request of JSON."""
    return httpx.post(f"{server.url}{path}", json=body, timeout=END_S, **options)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream that has ended, without the last one, which says that it has."""
    assert response.headers["content-type"].startswith("text/event-stream")
    return parsed_events(response.text)


def parsed_events(text: str) -> list[dict[str, Any]]:
    """As `events_of`, of the body."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    payloads = [block.removeprefix("data: ") for block in blocks]
    assert payloads.pop() == "[DONE]"
    return [json.loads(payload) for payload in payloads]


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    """The text of a choice that was streamed."""
    found = ""
    for event in events:
        for choice in event["choices"]:
            if choice["index"] == index:
                found += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return found


def metric(server: Running, name: str) -> float:
    """The value of a metric, with its labels as they are written."""
    text = httpx.get(f"{server.url}/metrics", timeout=END_S).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])
