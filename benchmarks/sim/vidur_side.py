"""Vidur over a trace, with steps of a given length. Runs where Vidur's source can be imported.

    python vidur_side.py machine.json trace.csv result.json

Its own predictor needs profiles of attention; here a step takes so much, and so much per token.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vidur.config import (  # pyright: ignore[reportMissingImports]
    ClusterConfig,
    MetricsConfig,
    ReplicaConfig,
    SarathiSchedulerConfig,
    SimulationConfig,
    TraceRequestGeneratorConfig,
)
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry  # pyright: ignore[reportMissingImports]
from vidur.simulator import Simulator  # pyright: ignore[reportMissingImports]
from vidur.types import ExecutionTimePredictorType  # pyright: ignore[reportMissingImports]


def main() -> None:
    machine = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))

    class Constant:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def get_execution_time(self, batch: Any, stage: int) -> Any:
            seconds = machine["per_step"] + machine["per_token"] * sum(batch.num_tokens)
            return SimpleNamespace(total_time=seconds, model_time=seconds)

    kind = ExecutionTimePredictorType.RANDOM_FORREST
    ExecutionTimePredictorRegistry._registry[kind] = Constant
    os.chdir(tempfile.mkdtemp())
    began = time.process_time()
    simulator = Simulator(
        SimulationConfig(
            log_level="error",
            cluster_config=ClusterConfig(
                replica_config=ReplicaConfig(model_name="meta-llama/Llama-2-7b-hf"),
                replica_scheduler_config=SarathiSchedulerConfig(
                    batch_size_cap=machine["rows"], num_blocks=machine["num_blocks"],
                    block_size=machine["block_size"], chunk_size=machine["budget"],
                ),
            ),
            request_generator_config=TraceRequestGeneratorConfig(
                trace_file=sys.argv[2], max_tokens=machine["longest"]
            ),
            metrics_config=MetricsConfig(
                write_metrics=False, enable_chrome_trace=False, store_plots=False,
                store_request_metrics=False, store_batch_metrics=False,
                store_utilization_metrics=False,
            ),
        )
    )  # fmt: skip
    requests = [event._request for _, event in simulator._event_queue]
    simulator.run()
    seconds = time.process_time() - began
    found = [
        [r.arrived_at, r.prefill_completed_at, r.completed_at, r.num_restarts]
        for r in sorted(requests, key=lambda r: r.id)
    ]
    Path(sys.argv[3]).write_text(
        json.dumps({"process_s": seconds, "requests": found}), encoding="utf-8"
    )
    os._exit(0)


if __name__ == "__main__":
    main()
