"""`nanofw bench serve`: what is sent when, and what becomes of the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from nanofw.assembly import build_workload, select
from nanofw.bench.serve.bodies import Bodies
from nanofw.bench.serve.endpoint import Endpoint
from nanofw.bench.serve.figures import ServeRun, summarize
from nanofw.bench.serve.generator import LoadGenerator
from nanofw.bench.serve.options import ServeOptions
from nanofw.cli.main import main
from nanofw.config.load import load_config
from nanofw.config.slo import Slo
from nanofw.contracts.requests import Request, SamplingParams
from nanofw.errors import ConfigError
from nanofw.text.byte_level import ByteTokenizer

Handler = Callable[[dict[str, Any]], Awaitable[httpx.Response]]
ALL = ServeOptions(warm_up=0, drain=0, slo=Slo(e2e_s=1e6))


def event(**values: Any) -> bytes:
    return b"data: " + json.dumps(values).encode() + b"\n\n"


def token(text: str) -> bytes:
    return event(choices=[{"text": text, "finish_reason": None}])


END = event(choices=[{"text": "", "finish_reason": "length"}])
DONE = b"data: [DONE]\n\n"


def usage(tokens: int) -> bytes:
    details = {"cached_tokens": 2}
    return event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": tokens,
                                    "prompt_tokens_details": details})  # fmt: skip


def stream(*parts: bytes) -> httpx.Response:
    return httpx.Response(
        200, headers={"content-type": "text/event-stream"}, content=b"".join(parts)
    )


def fixed(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    given = [{"prompt_tokens": 3, "output_tokens": 2, **item} for item in requests]
    return {"name": "fixed", "requests": given, **more}


async def send(workload: dict[str, Any], handler: Handler, **options: Any) -> LoadGenerator:
    """Everything that a workload asks for, to an endpoint in this process."""
    loaded = load_config("sim", values={"input": {"workload": workload}})
    chosen = ALL.model_copy(update=options)

    async def answer(request: httpx.Request) -> httpx.Response:
        return await handler(json.loads(request.content))

    async with httpx.AsyncClient(
        transport=httpx.MockTransport(answer), base_url="http://here/v1/"
    ) as client:
        made = LoadGenerator(
            build_workload(select(loaded), start=asyncio.get_running_loop().time()),
            Endpoint(client, "completions"),
            Bodies(chosen, "m", None).make,
            lambda text: list(text.encode()),
            max_open=chosen.max_open,
        )
        async with asyncio.timeout(30):
            await made.run()
    return made


def figures(generator: LoadGenerator, options: ServeOptions = ALL) -> ServeRun:
    return summarize(generator, options, rate=None, seed=0, complete=True)


def test_an_endpoint_that_stalls_holds_up_no_request_and_pays_for_all() -> None:
    """Coordinated omission: a generator that waits for answers would never send the last one."""
    arrivals = [0.0, 0.01, 0.02, 0.03]
    num_come, all_came = 0, asyncio.Event()

    async def handler(body: dict[str, Any]) -> httpx.Response:
        nonlocal num_come
        num_come += 1
        if num_come == len(arrivals):
            all_came.set()
        await all_came.wait()
        return stream(token("a"), token("b"), END, usage(2), DONE)

    workload = fixed(*({"arrival": at} for at in arrivals))
    sent = (made := asyncio.run(send(workload, handler))).sent
    assert [round(item.arrival - sent[0].arrival, 9) for item in sent] == arrivals
    for item in sent:
        assert item.first_token - item.arrival >= arrivals[-1] - (item.arrival - sent[0].arrival)
    assert figures(made).latencies["ttft"]["max"] >= arrivals[-1]


def test_waiting_for_a_connection_counts() -> None:
    async def handler(body: dict[str, Any]) -> httpx.Response:
        await asyncio.sleep(0.02)
        return stream(token("a"), END, DONE)

    made = asyncio.run(send(fixed({}, {}, {}), handler, max_open=1))
    waits = [item.finished - item.arrival for item in made.sent]
    assert sorted(waits) == waits
    assert waits[2] >= 0.06
    assert figures(made).send_lateness["max"] >= 0.04


def test_a_closed_loop_asks_again_when_it_was_answered() -> None:
    most = num_open = 0

    async def handler(body: dict[str, Any]) -> httpx.Response:
        nonlocal most, num_open
        num_open += 1
        most = max(most, num_open)
        await asyncio.sleep(0)
        num_open -= 1
        return stream(token("a"), END, DONE)

    workload = {"name": "closed_loop", "concurrency": 3, "num_requests": 20}
    made = asyncio.run(send(workload, handler))
    assert len(made.sent) == 20
    assert most == 3
    ends = sorted(item.finished for item in made.sent)
    assert sorted(item.arrival for item in made.sent)[3:] == ends[:17]


def test_turns_go_on_with_the_answer() -> None:
    prompts: list[list[int]] = []

    async def handler(body: dict[str, Any]) -> httpx.Response:
        prompts.append(body["prompt"])
        return stream(token("Hi"), token("!"), END, DONE)

    workload = {
        "name": "conversations", "num_conversations": 1, "turns": 2, "rate": 1000.0,
        "think_s": 0.0, "prompt": 4, "output": 3,
    }  # fmt: skip
    asyncio.run(send(workload, handler))
    first, second = prompts
    assert second[: len(first) + 3] == first + list(b"Hi!")


@pytest.mark.parametrize(
    ("answer", "ended", "words"),
    [
        (httpx.Response(429, json={"error": {"message": "later"}}), "num_shed", "429: later"),
        (httpx.Response(400, json={"error": {"message": "no"}}), "num_refused", "400: no"),
        (httpx.Response(422, json={"detail": "what?"}), "num_refused", "422: what?"),
        (httpx.Response(500, text="<html>"), "num_failed", "500: <html>"),
        (httpx.Response(200, json={"id": "no stream"}), "num_failed", "SSEError"),
        (stream(token("a")), "num_failed", "ended before the answer"),
        (stream(token("a"), b"data: {oops\n\n"), "num_failed", "cannot be read"),
        (stream(token("a"), event(error={"message": "died"})), "num_failed", "died"),
        (stream(DONE), "num_failed", "ended before the answer"),
        (stream(event(choices=[]), DONE), "num_failed", "ended before the answer"),
        (stream(token("a"), usage(-5), DONE), "num_failed", "cannot be read"),
    ],
)
def test_what_fails_is_counted_and_named(answer: httpx.Response, ended: str, words: str) -> None:
    async def handler(body: dict[str, Any]) -> httpx.Response:
        return answer if body.get("client") == "bad" else stream(token("a"), END, DONE)

    made = asyncio.run(send(fixed({}, {"client": "bad"}, {}), handler))
    run = figures(made)
    counts = {name: getattr(run, name) for name in ("num_shed", "num_refused", "num_failed")}
    assert counts == {**dict.fromkeys(counts, 0), ended: 1}
    assert run.num_measured == 2
    assert run.goodput_share == pytest.approx(2 / 3)
    assert any(words in note for note in run.notes), run.notes


def test_a_connection_that_breaks_is_a_failure_of_one_request() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield token("a")
        raise httpx.ReadError("gone")

    async def handler(body: dict[str, Any]) -> httpx.Response:
        if "client" not in body:
            return stream(token("a"), END, DONE)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=broken())

    run = figures(asyncio.run(send(fixed({}, {"client": "bad"}), handler)))
    assert (run.num_failed, run.num_measured) == (1, 1)
    assert any("ReadError: gone" in note for note in run.notes)


def chat(**delta: Any) -> bytes:
    return event(choices=[{"delta": delta, "finish_reason": None}])


@pytest.mark.parametrize(
    ("parts", "num_events", "num_tokens"),
    [
        ([token("a"), token("b"), END, DONE], 2, 2),
        ([token("a"), token(""), END, DONE], 2, 2),  # a byte of a character
        ([token("abc"), END, usage(3), DONE], 1, 3),
        ([event(choices=[{"text": "z", "finish_reason": "stop"}])], 1, 1),
        ([END, usage(1), DONE], 0, 1),
        ([chat(role="assistant", content=""), chat(content="a"), END, DONE], 1, 1),
        ([chat(role="assistant"), chat(reasoning_content="hm"), chat(content="a"), END], 2, 2),
        ([chat(tool_calls=[{"index": 0}]), chat(content=None), END, DONE], 2, 2),
        ([b": comment\n\n", token("a"), END, DONE], 1, 1),
        ([b"id: 1\n" + token("a"), b": comment\n\n", b"id: 2\n" + END, DONE], 1, 1),
    ],
)
def test_tokens_are_events_unless_the_endpoint_says_more(
    parts: list[bytes], num_events: int, num_tokens: int
) -> None:
    async def handler(body: dict[str, Any]) -> httpx.Response:
        return stream(*parts)

    made = asyncio.run(send(fixed({}), handler))
    (item,) = made.sent
    assert item.reason.is_served
    assert (item.num_events, item.num_tokens) == (num_events, num_tokens)
    assert len(made.gaps(0, item.finished)) == max(0, num_events - 1)


def test_answers_of_other_lengths_are_told() -> None:
    async def handler(body: dict[str, Any]) -> httpx.Response:
        return stream(token("a"), END, DONE)

    run = figures(asyncio.run(send(fixed({}, {"output_tokens": 1}), handler)))
    assert [note for note in run.notes if note.startswith("1 answers had another number")]
    assert any("1 instead of 2" in note for note in run.notes)


def test_clients_are_told_apart() -> None:
    async def handler(body: dict[str, Any]) -> httpx.Response:
        times = 3 if body["client"] == "a" else 1
        return stream(*[token("a")] * times, END, usage(times), DONE)

    made = asyncio.run(send(fixed({"client": "a"}, {"client": "b"}), handler))
    run = figures(made)
    assert {name: (own.num_output_tokens, own.share) for name, own in run.clients.items()} == {
        "a": (3, 0.75), "b": (1, 0.25),
    }  # fmt: skip
    assert run.num_cached_tokens == 4


# -- bodies -------------------------------------------------------------------------------

REQUEST = Request(
    id="r", prompt_token_ids=[72, 105], arrival=2.0, client="c", priority=1, deadline=5.0,
    expected_output_tokens=7,
    sampling=SamplingParams(max_tokens=9, seed=4, ignore_eos=True, temperature=0.5),
)  # fmt: skip
PLAIN = {
    "model": "m", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.5,
    "max_tokens": 9, "seed": 4, "ignore_eos": True,
}  # fmt: skip
HINTS = {"client": "c", "priority": 1, "deadline_s": 3.0, "expected_output_tokens": 7}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {**PLAIN, **HINTS, "prompt": [72, 105], "return_token_ids": True}),
        ({"prompts": "text", "hints": False}, {**PLAIN, "prompt": "Hi"}),
        (
            {"api": "chat", "hints": False, "body": {"seed": None, "user": "me"}},
            {key: value for key, value in PLAIN.items() if key != "seed"}
            | {"messages": [{"role": "user", "content": "Hi"}], "user": "me"},
        ),
    ],
)
def test_bodies_say_what_the_request_says(
    options: dict[str, Any], expected: dict[str, Any]
) -> None:
    bodies = Bodies(ServeOptions(**options), "m", ByteTokenizer())
    bodies.check()
    assert json.loads(bodies.make(REQUEST)) == expected


def test_prompts_that_cannot_be_sent_are_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="a chat takes texts"):
        Bodies(ServeOptions(api="chat", prompts="ids"), "m", ByteTokenizer()).check()
    with pytest.raises(ConfigError, match="need the tokenizer"):
        Bodies(ServeOptions(prompts="text"), "m", None).check()


# -- the command --------------------------------------------------------------------------

ARGUMENTS = ["bench", "serve", "sim", "input.workload.name=poisson"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench.url=http://127.0.0.1:9"], "no endpoint answers at http://127.0.0.1:9/v1/"),
        (["bench.url=127.0.0.1"], "bench.url: "),
        (["sampling.n=2"], "sampling.n: must be 1"),
        (["bench.api_key_env=NANOFW_NO_SUCH_KEY"], "no variable NANOFW_NO_SUCH_KEY"),
        (
            ["input.workload.name=closed_loop", "bench.rates=[1]"],
            "bench.rates: the workload has no arrival rate",
        ),
    ],
)
def test_what_cannot_be_measured_is_an_error(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ARGUMENTS, *words]) == 2
    assert message in capsys.readouterr().err
