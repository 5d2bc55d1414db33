from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nanofw import machine
from nanofw.runtime import threads


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("cores", "load", "quota", "free"),
    [
        (8, 0.2, None, 8),
        (8, 3.4, None, 5),
        (8, 30.0, None, 1),
        (8, 0.0, "250000 100000", 2),
        (8, 0.0, "max 100000", 8),
        (8, 0.0, "50000 100000", 1),
    ],
)
def test_cores_are_free_that_neither_load_nor_quota_takes(
    cores: int, load: float, quota: str | None, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path, encoding: str) -> str:
        if quota is None:
            raise FileNotFoundError(path)
        return quota

    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(machine, "num_usable_cores", lambda: cores)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(Path, "read_text", read)
    assert machine.num_free_cores() == free


def test_threads_fit_the_free_cores_unless_the_user_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "num_free_cores", lambda: 2)
    torch.set_num_threads(3)
    assert threads.settle_threads(None) == torch.get_num_threads() == 2
    assert threads.settle_threads(3) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.settle_threads(None) == 3
    assert machine.num_numpy_threads() in (None, 1)
