"""aiperf puts a short load on the server, and reads its metrics meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.clients.programs import needs, run_module
from tests.server.running import Running

pytestmark = [pytest.mark.clients, needs("aiperf")]
NUM_REQUESTS = 12


def loaded(server: Running, model: Path, folder: Path, kind: str, *more: str) -> dict[str, Any]:
    """What aiperf found in its requests."""
    run_module(
        "aiperf", "profile", "--model", "demo", "--endpoint-type", kind, "--url", server.url,
        "--tokenizer", str(model), "--isl", "20", "--random-seed", "0",
        "--concurrency", "3", "--request-count", str(NUM_REQUESTS),
        "--ui", "none", "--no-gpu-telemetry", "--output-artifact-dir", str(folder / "found"), *more,
        cwd=folder,
        # Offline, it takes only names of checkpoints that were downloaded, and not a folder.
        environment={"HF_HUB_OFFLINE": ""},
    )  # fmt: skip
    found = read(folder, "profile_export_aiperf.json")
    assert found["request_count"]["avg"] == NUM_REQUESTS
    assert found["error_summary"] == []
    (endpoint,) = read(folder, "server_metrics_export.json")["summary"]["endpoints_successful"]
    assert endpoint == f"{server.url}/metrics"
    return found


def read(folder: Path, name: str) -> dict[str, Any]:
    """A file of its results."""
    return json.loads((folder / "found" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["completions", "chat"])
def test_a_short_load(server: Running, model: Path, tmp_path: Path, kind: str) -> None:
    found = loaded(
        server, model, tmp_path, kind, "--streaming", "--osl", "8",
        "--extra-inputs", "ignore_eos:true",
    )  # fmt: skip
    assert found["usage_completion_tokens"]["min"] == found["usage_completion_tokens"]["max"] == 8
    assert found["time_to_first_token"]["min"] > 0
    assert found["inter_token_latency"]["count"] == NUM_REQUESTS
    if kind == "completions":
        assert found["usage_prompt_tokens"]["avg"] == found["input_sequence_length"]["avg"] == 20


def test_embeddings(server: Running, model: Path, tmp_path: Path) -> None:
    loaded(server, model, tmp_path, "embeddings")
