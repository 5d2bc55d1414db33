"""How far a long command is, where nobody watches a terminal."""

from __future__ import annotations

import re

import pytest

from nanofw.cli.progress import progress


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(seconds_between_lines=0) as report:
        report(0, 20, "fcfs at 0.9, run 1")
        report(7, 20, "random at 0.9, run 4")
        report(20, 20, "")
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines == [
        "nanofw: 0 of 20 done, now fcfs at 0.9, run 1",
        "nanofw: 7 of 20 done, now random at 0.9, run 4",
    ]


def test_short_work_leaves_none(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as report:
        for number in range(100):
            report(number, 100, "work")
    assert not re.search(r"\S", capsys.readouterr().err)
