"""OpenTelemetry traces: a span for each request, with what its prompts waited and ran for.

Nothing is done while a request runs: its spans are made from its times when it has ended.
"""

# OpenTelemetry is an extra, which need not be there when types are checked.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanofw.config.schema import TracesSection
from nanofw.errors import ConfigError
from nanofw.llm.results import RequestResult, Timings
from nanofw.narrowing import JsonObject

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """When a request came, on the machine's monotonic clock.

    Attributes:
        begin: its head.
        arrival: its body; None: it was refused before.
    """

    begin: float
    arrival: float | None


class Traces:
    """Sends spans to an exporter, in a thread of OpenTelemetry's.

    Args:
        exporter: a `SpanExporter`.
        model: the name of the model.
    """

    def __init__(self, exporter: Any, model: str, service_name: str = "nanofw") -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({"service.name": service_name})
        self._provider: Any = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer: Any = self._provider.get_tracer("nanofw.server")
        self._propagator: Any = TraceContextTextMapPropagator()
        self._model = model

    def record(
        self,
        facts: JsonObject,
        results: Sequence[RequestResult],
        headers: Mapping[str, str],
        times: RequestTimes,
    ) -> None:
        """The spans of a request that has just ended.

        Args:
            facts: of the line that the log has of it.
            headers: of the request; `traceparent` names its parent.
        """
        from opentelemetry.trace import SpanKind, set_span_in_context

        now, now_ns = time.monotonic(), time.time_ns()

        def at(seconds: float) -> int:
            """Nanoseconds since 1970 of a time on the monotonic clock."""
            return now_ns - round((now - seconds) * NS)

        root: Any = self._tracer.start_span(
            f"POST {facts['path']}",
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            attributes=self._attributes(facts, results),
            start_time=at(times.begin),
        )
        if facts["status"] >= 500:
            root.set_status(_failed(facts["error"]))
        context = set_span_in_context(root)
        for number, result in enumerate(results):
            if result.timings is None or times.arrival is None:
                continue
            offset = times.arrival - result.timings.arrival  # the engine's clock may be another
            for name, begin, end in phases(result.timings):
                span: Any = self._tracer.start_span(
                    name,
                    context=context,
                    attributes=_of_prompt(number, result),
                    start_time=at(begin + offset),
                )
                span.end(at(end + offset))
        root.end(now_ns)

    def _attributes(self, facts: JsonObject, results: Sequence[RequestResult]) -> JsonObject:
        found: JsonObject = {
            "http.request.method": "POST",
            "http.route": facts["path"],
            "http.response.status_code": facts["status"],
            "gen_ai.request.model": self._model,
            "gen_ai.response.id": facts["id"],
            "nanofw.request_id": facts["request_id"],
            "nanofw.client": facts["client"],
            "nanofw.stream": facts["stream"],
            "nanofw.error": facts["error"],
        }
        if results:
            found |= {
                "gen_ai.usage.input_tokens": sum(len(r.prompt_token_ids) for r in results),
                "gen_ai.usage.output_tokens": sum(r.num_output_tokens for r in results),
                "gen_ai.response.finish_reasons": [str(r.finish_reason) for r in results],
                "nanofw.cached_tokens": sum(r.num_cached_tokens for r in results),
                "nanofw.preemptions": sum(r.num_preemptions for r in results),
            }
        return {name: value for name, value in found.items() if value is not None}

    def close(self) -> None:
        """Send what was not sent yet. Blocks."""
        self._provider.shutdown()


def phases(timings: Timings) -> Iterator[tuple[str, float, float]]:
    """What a prompt did, with beginning and end on the engine's clock."""
    scheduled, first, finished = timings.scheduled, timings.first_token, timings.finished
    yield "queue", timings.arrival, finished if scheduled is None else scheduled
    if scheduled is not None:
        yield "prefill", scheduled, finished if first is None else first
    if first is not None:
        yield "decode", first, finished


def _of_prompt(number: int, result: RequestResult) -> JsonObject:
    return {
        "nanofw.prompt": number,
        "gen_ai.usage.input_tokens": len(result.prompt_token_ids),
        "gen_ai.usage.output_tokens": result.num_output_tokens,
    }


def _failed(message: str | None) -> Any:
    from opentelemetry.trace import Status, StatusCode

    return Status(StatusCode.ERROR, message)


def open_traces(section: TracesSection | None, model: str) -> Traces | None:
    """What a server sends its spans by; None: it makes none.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    if section is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter(endpoint=section.endpoint)
        return Traces(exporter, model, section.service_name)
    except ModuleNotFoundError as error:
        reason = f"needs {error.name}: pip install 'nanofw[otel]'"
        raise ConfigError(reason, key="server.traces") from None
