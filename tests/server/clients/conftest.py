"""A server of the embedded model with a chat template, for all clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.running import Running, chat_model, running


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="session")
def server(model: Path) -> Iterator[Running]:
    with running(
        f"model.path={model}",
        "model.dtype=float32",
        "server.model_names=[demo]",
        "logits_processors=[{name: structured}]",
    ) as server:
        yield server
