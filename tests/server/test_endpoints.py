"""What the endpoints answer, over HTTP, from a server process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from nanofw import LLM, __version__
from tests.server.running import (
    Running,
    chat_model,
    events_of,
    metric,
    post,
    running,
    text_of,
)

PROMPT = "And it came to pass"
GREEDY = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12}
CHAT = {"messages": [{"role": "user", "content": "Who art thou?"}], "temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = chat_model(tmp_path_factory.mktemp("demo"))
    arguments = (
        f"model.path={folder}",
        "model.dtype=float32",
        "server.model_names=[demo]",
        "logits_processors=[{name: structured}]",
        "server.limits={max_body_bytes: 100000, max_prompts: 4, max_messages: 8, "
        "max_stop_strings: 4, max_schema_bytes: 2000}",
    )
    with running(*arguments) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def whole(server: Running, path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    response = post(server, path, body)
    assert response.status_code == 200, response.text
    return response.json()


def test_B087_without_stream_there_is_one_body_with_usage(server: Running) -> None:
    answer = whole(server, **GREEDY, stream=False)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 12
    assert answer["object"] == "text_completion"
    stop = choice["text"][8:11]
    (stopped,) = whole(server, **GREEDY, stop=stop)["choices"]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", stop)
    assert stopped["text"] == choice["text"].partition(stop)[0]
    repeated = [whole(server, prompt=PROMPT * 8, max_tokens=1)["usage"] for _ in range(2)]
    assert repeated[1]["prompt_tokens_details"]["cached_tokens"] > 0


def test_embeddings_are_those_of_python_in_both_encodings(
    server: Running, client: openai.OpenAI
) -> None:
    with LLM("embedded:demo", dtype="float32", device="cpu") as llm:
        vectors: list[Any] = [found.embedding for found in llm.embed([PROMPT, "And"])]
        expected = [list(map(float, vector)) for vector in vectors]
        score = llm.score([PROMPT], [" in the"])[0]
    plain = whole(server, "/v1/embeddings", input=[PROMPT, "And"], encoding_format="float")
    packed = client.embeddings.create(model="demo", input=[PROMPT, "And"])  # base64
    for index, wanted in enumerate(expected):
        assert plain["data"][index]["embedding"] == pytest.approx(wanted, abs=1e-5)
        assert packed.data[index].embedding == pytest.approx(wanted, abs=1e-5)
    assert packed.usage.total_tokens == packed.usage.prompt_tokens > 0
    (mean,) = whole(server, "/v1/embeddings", input=PROMPT, pooling="mean")["data"]
    assert mean["embedding"] != pytest.approx(expected[0], abs=1e-3)
    found = whole(server, "/v1/score", prompt=PROMPT, continuation=[" in the", " zebra"])
    first, second = found["data"]
    assert first["score"] == pytest.approx(score.logprob, abs=1e-4)
    assert tuple(first["token_ids"]) == score.token_ids
    assert second["score"] < first["score"]
    for path, body, message in (
        ("/v1/embeddings", {"input": "a", "dimensions": 3}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "temperature": 1.0}, "unknown parameter 'temperature'"),
        ("/v1/embeddings", {"input": []}, "input is an empty list"),
        ("/v1/score", {"prompt": [5], "continuation": " a"}, "as token ids, too"),
        ("/v1/score", {"prompt": "a", "continuation": ""}, "no token of its own"),
    ):
        answer = post(server, path, body)
        assert (answer.status_code, message in answer.text) == (400, True), answer.text


def test_a_stream_says_what_the_whole_says(server: Running) -> None:
    expected = whole(server, **GREEDY, n=2, return_token_ids=True)
    body = {**GREEDY, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    events = events_of(post(server, "/v1/completions", {**body, "return_token_ids": True}))
    assert len({event["id"] for event in events}) == 1
    *pieces, last = events
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]
    assert all("usage" not in event for event in pieces)
    for index, choice in enumerate(expected["choices"]):
        assert text_of(events, index) == choice["text"]
        mine = [e["choices"][0] for e in pieces if e["choices"][0]["index"] == index]
        assert [c["finish_reason"] for c in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == "length"
        assert mine[-1]["token_ids"] == choice["token_ids"]


def test_every_event_has_the_usage_so_far(server: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"max_tokens": 5, "n": 2, "stream": True, "stream_options": options, "ignore_eos": True}
    for path, more in (
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/chat/completions", CHAT),
    ):
        usages = [event["usage"] for event in events_of(post(server, path, {**more, **body}))]
        counts = [usage["completion_tokens"] for usage in usages]
        assert counts == sorted(counts)
        assert set(range(2, 11, 2)) <= set(counts)
        assert {usage["prompt_tokens"] for usage in usages} == {usages[-1]["prompt_tokens"]}
        assert usages[-1]["total_tokens"] == usages[-2]["total_tokens"]


def test_several_prompts_are_texts_or_token_ids(server: Running) -> None:
    tokens = whole(server, "/tokenize", prompt=PROMPT)["tokens"]
    assert whole(server, "/detokenize", tokens=tokens)["prompt"] == PROMPT
    one = whole(server, **GREEDY)["choices"][0]["text"]
    both = whole(server, **{**GREEDY, "prompt": [tokens, tokens[:2]]}, echo=True)["choices"]
    assert [choice["index"] for choice in both] == [0, 1]
    assert both[0]["text"] == PROMPT + one
    body = {**GREEDY, "prompt": [PROMPT, "In the"], "n": 2, "stream": True}
    events = events_of(post(server, "/v1/completions", body))
    assert text_of(events, 0) == text_of(events, 1) == one
    assert text_of(events, 2) == text_of(events, 3) != one


def test_log_probabilities_of_completions_and_chats(server: Running) -> None:
    answer = whole(server, **GREEDY, logprobs=2, echo=True)["choices"][0]
    logprobs = answer["logprobs"]
    assert "".join(logprobs["tokens"]) == answer["text"]
    assert logprobs["token_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert logprobs["text_offset"][:2] == [0, len(logprobs["tokens"][0])]
    assert all(len(tops) in (2, 3) for tops in logprobs["top_logprobs"][1:])
    scored = whole(server, prompt=PROMPT, max_tokens=0, logprobs=1, echo=True)
    assert scored["choices"][0]["text"] == PROMPT
    assert scored["usage"]["completion_tokens"] == 0
    mine = scored["choices"][0]["logprobs"]["token_logprobs"]
    assert mine[1:] == pytest.approx(logprobs["token_logprobs"][1 : len(mine)], abs=1e-4)
    body = {**CHAT, "logprobs": True, "top_logprobs": 3, "max_tokens": 5}
    content = whole(server, "/v1/chat/completions", **body)["choices"][0]["logprobs"]["content"]
    assert [len(one["top_logprobs"]) for one in content] == [3] * 5
    assert all(one["logprob"] == one["top_logprobs"][0]["logprob"] for one in content)
    streamed = events_of(post(server, "/v1/chat/completions", {**body, "stream": True}))
    parts = [e["choices"][0]["logprobs"] for e in streamed if e["choices"][0]["logprobs"]]
    assert [one for part in parts for one in part["content"]] == content


def test_a_chat_goes_through_the_template(server: Running) -> None:
    body = {**CHAT, "max_completion_tokens": 8}
    answer = whole(server, "/v1/chat/completions", **body)
    message = answer["choices"][0]["message"]
    assert message["role"] == "assistant"
    plain = whole(server, prompt="user: Who art thou?\nassistant:", temperature=0, max_tokens=8)
    assert message["content"] == plain["choices"][0]["text"]
    tokens = whole(server, "/tokenize", messages=CHAT["messages"])
    assert tokens["count"] == answer["usage"]["prompt_tokens"]
    unread = post(server, "/tokenize", {"prompt": "a", "chat_template": "{{ messages }}"})
    assert unread.status_code == 400
    assert "chat_template needs messages" in unread.json()["error"]["message"]
    events = events_of(post(server, "/v1/chat/completions", {**body, "stream": True}))
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(events) == message["content"]
    thinking = {**body, "chat_template_kwargs": {"enable_thinking": "aloud"}}
    other = whole(server, "/v1/chat/completions", **thinking)
    assert other["usage"]["prompt_tokens"] > answer["usage"]["prompt_tokens"]


def test_openai_s_client_reads_answers_streams_and_errors(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    chat: Any = {"model": "demo", **CHAT, "max_tokens": 8}
    answer = client.chat.completions.create(**chat)
    chunks = list(client.chat.completions.create(**chat, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == answer.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="temperature is -1") as caught:
        client.chat.completions.create(**{**chat, "temperature": -1.0})
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match="no model is named 'gpt'"):
        client.completions.create(model="gpt", prompt="a")


def test_answers_keep_to_a_schema(server: Running) -> None:
    schema = {
        "type": "object",
        "properties": {"yea": {"type": "boolean"}},
        "required": ["yea"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {**CHAT, "response_format": wanted, "max_tokens": 30}
    content = whole(server, "/v1/chat/completions", **body)["choices"][0]["message"]["content"]
    assert content.replace(" ", "") in ('{"yea":true}', '{"yea":false}')
    body = {**CHAT, "response_format": {"type": "json_object"}, "max_tokens": 4}
    content = whole(server, "/v1/chat/completions", **body)["choices"][0]["message"]["content"]
    assert content.lstrip().startswith("{")


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"to": {"enum": ["Egypt", "Canaan"]}},
                "required": ["to"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("go", "flee")
]


def test_calls_of_tools_are_forced_and_parsed(client: openai.OpenAI, server: Running) -> None:
    chat: Any = {"model": "demo", **CHAT, "tools": TOOLS, "max_tokens": 60}
    named, named_go = ({"type": "function", "function": {"name": n}} for n in ("flee", "go"))
    for choice, names in (("required", {"go", "flee"}), (named, {"flee"})):
        forced: Any = {**chat, "tool_choice": choice, "parallel_tool_calls": False}
        answer = client.chat.completions.create(**forced)
        assert answer.choices[0].finish_reason == "tool_calls"
        (call,) = list(answer.choices[0].message.tool_calls or ())
        assert call.type == "function"
        assert call.function.name in names
        assert json.loads(call.function.arguments)["to"] in ("Egypt", "Canaan")
        assert answer.choices[0].message.content is None
        chunks = [c.choices[0] for c in client.chat.completions.create(**forced, stream=True)]
        (streamed,) = [tool for c in chunks for tool in c.delta.tool_calls or ()]
        assert streamed.function is not None
        assert streamed.function.arguments == call.function.arguments
        assert chunks[-1].finish_reason == "tool_calls"
    opened: Any = json.loads(json.dumps(TOOLS[:1]).replace(', "additionalProperties": false', ""))
    assert opened != TOOLS[:1]
    answer = client.chat.completions.create(**{**chat, "tools": opened, "tool_choice": named_go})
    (call,) = list(answer.choices[0].message.tool_calls or ())
    assert call.type == "function"
    assert set(json.loads(call.function.arguments)) == {"to"}
    free = client.chat.completions.create(**{**chat, "max_tokens": 6}, tool_choice="auto")
    assert free.choices[0].message.tool_calls is None
    assert free.choices[0].message.content
    with_tools, without = (
        whole(server, "/v1/chat/completions", **{**chat, "max_tokens": 1, **more})["usage"]
        for more in ({}, {"tool_choice": "none"})
    )
    assert with_tools["prompt_tokens"] > without["prompt_tokens"]


LARGE_FORMAT = {"type": "json_schema", "json_schema": {"schema": {"a": "b" * 2000}}}
REFUSED: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"promt": "a"}, 400, "promt", "did you mean 'prompt'"),
    ({}, 400, "prompt", "field required"),
    ({"prompt": "a", "suffix": "b"}, 400, "suffix", "is not supported"),
    ({"prompt": "a", "best_of": 2}, 400, "best_of", "use n"),
    ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "with echo"),
    ({"prompt": "a", "max_tokens": -1}, 400, "max_tokens", "it must be from 1"),
    ({"prompt": "a", "max_tokens": "5"}, 400, "max_tokens", "valid integer"),
    ({"prompt": "a", "max_tokens": 1e400}, 400, "max_tokens", "valid integer"),
    ({"prompt": "a", "temperature": 1e400}, 400, "temperature", "finite number"),
    ({"prompt": "a", "temperature": True}, 400, "temperature", "valid number"),
    ({"prompt": ""}, 400, None, "the prompt is empty"),
    ({"prompt": []}, 400, "prompt", "empty list"),
    ({"prompt": ["a"] * 5}, 400, "prompt", "at most 4"),
    ({"prompt": [1, 99999]}, 400, None, "outside the vocabulary"),
    ({"prompt": [1, 10**30]}, 400, None, "outside the vocabulary"),
    ({"prompt": [["a"]]}, 400, "prompt", "valid"),
    ({"prompt": "a", "stop": ["b"] * 5}, 400, "stop", "at most 4"),
    ({"prompt": "a", "stop": ""}, 400, None, "non-empty"),
    ({"prompt": "a", "logprobs": 65}, 400, "logprobs", "from 0 to 64"),
    ({"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias", "not a token id"),
    ({"prompt": "a", "echo": True, "logprobs": 1, "stream": True}, 400, "echo", "streamed"),
    ({"prompt": "a", "stream_options": {}}, 400, "stream_options", "stream: true"),
    ({"prompt": "a", "deadline_s": -1}, 400, "deadline_s", "above 0"),
    ({"prompt": "a", "arguments": {"nobody": 1}}, 400, "arguments", "does not use"),
    ({"prompt": "a", "client": "c" * 257}, 400, "client", "at most 256"),
    ({"prompt": "a", "user": "u" * 257}, 400, "user", "at most 256"),
    ({"prompt": "a", "model": "b"}, 404, "model", "there is demo"),
    ({"prompt": "word " * 3000}, 400, None, "at most 2047"),
    ({"prompt": "x" * 150_000}, 413, None, "larger than 100000 bytes"),
    ({"messages": []}, 400, "messages", "must not be empty"),
    ({"messages": [{"content": "a"}]}, 400, None, "message 0 must be an object with a role"),
    ({"messages": [{"role": "user", "content": "a"}] * 9}, 400, "messages", "at most 8"),
    ({**CHAT, "max_tokens": 1, "max_completion_tokens": 2}, 400, "max_completion_tokens", "differ"),
    ({**CHAT, "top_logprobs": 2}, 400, "top_logprobs", "needs logprobs"),
    ({**CHAT, "functions": [{}]}, 400, "functions", "use tools"),
    ({**CHAT, "store": True}, 400, "store", "nothing is stored"),
    ({**CHAT, "tool_choice": "required"}, 400, "tool_choice", "needs tools"),
    ({**CHAT, "tools": [*TOOLS, TOOLS[0]]}, 400, "tools", "same name"),
    ({**CHAT, "reasoning_effort": "low"}, 400, "reasoning_effort", "does not read"),
    ({**CHAT, "response_format": {"type": "xml"}}, 400, "response_format", "its type must be"),
    (
        {**CHAT, "response_format": LARGE_FORMAT},
        400,
        "response_format",
        "at most 2000",
    ),
]


@pytest.mark.parametrize(("body", "status", "param", "words"), REFUSED, ids=lambda v: str(v)[:30])
def test_B057_what_cannot_be_done_is_refused_by_name(
    server: Running, body: dict[str, Any], status: int, param: str | None, words: str
) -> None:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    content = json.dumps(body).replace("Infinity", "1e400")
    headers = {"Content-Type": "application/json"}
    response = httpx.post(f"{server.url}{path}", content=content, headers=headers, timeout=60)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param), error
    assert words in error["message"]
    assert error["type"]


def test_what_asks_for_nothing_is_taken(server: Running) -> None:
    body = {**CHAT, "store": False, "metadata": None, "service_tier": "auto", "n": 1, "seed": None}
    neutral = {"logit_bias": None, "stop": None, "tools": None, "functions": None, "user": "me"}
    assert whole(server, "/v1/chat/completions", **body, **neutral, max_tokens=1)


def test_other_paths_methods_and_types(server: Running) -> None:
    assert httpx.get(f"{server.url}/health").json() == {"status": "ready"}
    assert httpx.get(f"{server.url}/ready").status_code == 200
    assert httpx.get(f"{server.url}/version").json() == {"version": __version__}
    (listed,) = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert httpx.get(f"{server.url}/v1/models/demo").json() == listed
    assert listed["max_model_len"] == 2048
    wrong = httpx.get(f"{server.url}/v1/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    missing = post(server, "/v1/rerank", {})
    assert (missing.status_code, "/v1/score" in missing.text) == (404, True)
    form = httpx.post(f"{server.url}/v1/completions", data={"prompt": "a"})
    assert form.status_code == 415
    preflight = httpx.options(f"{server.url}/v1/models", headers={"Origin": "http://a.example"})
    assert "access-control-allow-origin" not in preflight.headers


def test_ids_logs_and_metrics_of_a_request(server: Running) -> None:
    name = 'vllm:request_success_total{finished_reason="length",model_name="demo"}'
    before = metric(server, name)
    body = {**GREEDY, "client": "ann", "user": "u-1", "priority": 2, "deadline_s": 50.0}
    response = post(server, "/v1/completions", body, headers={"X-Request-Id": "abc-7"})
    assert response.headers["x-request-id"] == "abc-7"
    line = server.logged("abc-7")
    expected = {"client": "ann", "user": "u-1", "status": 200, "output_tokens": 12, "error": None}
    assert expected.items() <= line.items()
    assert line["id"] == response.json()["id"]
    assert metric(server, name) == before + 1
    assert metric(server, 'nanofw_client_output_tokens_total{client="ann"}') == 12
    assert metric(server, 'vllm:num_requests_running{model_name="demo"}') == 0
    assert metric(server, 'nanofw_policy_info{scheduler="fcfs"}') == 1
    assert metric(server, "nanofw_running_requests") == 0
    own = post(server, "/v1/completions", {}, headers={"X-Request-Id": "an id with blanks"})
    assert len(own.headers["x-request-id"]) == 32
