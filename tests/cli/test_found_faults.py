"""Faults that people found in the command line, by their ids."""

from __future__ import annotations

import pytest

from nanofw.cli import ExitCode
from nanofw.cli.main import main


@pytest.mark.parametrize("model", ["./nowhere", "model.path=./nowhere"])
def test_F059_verify_takes_the_model_in_either_spelling(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", model]) == ExitCode.FAILED
    error = capsys.readouterr().err
    assert "nowhere" in error
    assert "model.path=./nowhere" not in error
