"""Threads that wait must not hold the cores that other threads need."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os
from nanofw import LLM
with LLM("embedded:demo", max_num_seqs=2, executor={"name": "torch", "num_threads": 3}) as llm:
    llm.generate("And it came to pass", None)
    import torch
    print(os.environ.get("GOMP_SPINCOUNT"), torch.get_num_threads())
"""


@pytest.mark.parametrize(
    ("set_by_user", "expected"),
    [({}, "0 3"), ({"GOMP_SPINCOUNT": "7"}, "7 3"), ({"OMP_WAIT_POLICY": "active"}, "None 3")],
)
def test_idle_threads_sleep_unless_the_user_decides(
    set_by_user: dict[str, str], expected: str
) -> None:
    ours = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
    environment = {key: value for key, value in os.environ.items() if key not in ours}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environment, **set_by_user},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[-2] == expected
