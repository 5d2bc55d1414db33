"""The files for running a server: they agree with what the server does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
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


def test_every_expression_of_the_dashboard_names_what_the_server_says(server: Running) -> None:
    body = {"prompt": "a", "max_tokens": 4, "stream": True, "client": "ann"}
    assert post(server, "/v1/completions", body).status_code == 200
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    samples = {re.split(r"[{ ]", line)[0]: line for line in lines if not line.startswith("#")}
    # Of clients that have nothing open there is no sample.
    samples["nanofw_client_open_requests"] = 'nanofw_client_open_requests{client="ann"} 0.0'
    board = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    assert len(targets) > 20
    for target in targets:
        names = METRIC.findall(target["expr"])
        assert names, target["expr"]
        labels = LABEL.findall(target["legendFormat"])
        for group in GROUPING.findall(target["expr"]):
            labels += [label.strip() for label in group.split(",")]
        for name in names:
            assert name in samples, target["expr"]
            assert all(f'{label}="' in samples[name] for label in labels), target["expr"]


def test_supervisors_wait_longer_than_the_server_drains() -> None:
    drain_s = load_config(DEPLOY / "serve.yaml").config.server.limits.drain_s
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    unit = (DEPLOY / "nanofw-serve.service").read_text(encoding="utf-8")
    found = re.search(r"TimeoutStopSec=(\d+)", unit)
    assert found is not None
    waits = (int(found[1]), int(compose["services"]["nanofw"]["stop_grace_period"].rstrip("s")))
    assert min(waits) > drain_s + 5
