"""Stories of requests agree with an own reading of the steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nanofw.decisions.log import read_log
from nanofw.decisions.sentences import lines
from nanofw.decisions.story import Ran, Story, Teller, Waited
from nanofw.engine.journal import Blocker
from nanofw.errors import ConfigError
from tests.decisions.runs import Mixed, Reading, chosen, recorded


@pytest.mark.parametrize(
    ("policy", "engine", "num_requests"),
    [
        ("fcfs", {"overlap": True}, 60),
        ("shortest_job_first", {"overlap": False, "batching": "prefill_first"}, 60),
        *(
            pytest.param(policy, engine, 200, marks=pytest.mark.slow)
            for policy, engine in (
                ("priority", {"overlap": True, "chunk_tokens": 32}),
                ("fair_share", {"overlap": False}),
                ("longest_prefix_match", {"overlap": True}),
            )
        ),
    ],
)
def test_stories_agree_with_the_steps(
    policy: str, engine: dict[str, Any], num_requests: int, tmp_path: Path
) -> None:
    workload = Mixed(num_requests, seed=len(policy))
    reading = recorded(chosen(policy, **engine), workload, tmp_path / "log.jsonl")
    assert len(reading.preempted) >= 3, "the pool is short"
    assert any(output.num_cached_tokens for output in reading.outputs.values())
    log = read_log(tmp_path / "log.jsonl")
    assert len(log.collected) == len(reading.reports)
    teller = Teller(log)
    for request in workload.initial():
        story = teller.tell(request.id)
        assert story.life.arrival == request.arrival
        check_rows(story, reading)
        check_waits(story, reading)
        text = "\n".join(lines(log, story))
        assert text.count("was preempted") == reading.outputs[request.id].num_preemptions
        assert text.count("got a row") == len(story.life.stays)
        assert "first token" in text


def check_rows(story: Story, reading: Reading) -> None:
    """When it had a row, what it found in the cache, and when it lost it."""
    name, output = story.life.id, reading.outputs[story.life.id]
    ran = [part for part in story.parts if isinstance(part, Ran)]
    assert [part.step for part in ran] == [s for s, other in reading.admitted if other == name]
    planned = [reading.reports[part.step].planned for part in ran]
    assert [part.began for part in ran] == planned
    assert ran[0].began == output.scheduled
    assert ran[0].num_cached == output.num_cached_tokens
    assert sum(part.num_cached for part in ran[1:]) == output.num_recovered_tokens
    lost = [step for step, other in reading.preempted if other == name]
    assert len(lost) == output.num_preemptions == len(ran) - 1
    assert ran[-1].ended == output.finished
    for part in ran[:-1]:
        assert part.was_preempted
        assert part.ended is not None
        assert part.began < part.ended


def check_waits(story: Story, reading: Reading) -> None:
    """How long it waited, for what, and who was served before it."""
    name = story.life.id
    at = {(step, other): place for place, (step, other) in enumerate(reading.admitted)}
    for place, part in enumerate(story.parts):
        if not isinstance(part, Waited):
            continue
        following = story.parts[place + 1]
        assert isinstance(following, Ran)
        assert part.ended == following.began
        assert sum(part.seconds.values()) == pytest.approx(part.ended - part.began, abs=1e-9)
        mine = at[following.step, name]
        before = [
            other
            for step, other in reading.admitted[:mine]
            if reading.reports[step].planned >= part.began
        ]
        assert part.served_before[-len(before) :] == before or not before
        assert len(part.served_before) - len(before) <= 6, "at most a plan at the very moment"
        waited = range(following.step - sum(part.steps.values()), following.step)
        if Blocker.ROW in part.steps:
            gave_way = {step for step, _ in reading.preempted}  # after rows were looked for
            assert any(reading.free_rows[step] == 0 or step in gave_way for step in waited)
        if Blocker.BUDGET in part.steps:
            assert any(reading.total[step] == 96 for step in waited)


def test_a_wrong_name_gets_near_ones_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    recorded(chosen(), Mixed(5, seed=1), path)
    with pytest.raises(ConfigError, match=r"has no request 'r9'; there are r0, r1, r2 and others"):
        read_log(path).life("r9")
    text = path.read_bytes()
    path.write_bytes(text[:-20])
    assert read_log(path).is_cut
    path.write_bytes(text.replace(b'"kind":"step"', b'"kind":"stop"', 1))
    with pytest.raises(ConfigError, match=r"log\.jsonl.*is not a line of a decision log"):
        read_log(path)
    path.write_text('{"kind": "finished"}\n')
    with pytest.raises(ConfigError, match="is not"):
        read_log(path)


@pytest.mark.parametrize(
    "lines_of",
    [
        lambda run, request, step: [run, step, request],
        lambda run, request, step: [run, step],
        lambda run, request, step: [run, b'{"kind":"steady","first":0,"planned":[1.0]}\n'],
        lambda run, request, step: [run, b'{"kind":"finished","id":"x","reason":"length",'
                                    b'"tokens":"","arrival":0.0,"finished":1.0}\n'],
    ],
)  # fmt: skip
def test_lines_that_lack_those_before_them_are_told(tmp_path: Path, lines_of: Any) -> None:
    path = tmp_path / "log.jsonl"
    recorded(chosen("fcfs"), Mixed(3, seed=0), path)
    written = path.read_bytes().splitlines(keepends=True)
    step = next(line for line in written if b'"kind":"step"' in line)
    path.write_bytes(b"".join(lines_of(written[0], written[1], step)))
    with pytest.raises(ConfigError, match=r"log\.jsonl:2: does not follow from the lines before"):
        read_log(path)
