"""Prompts in, text out, over an engine whose model says what the test wants."""

from __future__ import annotations

from typing import Any

import pytest

from nanofw.contracts.requests import FinishReason, SamplingParams
from nanofw.engine.engine import Engine
from nanofw.errors import ExecutorError
from nanofw.llm.prompts import parse_prompt
from nanofw.llm.results import RequestResult
from nanofw.llm.session import Session
from nanofw.text.byte_level import ByteTokenizer
from nanofw.text.chat import ChatTemplate
from tests.llm.scripted_engine import SECONDS_PER_STEP, SPEC, scripted_engine

EOS = SPEC.eos_token_ids[0]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def say(*pieces: str) -> list[int]:
    return [byte for piece in pieces for byte in piece.encode()]


def make_session(engine: Engine, **options: Any) -> Session:
    return Session(engine, ByteTokenizer(), ChatTemplate({"default": TEMPLATE}, {}), **options)


class Transcript:
    """What a session brought, to the end."""

    def __init__(self, session: Session) -> None:
        self.results: dict[int, RequestResult] = {}
        self.shown: dict[int, str] = {}
        self.streamed_ids: dict[int, list[int]] = {}
        while session.has_unfinished:
            step = session.step()
            for ticket, event in step.events:
                assert ticket not in self.results, "an event after the result"
                if event.result is not None:
                    self.results[ticket] = event.result
                    continue
                self.shown[ticket] = self.shown.get(ticket, "") + event.text
                self.streamed_ids.setdefault(ticket, []).extend(event.token_ids)


def ask(session: Session, value: Any, stream: bool = False, **sampling: Any) -> int:
    params = SamplingParams(**{"max_tokens": 20, **sampling})
    return session.add_prompt(parse_prompt(value, params), stream=stream)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_text_ends_before_the_end_token(overlap: bool, stream: bool) -> None:
    engine = scripted_engine({"request-0": [*say("Hello"), EOS]}, overlap=overlap)
    session = make_session(engine)
    ticket = ask(session, "Hi", stream=stream)
    transcript = Transcript(session)
    completion = transcript.results[ticket].outputs[0]
    assert completion.text == "Hello"
    assert completion.token_ids == (*say("Hello"), EOS)
    assert (completion.finish_reason, completion.stop_reason) == (FinishReason.STOP, None)
    assert transcript.shown.get(ticket, "Hello") == "Hello"


def test_the_text_of_a_stop_token_is_not_shown_and_the_token_named() -> None:
    engine = scripted_engine({"request-0": say("Hello.More")})
    session = make_session(engine)
    ticket = ask(session, "Hi", stream=True, stop_token_ids=(ord("."),))
    transcript = Transcript(session)
    completion = transcript.results[ticket].outputs[0]
    assert completion.text == transcript.shown[ticket] == "Hello"
    assert completion.stop_reason == ord(".")
    assert completion.token_ids == tuple(say("Hello."))


@pytest.mark.parametrize("stream", [False, True])
def test_the_text_of_a_stop_token_is_shown_on_request(stream: bool) -> None:
    session = make_session(scripted_engine({"request-0": say("Hello.More")}))
    wishes = {"stop_token_ids": (ord("."),), "include_stop_str_in_output": True}
    ticket = ask(session, "Hi", stream=stream, **wishes)
    transcript = Transcript(session)
    assert transcript.results[ticket].outputs[0].text == "Hello."
    assert transcript.shown.get(ticket, "Hello.") == "Hello."


