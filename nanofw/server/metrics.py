"""Metrics of a server: under vLLM's names where the meaning is the same, and by client and policy.

Dashboards that were made for vLLM read the first kind. Those of the engine alone have the names
that `AsyncLLM.metrics` gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nanofw.contracts.requests import FinishReason
from nanofw.llm.results import RequestResult, Timings
from nanofw.narrowing import Stats

MAX_CLIENTS = 1000
"""Clients with metrics of their own; further ones share the label `other`."""

SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))

LATENCIES: Mapping[str, tuple[str, str]] = {
    "ttft": ("time_to_first_token_seconds", "From arrival to the first token."),
    "tpot": ("request_time_per_output_token_seconds", "Mean of a request, after the first token."),
    "e2e": ("e2e_request_latency_seconds", "From arrival to the end."),
    "queue": ("request_queue_time_seconds", "From arrival to the first step that ran it."),
    "prefill": ("request_prefill_time_seconds", "From the first step to the first token."),
    "decode": ("request_decode_time_seconds", "From the first token to the end."),
    "inference": ("request_inference_time_seconds", "From the first step to the end."),
}
COUNTERS: Mapping[str, tuple[str, str]] = {
    "num_prompt_tokens": ("prompt_tokens", "Prompt tokens of requests that were started."),
    "num_preemptions": ("num_preemptions", "Times that a running request gave way."),
}
"""Of `Engine.stats()`, by its name there."""


class ServerMetrics:
    """What a server counts.

    Args:
        model: its name, a label.
        policy: the scheduler's name.
        router: the router's name; empty: there is one engine.
    """

    def __init__(self, model: str, policy: str, router: str = "") -> None:
        disable_created_metrics()
        self._registry = CollectorRegistry()
        self._engine = EngineCollector(model, policy, router)
        self._registry.register(self._engine)
        self._model = model
        self._clients: set[str] = set()
        self._latencies = {
            key: self._histogram(f"vllm:{name}", text, SECONDS)
            for key, (name, text) in LATENCIES.items()
        }
        self.inter_token: Histogram = self._histogram(
            "vllm:inter_token_latency_seconds", "Between two events of a stream.", SECONDS
        )
        self._prompt_tokens = self._histogram(
            "vllm:request_prompt_tokens", "Prompt tokens of a request.", TOKENS
        )
        self._output_tokens = self._histogram(
            "vllm:request_generation_tokens", "Generated tokens of a request.", TOKENS
        )
        self._success = self._counter(
            "vllm:request_success", "Requests that were served.", "model_name", "finished_reason"
        )
        # Prometheus sees only the increments of a counter that is there before its first event.
        for reason in filter(lambda each: each.is_served, FinishReason):
            self._success.labels(model, reason.value)
        self._http = self._counter(
            "nanofw_http_requests", "Answers by endpoint and status.", "path", "status"
        )
        self._results = self._counter(
            "nanofw_client_results", "Prompts that ended.", "client", "reason"
        )
        self._client_tokens = {
            "prompt": self._counter(
                "nanofw_client_prompt_tokens", "Prompt tokens of ended requests.", "client"
            ),
            "output": self._counter(
                "nanofw_client_output_tokens", "Generated tokens of ended requests.", "client"
            ),
        }
        self._client_ttft = Histogram(
            "nanofw_client_ttft_seconds",
            "From arrival to the first token, by client.",
            ("client",),
            registry=self._registry,
            buckets=SECONDS,
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(name, text, ("model_name",), registry=self._registry, buckets=buckets)
        return made.labels(self._model)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self._registry)

    def answered(self, path: str, status: int) -> None:
        """An endpoint gave an answer; of a stream what became of it."""
        self._http.labels(path, str(status)).inc()

    def ended(self, client: str, result: RequestResult) -> None:
        """A prompt ended. Latencies are those of served ones."""
        label = self._label(client)
        self._results.labels(label, str(result.finish_reason)).inc()
        num_prompt, num_output = len(result.prompt_token_ids), result.num_output_tokens
        self._client_tokens["prompt"].labels(label).inc(num_prompt)
        self._client_tokens["output"].labels(label).inc(num_output)
        if not result.ok:
            return
        self._success.labels(self._model, str(result.finish_reason)).inc()
        self._prompt_tokens.observe(num_prompt)
        self._output_tokens.observe(num_output)
        if result.timings is None:
            return
        for key, seconds in _latencies(result.timings).items():
            if seconds is not None:
                self._latencies[key].observe(seconds)
        if (ttft := result.timings.ttft_s) is not None:
            self._client_ttft.labels(label).observe(ttft)

    def _label(self, client: str) -> str:
        if client not in self._clients:
            if len(self._clients) >= MAX_CLIENTS:
                return "other"
            self._clients.add(client)
        return client

    def text(self, stats: Stats | None, open_by_client: Mapping[str, int], turned_away: int) -> str:
        """All of them in the text format.

        Args:
            stats: `Engine.stats()`; None: there is no engine now.
            turned_away: prompts that the door refused.
        """
        clients: dict[str, int] = {}
        for client, count in open_by_client.items():
            label = self._label(client)
            clients[label] = clients.get(label, 0) + count
        self._engine.stats, self._engine.clients = stats, clients
        self._engine.turned_away = turned_away
        return generate_latest(self._registry).decode()


def _latencies(timings: Timings) -> dict[str, float | None]:
    scheduled, first = timings.scheduled, timings.first_token
    return {
        "ttft": timings.ttft_s,
        "tpot": timings.tpot_s,
        "e2e": timings.e2e_s,
        "queue": timings.queue_s,
        "prefill": None if scheduled is None or first is None else first - scheduled,
        "decode": None if first is None else timings.finished - first,
        "inference": None if scheduled is None else timings.finished - scheduled,
    }


class EngineCollector(Collector):
    """What the engine and the door say when they are asked."""

    def __init__(self, model: str, policy: str, router: str = "") -> None:
        self._model, self._policy, self._router = model, policy, router
        self.stats: Stats | None = None
        self.clients: Mapping[str, int] = {}
        self.turned_away = 0

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("nanofw_policy_info", "The policy.", labels=("scheduler",))
        info.add_metric((self._policy,), 1)
        yield info
        if self._router:
            info = GaugeMetricFamily("nanofw_router_info", "The router.", labels=("router",))
            info.add_metric((self._router,), 1)
            yield info
        clients = GaugeMetricFamily(
            "nanofw_client_open_requests", "Prompts that wait or run.", labels=("client",)
        )
        for client, count in self.clients.items():
            clients.add_metric((client,), count)
        yield clients
        yield CounterMetricFamily(
            "nanofw_turned_away", "Prompts that the door refused.", self.turned_away
        )
        if self.stats is not None:
            yield from self._engine_metrics(self.stats)
            yield from replica_metrics(self.stats.get("replicas", ()))

    def _engine_metrics(self, stats: Stats) -> Iterator[Metric]:
        usage = _usage(stats)
        for name, text, value in (
            ("num_requests_running", "Requests in the running set.", stats.get("num_running", 0)),
            ("num_requests_waiting", "Requests in the queue.", stats.get("num_waiting", 0)),
            ("kv_cache_usage_perc", "Share of the KV blocks that requests hold.", usage),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=("model_name",))
            gauge.add_metric((self._model,), value)
            yield gauge
        num_output = stats.get("num_output_tokens", 0) + stats.get("num_unfinished_tokens", 0)
        values = [(*COUNTERS[name], stats.get(name, 0)) for name in COUNTERS]
        values += [
            ("generation_tokens", "Generated tokens.", num_output),
            (
                "prefix_cache_queries",
                "Prompt tokens that were looked for in the prefix cache.",
                stats.get("num_prompt_tokens", 0),
            ),
            ("prefix_cache_hits", "Those that were found.", stats.get("num_cached_tokens", 0)),
        ]
        for name, text, value in values:
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=("model_name",))
            counter.add_metric((self._model,), value)
            yield counter


def _usage(stats: Stats) -> float:
    """The share of the KV blocks that requests hold."""
    blocks = stats.get("blocks", {})
    num_blocks = blocks.get("num_blocks", 0)
    return blocks.get("num_used", 0) / num_blocks if num_blocks else 0.0


def replica_metrics(replicas: Sequence[Stats]) -> Iterator[Metric]:
    """What each replica does, as the engine before them counts and as it says itself.

    Args:
        replicas: `ReplicatedEngine.stats()["replicas"]`.
    """
    gauges: Mapping[str, tuple[str, Callable[[Stats], float]]] = {
        "ready": ("1: it serves.", lambda replica: float(replica["ready"])),
        "requests_running": ("Its running requests.", lambda replica: replica["routed_running"]),
        "requests_waiting": ("Its other requests.", lambda replica: replica["routed_waiting"]),
        "outstanding_tokens": (
            "Most tokens that it may still compute.",
            lambda replica: replica["outstanding_tokens"],
        ),
        "kv_cache_usage_perc": (
            "Share of its KV blocks that requests hold.",
            lambda replica: _usage(replica["stats"] or {}),
        ),
    }
    counters = {
        "generation_tokens": ("Generated tokens.", ("num_output_tokens", "num_unfinished_tokens")),
        "prompt_tokens": ("Prompt tokens of requests that were started.", ("num_prompt_tokens",)),
        "cached_tokens": ("Those that its prefix cache had.", ("num_cached_tokens",)),
    }
    if not replicas:
        return
    for name, (text, value) in gauges.items():
        gauge = GaugeMetricFamily(f"nanofw_replica_{name}", text, labels=("replica",))
        for replica in replicas:
            gauge.add_metric((str(replica["number"]),), value(replica))
        yield gauge
    for name, (text, keys) in counters.items():
        counter = CounterMetricFamily(f"nanofw_replica_{name}", text, labels=("replica",))
        for replica in replicas:
            if (stats := replica["stats"]) is not None:
                total = sum(stats.get(key, 0) for key in keys)
                counter.add_metric((str(replica["number"]),), total)
        yield counter
