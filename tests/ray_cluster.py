"""A Ray cluster of two nodes on this host, for the tests of a folder: the fixture `cluster`."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
CPUS_PER_NODE = 2


@pytest.fixture(scope="package")
def cluster() -> Iterator[Any]:
    """Two nodes; this process is connected."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster()
    for head in (True, False):
        arguments: dict[str, Any] = {"num_cpus": CPUS_PER_NODE, "object_store_memory": 80_000_000}
        if head:
            arguments |= {"gcs_server_port": free_port(), "include_dashboard": False}
        made.add_node(**arguments)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
