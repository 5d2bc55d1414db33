"""Faults of samplers and logits processors name the plugin, and cost one request where they can."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from nanofw import LLM, AsyncLLM
from nanofw.errors import ExecutorError, PluginLoadError
from nanofw.llm.results import RequestResult

FILE = Path(__file__).with_name("failing_plugins.py")
GOOD = {"prompt": "In the beginning", "max_tokens": 3, "temperature": 0}


def settings(
    kind: str = "Failing", overlap: bool = False, sampler: str | None = None, **options: str
) -> dict[str, Any]:
    """What `LLM` is made of: one failing processor, or a failing sampler."""
    chosen: dict[str, Any] = {"logits_processors": [{"name": kind, **options}]}
    if sampler is not None:
        chosen = {"sampler": {"name": sampler, **options}}
    return {"plugins": {"load": [str(FILE)]}, "overlap": overlap, **chosen}


def generate(*prompts: Any, **options: Any) -> list[RequestResult]:
    with LLM("embedded:demo", **settings(**options)) as llm:
        return llm.generate(list(prompts))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Failing", {}),
        ("FailingHost", {"kind": "FailingHost"}),
        ("FailingSampler", {"sampler": "FailingSampler"}),
    ],
)
def test_F004_a_check_that_raises_anything_refuses_that_request_alone(
    name: str, options: dict[str, str]
) -> None:
    bad = {**GOOD, "arguments": {name: {"weakness": 1}}}
    good, refused, also_good = generate(GOOD, bad, GOOD, **options)
    assert good.ok
    assert also_good.outputs[0].token_ids == good.outputs[0].token_ids
    assert str(refused.finish_reason) == "refused"
    for part in (f"{name!r} of ", "check() raised KeyError: 'strength'", "{'weakness': 1}",
                 "failing_plugins.py, line"):  # fmt: skip
        assert part in str(refused.error)


def test_F004_the_sender_of_a_refused_request_is_told() -> None:
    async def serve() -> list[RequestResult]:
        async with AsyncLLM("embedded:demo", **settings()) as llm:

            async def one(prompt: Any) -> RequestResult:
                return [e.result async for e in llm.generate(prompt) if e.result].pop()

            bad = {**GOOD, "arguments": {"Failing": {}}}
            found = asyncio.gather(one(GOOD), one(bad), one(GOOD))
            return [*await asyncio.wait_for(found, 120)]

    good, refused, _ = asyncio.run(serve())
    assert good.ok
    assert "KeyError" in str(refused.error)


@pytest.mark.parametrize("kind", ["Failing", "FailingHost"])
@pytest.mark.parametrize("overlap", [False, True])
def test_F015_a_finish_that_raises_costs_no_result(
    kind: str, overlap: bool, caplog: pytest.LogCaptureFixture
) -> None:
    requests = [{**GOOD, "max_tokens": count, "n": count} for count in (1, 4, 2)]
    with caplog.at_level(logging.WARNING, logger="nanofw"):
        results = generate(*requests, kind=kind, where="finish", overlap=overlap)
    assert [len(result.outputs) for result in results] == [1, 4, 2]
    assert all(result.ok for result in results)
    assert f"logits_processor {kind!r} of" in caplog.text
    assert "finish() raised ValueError: oops" in caplog.text


@pytest.mark.parametrize("where", ["start", "mask"])
def test_F015_a_host_processor_that_fails_on_a_request_names_itself(where: str) -> None:
    (result,) = generate(GOOD, kind="FailingHost", where=where)
    assert not result.ok
    assert "logits_processor 'FailingHost' of" in str(result.error)
    assert "ValueError: oops" in str(result.error)


@pytest.mark.parametrize(
    ("how", "seen"),
    [
        ("ten", r"returned float32\[1, 10\] on cpu; it must be float32\[1, \d{3,}\] on cpu"),
        ("twice", r"returned float32\[1, \d{3,}\] on cpu; it must be float32\[1, \d{3,}\] on cpu"),
        ("double", r"returned float64\[1, \d{3,}\] on cpu; it must be float32"),
        ("list", r"returned list; it must be float32"),
        ("nothing", r"returned NoneType; it must be float32"),
    ],
)
def test_F016_logits_of_another_shape_or_type_are_told(how: str, seen: str) -> None:
    with pytest.raises(ExecutorError, match=rf"'Failing' of .*: apply\(\) {seen}"):
        generate(GOOD, where="apply", how=how)


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (
            {"where": "apply"},
            r"logits_processor 'Failing' of .*: apply\(\) raised ValueError: oops",
        ),
        (
            {"where": "add_row"},
            r"'Failing' of .*: add_row\(\) raised ValueError: oops \(failing_pl",
        ),
        ({"where": "add_row", "how": "one"}, r"'Failing' of .*: add_row\(\) returned 1; it must"),
        ({"where": "sampled"}, r"'Failing' of .*: sampled\(\) raised ValueError: oops"),
        (
            {"sampler": "FailingSampler", "where": "sample"},
            r"sampler 'FailingSampler' of .*: sample",
        ),
        (
            {"sampler": "FailingSampler", "where": "edit"},
            r"'FailingSampler' of .*: edit\(\) raised",
        ),
        ({"sampler": "FailingSampler", "how": "long"}, r"token_ids int64\[1\].*must be int32\[1\]"),
        (
            {"sampler": "FailingSampler", "how": "outside"},
            r"sampler 'FailingSampler' of .* 10\d{5}",
        ),
    ],
)
def test_F017_a_step_names_the_plugin_that_failed(options: dict[str, Any], seen: str) -> None:
    with pytest.raises(ExecutorError, match=seen):
        generate(GOOD, **options)


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (
            {"where": "init"},
            r"logits_processor 'Failing' of .* failed to start: ValueError\('oops'",
        ),
        (
            {"sampler": "FailingSampler", "where": "init"},
            r"sampler 'FailingSampler' of .* to start",
        ),
        ({"sampler": "Nothing"}, r"sampler 'Nothing' of .* does not implement Sampler: it lacks"),
        (
            {"sampler": "Abstract"},
            r"sampler 'Abstract' of .* does not implement Sampler: it lacks sample$",
        ),
        (
            {"sampler": "Misspelt"},
            r"'Misspelt' of .*: remove_rows\(\) .* did you mean remove_row\?",
        ),
    ],
)
def test_F017_a_start_names_the_plugin_that_failed(options: dict[str, Any], seen: str) -> None:
    with pytest.raises(PluginLoadError, match=seen):
        LLM("embedded:demo", **settings(**options))
