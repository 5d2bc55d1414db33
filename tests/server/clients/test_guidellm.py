"""guidellm puts a short load on the server, and reads every answer to its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.server.clients.programs import needs, run_module
from tests.server.running import Running, metric

pytestmark = [pytest.mark.clients, needs("guidellm")]
NUM_REQUESTS = 12


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_short_load(server: Running, model: Path, tmp_path: Path, path: str) -> None:
    name = 'vllm:request_success_total{finished_reason="length",model_name="demo"}'
    before = metric(server, name)
    run_module(
        "guidellm", "run", "--disable-console",
        "--backend", f"kind=openai_http,target={server.url},model=demo,request_format={path}",
        "--profile", "kind=concurrent,streams=3",
        "--constraint", f"kind=max_requests,count={NUM_REQUESTS}",
        "--tokenizer", f"kind=huggingface_auto,model={model}",
        "--data", "kind=synthetic_text,prompt_tokens=20,output_tokens=8",
        "--output", f"kind=json,path={tmp_path / 'found.json'}",
        cwd=tmp_path,
    )  # fmt: skip
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    (benchmark,) = found["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (NUM_REQUESTS, 0)
    assert benchmark["metrics"]["output_token_count"]["successful"]["mean"] == 8
    assert benchmark["metrics"]["time_to_first_token_ms"]["successful"]["mean"] > 0
    assert metric(server, name) >= before + NUM_REQUESTS
