"""The service of clients, noted while a run is watched."""

from __future__ import annotations

from nanofw.compare.client_service import ObservedExecutor
from tests.engine.sim_engines import FirstCome, Run, make_engine, make_request


def test_service_and_its_gap() -> None:
    engine = make_engine(FirstCome(), max_num_seqs=1, num_blocks=64)
    watch = engine.executor = ObservedExecutor(engine.executor, engine.clock)
    for i in range(6):
        request = make_request(f"r{i}", 4, max_tokens=3, client="ab"[i // 3], ignore_eos=True)
        engine.add_request(request)
        watch.service.add_request(request)
    done = Run(engine).to_end()
    for request_id in done.outputs:
        watch.finish_request(request_id)
    assert watch.service.clients == ["a", "b"]
    assert watch.service.total.tolist() == [18.0, 18.0]
    assert watch.service.max_gap == 8.0  # from a's first step until its last request starts


def test_one_client_is_not_counted() -> None:
    engine = make_engine(FirstCome())
    watch = engine.executor = ObservedExecutor(engine.executor, engine.clock)
    request = make_request("r", 4, max_tokens=3)
    engine.add_request(request)
    watch.service.add_request(request)
    Run(engine).to_end()
    assert watch.service.total.tolist() == [0.0]
