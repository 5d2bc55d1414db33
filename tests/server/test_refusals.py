"""Who is turned away at the door, by the policy, and while waiting: with a status and a time."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.llm.test_async_llm import REFUSING
from tests.server.running import metric, post, running

SECRETS = {"ANN_KEY": "ann-secret", "GATE_KEY": "gate-secret"}
ANN, GATE = ({"Authorization": f"Bearer {key}"} for key in SECRETS.values())
LONG = {"prompt": "a", "max_tokens": 1900, "stream": True}
SHORT = {"prompt": "a", "max_tokens": 1}


def test_refusals_keys_and_origins(tmp_path: Path) -> None:
    path = tmp_path / "refusing.py"
    path.write_text(REFUSING, encoding="utf-8")
    clients = (
        "[{name: ann, key_env: ANN_KEY, max_requests: 1},"
        " {name: gate, key_env: GATE_KEY, names_clients: true}]"
    )
    arguments = (
        "sim",
        f"plugins.load=[{path}]",
        "scheduler.name=refusing",
        "engine.max_num_seqs=1",
        f"server.clients={clients}",
        "server.cors_origins=[http://a.example]",
        "server.limits.queue_timeout_s=0.3",
    )
    with running(*arguments, environment=SECRETS) as server:
        assert httpx.get(f"{server.url}/ready").status_code == 200
        for headers in ({}, {"Authorization": "Bearer no"}):
            answer = post(server, "/v1/completions", SHORT, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        other = post(server, "/v1/completions", {**SHORT, "client": "gate"}, headers=ANN)
        assert (other.status_code, other.json()["error"]["param"]) == (403, "client")
        for client, after in (("arrival", "3"), ("admission", "7")):
            answer = post(server, "/v1/completions", {**SHORT, "client": client}, headers=GATE)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, after)
            assert answer.json()["error"]["code"] == "shed"
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json=LONG, headers=ANN, timeout=60) as stream:
            assert stream.status_code == 200
            full = post(server, "/v1/completions", SHORT, headers=ANN)
            assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
            late = post(server, "/v1/completions", SHORT, headers=GATE)
            assert (late.status_code, late.headers["retry-after"]) == (429, "1")
            assert "waited 0.3 s" in late.json()["error"]["message"]
            soon = post(server, "/v1/completions", {**SHORT, "deadline_s": 0.05}, headers=GATE)
            assert "waited 0.05 s" in soon.json()["error"]["message"]
            assert metric(server, 'nanofw_client_open_requests{client="ann"}') == 1
        assert metric(server, "nanofw_turned_away_total") == 1
        asked = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST"}
        preflight = httpx.options(url, headers=asked)
        assert preflight.headers["access-control-allow-origin"] == "http://a.example"
        assert server.end() == 0
        said = "\n".join(server.lines)
        assert '"client":"ann"' in said
        assert "secret" not in said
