"""The service of clients, noted while a run is watched."""

from __future__ import annotations

import numpy as np
import pytest

from nanofw.compare.client_service import MAX_SAMPLES, ClientService, ServiceHistory
from tests.engine.sim_engines import FirstCome, Run, make_engine, make_request


def test_service_and_its_gap() -> None:
    engine, service = make_engine(FirstCome(), max_num_seqs=1, num_blocks=64), ClientService()
    with engine.observed_by(service):
        for i in range(6):
            request = make_request(f"r{i}", 4, max_tokens=3, client="ab"[i // 3], ignore_eos=True)
            engine.add_request(request)
            service.add_request(request)
        done = Run(engine).to_end()
    assert service.clients == ["a", "b"]
    assert service.total.tolist() == [18.0, 18.0]
    assert service.max_gap == 8.0  # from a's first step until its last request starts
    assert service.shares(-1.0, engine.clock.now()) == {"a": 0.5, "b": 0.5}
    until = done.outputs["r2"].finished - 1e-9  # b is served after a
    assert service.shares(0.0, until) == {"a": 1.0, "b": 0.0}
    assert service.shares(-2.0, -1.0) == {}


def test_one_client_is_not_counted() -> None:
    engine, service = make_engine(FirstCome()), ClientService()
    with engine.observed_by(service):
        request = make_request("r", 4, max_tokens=3)
        engine.add_request(request)
        service.add_request(request)
        Run(engine).to_end()
    assert service.total.tolist() == [0.0]


def test_a_long_run_keeps_few_samples_and_is_still_right() -> None:
    history, num_steps = ServiceHistory(), 20 * MAX_SAMPLES
    total = np.zeros(1)
    for step in range(num_steps):
        total = total + (3.0 if step < num_steps // 2 else 1.0)
        if step == num_steps // 2:  # a client that comes late
            total = np.append(total, 0.0)
        history.add(float(step), total)
    assert len(history._times) < MAX_SAMPLES
    early = history.between(0.0, num_steps / 2, 2)
    late = history.between(num_steps / 2, float(num_steps), 2)
    assert early.tolist() == pytest.approx([1.5 * num_steps, 0.0], rel=0.01)
    assert late.tolist() == pytest.approx([0.5 * num_steps, 0.5 * num_steps], rel=0.01)
