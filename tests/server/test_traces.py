"""OpenTelemetry spans of requests."""

from __future__ import annotations

import asyncio
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest

from nanofw import AsyncLLM
from nanofw.config.load import load_config
from nanofw.server.app import make_app
from nanofw.server.service import Service
from nanofw.server.traces import Traces
from tests.server.running import post, running

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
BODY = {"prompt": ["a", "b"], "max_tokens": 5, "ignore_eos": True, "client": "ann"}


async def spans_of(exporter: Any, requests: list[dict[str, Any]]) -> list[Any]:
    """All spans of requests, which are sent one after the other, once the server has ended."""
    loaded = load_config("sim")
    service = Service(loaded, lambda: AsyncLLM(loaded), traces=Traces(exporter, "demo"))
    app = make_app(service)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client,
    ):
        while (await client.get("/ready")).status_code != 200:
            await asyncio.sleep(0.01)
        for request in requests:
            await client.post("/v1/completions", **request)
    return list(exporter.get_finished_spans())


def test_a_request_has_spans_of_what_its_prompts_did() -> None:
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    headers = {"traceparent": PARENT, "X-Request-Id": "abc-7"}
    requests = [
        {"json": {**BODY, "stream": True}, "headers": headers},
        {"json": {"prompt": "a", "max_tokens": -1}},
    ]
    spans = asyncio.run(spans_of(memory.InMemorySpanExporter(), requests))
    first, refused = [span for span in spans if span.name == "POST /v1/completions"]
    assert f"{first.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{first.parent.span_id:016x}" == PARENT.split("-")[2]
    wanted = {
        "nanofw.request_id": "abc-7",
        "nanofw.client": "ann",
        "http.response.status_code": 200,
        "gen_ai.request.model": "demo",
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.response.finish_reasons": ("length", "length"),
    }
    assert wanted.items() <= dict(first.attributes).items()
    for prompt in (0, 1):
        mine = [span for span in spans if (span.attributes or {}).get("nanofw.prompt") == prompt]
        assert [span.name for span in mine] == ["queue", "prefill", "decode"]
        assert all(span.parent.span_id == first.context.span_id for span in mine)
        edges = [edge for span in mine for edge in (span.start_time, span.end_time)]
        assert edges == sorted(edges)
        assert first.start_time <= edges[0] < edges[-1] <= first.end_time
        assert edges[1] == pytest.approx(edges[2], abs=1000)
        assert edges[3] == pytest.approx(edges[4], abs=1000)
    assert refused.parent is None
    assert refused.attributes["http.response.status_code"] == 400
    assert "max_tokens" in refused.attributes["nanofw.error"]
    assert len(spans) == 2 + 6


@pytest.mark.slow
def test_ending_the_server_sends_the_last_spans() -> None:
    messages = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
        environment = {"OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
        with running(
            "sim", f"server.traces.endpoint={endpoint}", environment=environment
        ) as server:
            assert post(server, "/v1/completions", BODY).status_code == 200
            assert server.end() == 0
        collector.shutdown()
    names = [
        span.name
        for body in received
        for resource in messages.ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert sorted(names) == [
        "POST /v1/completions",
        *["decode"] * 2,
        *["prefill"] * 2,
        *["queue"] * 2,
    ]


def test_traces_need_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from nanofw.config.schema import TracesSection
    from nanofw.errors import ConfigError
    from nanofw.server.traces import open_traces

    assert open_traces(None, "demo") is None
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"nanofw\[otel\]"):
        open_traces(TracesSection(), "demo")
