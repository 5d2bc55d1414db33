"""The files for running a server: they agree with what the server does."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from nanofw.config.load import load_config
from tests.server.running import Running, post, running

DEPLOY = Path(__file__).parents[2] / "deploy"
METRIC = re.compile(r"\b(?:vllm:|nanofw_)\w+")
GROUPING = re.compile(r"by \(([^)]*)\)")
LABEL = re.compile(r"{{(\w+)}}")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running("sim", "scheduler.name=fair_share") as server:
        yield server


def targets() -> list[dict[str, str]]:
    """What the dashboard asks Prometheus for."""
    board = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    found = [target for panel in board["panels"] for target in panel["targets"]]
    assert len(found) > 20
    return found


def test_every_expression_of_the_dashboard_names_what_the_server_says(server: Running) -> None:
    body = {"prompt": "a", "max_tokens": 4, "stream": True, "client": "ann"}
    assert post(server, "/v1/completions", body).status_code == 200
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    samples = {re.split(r"[{ ]", line)[0]: line for line in lines if not line.startswith("#")}
    # Of clients that have nothing open there is no sample.
    samples["nanofw_client_open_requests"] = 'nanofw_client_open_requests{client="ann"} 0.0'
    for target in targets():
        names = METRIC.findall(target["expr"])
        assert names, target["expr"]
        labels = LABEL.findall(target["legendFormat"])
        for group in GROUPING.findall(target["expr"]):
            labels += [label.strip() for label in group.split(",")]
        for name in names:
            assert name in samples, target["expr"]
            assert all(f'{label}="' in samples[name] for label in labels), target["expr"]


def test_served_requests_of_each_reason_are_counted_from_zero(server: Running) -> None:
    """A counter that starts at its first event lacks that event in `rate()` and `increase()`."""
    text = httpx.get(f"{server.url}/metrics").text
    found = re.findall(r'^vllm:request_success_total{finished_reason="(\w+)"', text, re.MULTILINE)
    assert sorted(found) == ["length", "stop"]


@contextmanager
def prometheus(server: Running, folder: Path) -> Iterator[str]:
    """A Prometheus that reads the server's metrics each second; its address."""
    jobs = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text(encoding="utf-8"))
    (job,) = jobs["scrape_configs"]
    job |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
    job["static_configs"] = [{"targets": [server.url.removeprefix("http://")]}]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(jobs), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = (
        f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    )  # fmt: skip
    process = subprocess.Popen(["prometheus", *words])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def has_data(address: str, expression: str) -> bool:
    """Whether an expression has a value that is a number."""
    query = {"query": expression.replace("$__rate_interval", "15s")}
    answer = httpx.get(f"{address}/api/v1/query", params=query).json()
    assert answer["status"] == "success", (expression, answer)
    return any(sample["value"][1] != "NaN" for sample in answer["data"]["result"])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus here")
def test_every_expression_of_the_dashboard_returns_data(server: Running, tmp_path: Path) -> None:
    body = {"prompt": "a" * 50, "max_tokens": 20, "stream": True, "client": "ann"}
    long = {**body, "max_tokens": 1000, "ignore_eos": True}
    completions = f"{server.url}/v1/completions"
    lacking = {target["expr"] for target in targets()}
    end = time.monotonic() + 120
    with prometheus(server, tmp_path) as address:
        while lacking and time.monotonic() < end:
            with httpx.stream("POST", completions, json=long) as open_stream:
                assert open_stream.status_code == 200
                for _ in range(5):
                    assert post(server, "/v1/completions", body).status_code == 200
                    try:
                        lacking = {each for each in lacking if not has_data(address, each)}
                    except httpx.ConnectError:  # Prometheus does not listen yet
                        continue
    assert not lacking


def test_supervisors_wait_longer_than_the_server_drains() -> None:
    drain_s = load_config(DEPLOY / "serve.yaml").config.server.limits.drain_s
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    unit = (DEPLOY / "nanofw-serve.service").read_text(encoding="utf-8")
    found = re.search(r"TimeoutStopSec=(\d+)", unit)
    assert found is not None
    waits = (int(found[1]), int(compose["services"]["nanofw"]["stop_grace_period"].rstrip("s")))
    assert min(waits) > drain_s + 5
