"""Faults planted in the way of a request."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from nanofw import LLM
from nanofw.cli import inputs
from nanofw.engine import base, request_checks
from nanofw.llm import live, llm, prompts, refusals, session
from tests.fuzz.planting import Planted, raising
from tests.fuzz.requests import OVERRIDES, run_lines, run_streams, run_together, run_with_keywords

WAYS = (run_together, run_with_keywords, run_streams)


@contextlib.contextmanager
def opened() -> Iterator[Callable[[int], object]]:
    """One `LLM` for all seeds; every eighth is a file of lines."""
    with LLM.from_config("sim", *OVERRIDES) as made:

        def check(seed: int) -> None:
            if seed % 8 == 7:
                run_lines(seed)
            else:
                WAYS[seed % len(WAYS)](made, seed)

        with raising(check) as problem:
            yield problem


PLANTED = Planted(opened)
plant = PLANTED.plant


@plant(request_checks, "shown")
def values_are_quoted_whole(usual: Any) -> Any:
    return repr


@plant(session, "refused")
def refusals_have_no_reason(usual: Any) -> Any:
    return lambda request_id, error, *others: usual(request_id, "", *others)


@plant(prompts, "override_sampling")
def sampling_leaks_to_the_next_request(usual: Any) -> Any:
    kept: dict[str, Any] = {}

    def override_sampling(sampling: Any, values: Any) -> Any:
        merged = {**kept, **values}
        kept.update({name: value for name, value in values.items() if name == "min_tokens"})
        return usual(sampling, merged)

    return override_sampling


@plant(llm.LLM, "_stream")
def streams_say_their_result_twice(usual: Any) -> Any:
    def stream(self: Any, *arguments: Any) -> Iterator[Any]:
        for event in usual(self, *arguments):
            yield event
            if event.result is not None:
                yield event

    return stream


@plant(llm.LLM, "_run")
def results_come_in_the_order_of_their_ends(usual: Any) -> Any:
    return lambda *arguments: sorted(usual(*arguments), key=lambda r: str(r.finish_reason))


@plant(refusals, "with_fields")
def keywords_replace_what_a_request_brings(usual: Any) -> Any:
    return lambda value, fields: {**value, **fields} if isinstance(value, dict) else value


@plant(request_checks, "_token_limit")
def answers_end_with_the_model_s_length(usual: Any) -> Any:
    return lambda num_prompt, sampling, limits: limits.max_model_len


@plant(session.Session, "_refuse")
def refusals_end_the_call(usual: Any) -> Any:
    def refuse(self: Any, ticket: int, request_id: str, error: Any, prompt: Any) -> None:
        raise error

    return refuse


@plant(session.Session, "_refuse")
def a_refusal_aborts_the_request_before(usual: Any) -> Any:
    def refuse(self: Any, ticket: int, *others: Any) -> None:
        self.abort(ticket - 1)
        usual(self, ticket, *others)

    return refuse


@plant(refusals, "or_refused")
def only_some_errors_refuse(usual: Any) -> Any:
    def or_refused(prompt: Any, read: Any) -> Any:
        try:
            return read()
        except ValueError as error:
            return replace(prompt, refusal=base.RequestError("", str(error)))

    return or_refused


@plant(live.LiveRequest, "result")
def results_lose_their_tokens(usual: Any) -> Any:
    def result(self: Any) -> Any:
        made = usual(self)
        return replace(made, outputs=[replace(one, token_ids=()) for one in made.outputs])

    return result


@plant(inputs, "_json_prompt")
def lines_are_refused_without_their_place(usual: Any) -> Any:
    def json_prompt(text: str, place: str, guess: str) -> Any:
        made = usual(text, place, guess)
        return replace(made, place="")

    return json_prompt


@plant(inputs, "_prompts_of_lines")
def lines_that_are_not_text_are_skipped(usual: Any) -> Any:
    def prompts_of_lines(*arguments: Any) -> Iterator[Any]:
        yield from (made for made in usual(*arguments) if made.error is None)

    return prompts_of_lines