def test_a_tokenizer_that_fails_refuses_the_prompt_alone() -> None:
    class Picky(ByteTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            if "?" in text:
                raise Exception("missing [UNK] token")
            return super().encode(text, add_special_tokens=add_special_tokens)

    session = Session(scripted_engine({}), Picky(), ChatTemplate({}, {}))
    wrong, good = ask(session, "a?"), ask(session, "a")
    results = Transcript(session).results
    assert "cannot encode the prompt: missing [UNK]" in str(results[wrong].error)
    assert results[good].ok


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_B055_B098_stop_strings_end_the_request(overlap: bool, stream: bool) -> None:
    """Neither text, tokens, stream nor counters show anything past the stop string."""
    engine = scripted_engine({"request-0": say("ABCDEFGHIJKL")}, overlap=overlap)
    session = make_session(engine)
    stopped = ask(session, "Hi", stream=stream, stop="DEFGHIJ", max_tokens=100)
    other = ask(session, "Hi", max_tokens=30)
    transcript = Transcript(session)
    result = transcript.results[stopped]
    completion = result.outputs[0]
    assert completion.text == "ABC"
    assert (completion.finish_reason, completion.stop_reason) == (FinishReason.STOP, "DEFGHIJ")
    assert completion.token_ids == tuple(say("ABCDEFGHIJ"))
    if stream:
        assert transcript.shown[stopped] == "ABC"
        assert transcript.streamed_ids[stopped] == say("ABCDEFGHIJ")
    assert transcript.results[other].outputs[0].token_ids == tuple(say("." * 30))
    assert engine.stats()["num_output_tokens"] == 10 + 30
    assert result.timings is not None
    assert result.timings.num_output_tokens == 10


def test_a_stop_string_at_the_last_allowed_token_counts_as_stop() -> None:
    engine = scripted_engine({"request-0": say("ABCD")})
    session = make_session(engine)
    ticket = ask(session, "Hi", stop=["CD"], max_tokens=4)
    completion = Transcript(session).results[ticket].outputs[0]
    assert (completion.text, completion.finish_reason) == ("AB", FinishReason.STOP)


def test_what_began_like_a_stop_string_is_shown_at_the_end() -> None:
    engine = scripted_engine({"request-0": say("ABCD")})
    session = make_session(engine)
    ticket = ask(session, "Hi", stream=True, stop=["CDX"], max_tokens=4)
    transcript = Transcript(session)
    assert transcript.shown[ticket] == transcript.results[ticket].outputs[0].text == "ABCD"
    assert transcript.results[ticket].outputs[0].finish_reason == FinishReason.LENGTH


def test_the_stop_string_is_included_on_request() -> None:
    engine = scripted_engine({"request-0": say("ABCD")})
    session = make_session(engine)
    ticket = ask(session, "Hi", stream=True, stop="BC", include_stop_str_in_output=True)
    transcript = Transcript(session)
    assert transcript.shown[ticket] == transcript.results[ticket].outputs[0].text == "ABC"


@pytest.mark.parametrize("overlap", [False, True])
def test_samples_of_one_prompt_stop_on_their_own(overlap: bool) -> None:
    scripts = {"x": say("one stop"), "x#1": say("two and two"), "x#2": [*say("3"), EOS]}
    engine = scripted_engine(scripts, overlap=overlap)
    session = make_session(engine)
    ticket = ask(session, {"prompt": "Hi", "id": "x", "n": 3}, stop=" stop", max_tokens=11)
    result = Transcript(session).results[ticket]
    assert [completion.text for completion in result.outputs] == ["one", "two and two", "3"]
    assert [completion.index for completion in result.outputs] == [0, 1, 2]
    reasons = [str(completion.finish_reason) for completion in result.outputs]
    assert reasons == ["stop", "length", "stop"]
    assert result.ok
    assert result.num_output_tokens == 8 + 11 + 2
    assert engine.stats()["num_output_tokens"] == 8 + 11 + 2
    samples: Any = result.to_record()["samples"]
    assert [sample["text"] for sample in samples] == [
        "one",
        "two and two",
        "3",
    ]


def test_streamed_samples_are_told_apart() -> None:
    session = make_session(scripted_engine({"x": say("ab"), "x#1": say("cd")}))
    ask(session, {"prompt": "Hi", "id": "x", "n": 2}, stream=True, max_tokens=2)
    shown = ["", ""]
    while session.has_unfinished:
        for _, event in session.step().events:
            shown[event.index] += event.text
    assert shown == ["ab", "cd"]


def test_log_probabilities_of_the_tokens_that_count() -> None:
    session = make_session(scripted_engine({"request-0": say("AB, then")}))
    ticket = ask(session, "Hi", stop=",", logprobs=2, max_tokens=30)
    completion = Transcript(session).results[ticket].outputs[0]
    assert completion.token_ids == tuple(say("AB,"))
    assert completion.logprobs is not None
    assert [list(position) for position in completion.logprobs] == [
        [token_id, 0, 1] for token_id in say("AB,")
    ]
    own = completion.logprobs[0][ord("A")]
    assert (own.rank, own.decoded_token) == (66, "A")
    assert own.logprob == pytest.approx(-0.65)
    assert completion.cumulative_logprob == pytest.approx(-(65 + 66 + 44) / 100)
    records: Any = completion.to_record()["logprobs"]
    record = records[0]
    assert (record["token"], record["rank"]) == ("A", 66)
    assert [top["token_id"] for top in record["top"]] == [0, 1]


def test_bad_words_become_token_ids() -> None:
    session = make_session(scripted_engine({}))
    prompt = parse_prompt({"prompt": "Hi", "bad_words": ["no", [5, 6]]}, SamplingParams())
    encoded = session.encoder.encode(prompt)
    assert encoded.sampling.bad_words == (tuple(say("no")), tuple(say(" no")), (5, 6))


def test_B058_streams_show_whole_characters() -> None:
    text = "Dvořák 😀 中"
    engine = scripted_engine({"request-0": say(text)})
    session = make_session(engine)
    ticket = ask(session, "Hi", stream=True, max_tokens=len(say(text)))
    transcript = Transcript(session)
    assert transcript.shown[ticket] == transcript.results[ticket].outputs[0].text == text


def test_B030_an_empty_prompt_is_refused_alone() -> None:
    session = make_session(scripted_engine({}))
    tickets = [ask(session, value) for value in ("", [], "good")]
    results = Transcript(session).results
    reasons = [results[ticket].outputs[0].finish_reason for ticket in tickets]
    assert reasons == [FinishReason.REFUSED, FinishReason.REFUSED, FinishReason.LENGTH]
    assert "empty" in str(results[tickets[0]].error)


def test_B038_a_second_request_of_a_live_id_is_refused_alone() -> None:
    session = make_session(scripted_engine({"x": say("first one")}))
    first = ask(session, {"prompt": "Hi", "id": "x"}, max_tokens=9)
    second = ask(session, {"prompt": "Hi", "id": "x"})
    results = Transcript(session).results
    assert results[first].outputs[0].text == "first one"
    assert results[second].outputs[0].finish_reason == FinishReason.REFUSED
    assert "unique" in str(results[second].error)


def test_B038_an_id_is_not_taken_over_before_its_result_was_handed_out() -> None:
    session = make_session(scripted_engine({}))
    first = ask(session, {"prompt": "Hi", "id": "x"}, max_tokens=50)
    session.step()
    session.abort(first)
    second = ask(session, {"prompt": "Hi", "id": "x"}, max_tokens=3)
    results = Transcript(session).results
    assert results[first].outputs[0].finish_reason == "abort"
    assert "not handed out" in str(results[second].error)
    third = ask(session, {"prompt": "Hi", "id": "x"}, max_tokens=3)
    assert Transcript(session).results[third].ok


def test_ids_that_the_session_gives_avoid_those_of_the_user() -> None:
    session = make_session(scripted_engine({}))
    first = ask(session, {"prompt": "Hi", "id": "request-1"})
    second = ask(session, "Hi")
    results = Transcript(session).results
    assert results[first].ok
    assert results[second].ok


@pytest.mark.parametrize(
    ("value", "sampling", "words"),
    [
        ("Hi", {"stop": [""]}, "stop string"),
        ("Hi", {"max_tokens": 0}, "max_tokens is 0"),
        ({"messages": [{"text": "no role"}]}, {}, "role"),
        ({"messages": [{"role": "user", "content": "Hi"}], "chat_template": "x"}, {}, "'x'"),
        ([1, 2, 3000], {}, "3000"),
        ("Hi", {"stop": 5}, "stop is 5; it must be a text or a list of texts"),
        ("Hi", {"stop": None}, "stop is None; it must be"),
        ("Hi", {"stop": b"x"}, "stop is b'x'; it must be"),
        ("Hi", {"bad_words": "abc"}, "bad_words is 'abc'; it must be a list of words"),
        ("Hi", {"bad_words": None}, "bad_words is None; it must be"),
        ("Hi", {"logit_bias": [1]}, "logit_bias is [1]; it must be a mapping"),
        ("a\ud800b", {}, "not valid text"),
    ],
)
def test_what_cannot_be_served_is_refused_alone(
    value: Any, sampling: dict[str, Any], words: str
) -> None:
    session = make_session(scripted_engine({}))
    wrong, good = ask(session, value, **sampling), ask(session, "good")
    results = Transcript(session).results
    assert words in str(results[wrong].error)
    assert results[good].ok


def test_messages_go_through_the_template() -> None:
    session = make_session(scripted_engine({}))
    ticket = ask(session, {"messages": [{"role": "user", "content": "Hi"}]})
    result = Transcript(session).results[ticket]
    assert result.prompt == "user: Hi\n"
    assert result.prompt_token_ids == tuple(say("user: Hi\n"))


def test_without_a_tokenizer_ids_work_and_texts_are_refused() -> None:
    session = Session(scripted_engine({}), None, ChatTemplate({}, {}))
    ids, text = ask(session, [1, 2]), ask(session, "Hi")
    stops = ask(session, [1], stop="x")
    results = Transcript(session).results
    assert results[ids].outputs[0].token_ids == (ord("."),) * 20
    assert results[ids].outputs[0].text == ""
    assert "no tokenizer" in str(results[text].error)
    assert "stop_token_ids" in str(results[stops].error)


def test_abort_gives_what_there_was() -> None:
    session = make_session(scripted_engine({"request-0": say("ABCDEF")}))
    ticket = ask(session, "Hi")
    session.step()
    session.step()
    assert session.abort(ticket)
    completion = Transcript(session).results[ticket].outputs[0]
    assert (completion.text, completion.finish_reason) == ("AB", FinishReason.ABORT)
    assert not session.abort(ticket)


def test_a_failing_engine_leaves_results_for_everyone() -> None:
    session = make_session(scripted_engine({}, fail_at=5))
    short, long = ask(session, "Hi", max_tokens=2), ask(session, "Hi", max_tokens=50)
    results: dict[int, RequestResult] = {}
    for _ in range(5):
        results |= dict(session.step().results)
    with pytest.raises(ExecutorError, match="fell off the bus"):
        session.step()
    results |= dict(session.fail("the engine failed").results)
    assert not session.has_unfinished
    assert results[short].ok
    assert results[long].outputs[0].finish_reason == FinishReason.ERROR
    assert results[long].error == "the engine failed"


def test_B110_timings_are_in_order_on_one_clock() -> None:
    session = make_session(scripted_engine({}), token_times=True)
    ticket = ask(session, "Hi", max_tokens=4)
    timings = Transcript(session).results[ticket].timings
    assert timings is not None
    assert timings.scheduled is not None
    assert timings.first_token is not None
    assert timings.arrival <= timings.scheduled <= timings.first_token <= timings.finished
    assert timings.ttft_s == pytest.approx(SECONDS_PER_STEP)
    assert timings.e2e_s == pytest.approx(4 * SECONDS_PER_STEP)
    assert timings.tpot_s == pytest.approx(SECONDS_PER_STEP)
    assert timings.itl_s == pytest.approx((SECONDS_PER_STEP,) * 3)
