"""The live page, driven in a real browser against a simulated server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from nanofw.contracts.arrays import EMPTY_INT
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.plan import NewRow, StepPlan
from nanofw.contracts.requests import FinishReason, SamplingParams
from nanofw.llm.results import Completion, RequestResult, Timings
from nanofw.server.overview import MAX_CLIENTS, OTHERS, Overview
from tests.chromium import chromium
from tests.server.running import Running, post, running

WORDS = (
    "sim", "engine.max_num_seqs=2", "executor.seconds_per_step=0.02", "scheduler.name=fair_share",
    "server.limits.max_client_requests=3",
)  # fmt: skip
NASTY = "<img src=x onerror=alert(1)>"
STATS: dict[str, Any] = {
    "num_running": 1, "num_waiting": 0, "num_output_tokens": 5, "num_unfinished_tokens": 2,
    "num_prompt_tokens": 8, "num_cached_tokens": 0, "num_preemptions": 0, "num_finished": {},
    "blocks": {},
}  # fmt: skip


# -- what it shows ------------------------------------------------------------------------


def plan(new: tuple[tuple[int, str], ...] = (), removed: tuple[int, ...] = (), **more: Any) -> Any:
    import numpy as np

    rows = [
        NewRow(row=row, request_id=name, token_ids=np.zeros(1, np.int32), num_prompt_tokens=1,
               block_ids=np.zeros(1, np.int32), sampling=SamplingParams(), seed=0)
        for row, name in new
    ]  # fmt: skip
    return StepPlan(step=0, new=rows, removed=np.array(removed, np.int32), **more)


def decisions(overview: Overview) -> list[tuple[str, str]]:
    record: Any = overview.record(STATS)
    return [(item["what"], item["client"]) for item in reversed(record["decisions"])]


def served(ttft: float, tokens: int) -> RequestResult:
    done = Completion(finish_reason=FinishReason.LENGTH, token_ids=(1,) * tokens)
    timings = Timings(arrival=0.0, scheduled=0.0, first_token=ttft, finished=2.0,
                      num_output_tokens=tokens)  # fmt: skip
    return RequestResult(request_id="r", outputs=[done], timings=timings)


def test_decisions_say_who_went_ahead_of_whom() -> None:
    overview = Overview()
    for name, client in [("a", "flood"), ("b", "flood"), ("c", "quiet")]:
        overview.came(name, client)
    watch = overview.observer.submitted
    watch(plan(new=((0, "a"),)), 1e9)
    watch(plan(new=((1, "c"),)), 1e9)  # before b
    watch(plan(removed=(0,)), 1e9)  # a gives way
    watch(plan(new=((0, "a"),)), 1e9)
    watch(plan(removed=(1,), finished=("c",)), 1e9)  # c has ended
    assert decisions(overview) == [
        ("started", "flood"), ("started", "quiet"), ("preempted", "flood"), ("resumed", "flood"),
    ]  # fmt: skip
    record: Any = overview.record(STATS)
    assert record["decisions"][2]["why"].endswith("ahead of 1 that came earlier")


def test_what_ended_while_it_waited_is_not_kept() -> None:
    observer = Overview().observer
    for number in range(3):
        name = f"r{number}"
        observer.submitted(plan(new=((0, name),)), 0.0)
        observer.submitted(plan(removed=(0,)), 0.0)  # gives way, and is then aborted
        observer.finished(RequestOutput(id=name, token_ids=EMPTY_INT, num_prompt_tokens=1,
                                        finish_reason=FinishReason.ABORT))  # fmt: skip
        observer.submitted(plan(finished=(name,)), 0.0)
    observer.submitted(plan(new=((0, "r0"),)), 0.0)  # the name comes again
    assert [kind for kind, _, _ in observer.events] == ["started", "preempted"] * 3 + ["started"]


def test_clients_are_counted_apart_up_to_a_bound() -> None:
    overview = Overview()
    for number in range(MAX_CLIENTS + 5):
        overview.came(str(number), f"client {number}")
        overview.left(str(number), served(0.5, 3))
    overview.left("0", served(0.5, 3))  # a second end does not count
    overview.turned_away("client 0", "full")
    record: Any = overview.record(STATS)
    by_name = {item["name"]: item for item in record["clients"]}
    assert len(by_name) == MAX_CLIENTS + 1
    assert by_name[OTHERS]["num_ended"] == 5
    assert (by_name["client 0"]["num_tokens"], by_name["client 0"]["num_refused"]) == (3, 1)
    assert by_name["client 0"]["ttft_p90_s"] == 0.5
    assert record["latencies"]["e2e"]["p50"] == 2.0
    assert record["num_output_tokens"] == 7


# -- in a browser -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


@pytest.fixture(scope="module")
def server(browser: Any) -> Iterator[Running]:
    """With some traffic behind it: of a client with a nasty name, and one that asks too much."""
    with running(*WORDS) as started:
        body = {"prompt": "Hello", "max_tokens": 5, "client": NASTY}
        for _ in range(3):
            post(started, "/v1/completions", body).raise_for_status()
        too_many = {"prompt": ["a"] * 2, "n": 1, "max_tokens": 5, "client": "greedy"}
        post(started, "/v1/completions", too_many).raise_for_status()
        yield started


def until(browser: Any, found: Callable[[], Any]) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 60).until(lambda _: found())


def text(browser: Any, name: str) -> str:
    return browser.find_element("id", name).text


def test_it_shows_the_server_and_loads_nothing_else(browser: Any, server: Running) -> None:
    browser.get(server.url)
    until(browser, lambda: text(browser, "state") == "ready" and "%" in text(browser, "kv"))
    assert "simulated in real time" in text(browser, "facts")
    assert text(browser, "policy") == "fair_share"
    assert NASTY in text(browser, "clients")
    assert "greedy" in text(browser, "clients")
    assert re.search(r"TTFT \d", text(browser, "latencies"))
    assert text(browser, "ended") == "5"
    assert "started" in text(browser, "decisions")
    assert browser.find_elements("tag name", "img") == []
    loaded = browser.execute_script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
    )
    assert {name for name in loaded if not name.startswith("data:")} == {f"{server.url}/overview"}
    assert browser.get_log("browser") == []


def test_one_can_talk_to_the_model_and_stop_it(browser: Any, server: Running) -> None:
    browser.get(server.url)
    until(browser, lambda: text(browser, "state") == "ready")
    until(browser, lambda: browser.find_element("id", "kind").get_property("value") == "text")
    browser.find_element("id", "prompt").send_keys("And it")
    most = browser.find_element("id", "most")
    most.clear()
    most.send_keys("7")
    browser.find_element("id", "send").click()
    until(browser, lambda: text(browser, "speed").startswith("7 tokens, the first after"))
    assert text(browser, "answer").startswith("And it")
    most.clear()
    most.send_keys("1500")
    browser.find_element("id", "send").click()
    until(browser, lambda: len(text(browser, "answer")) > 10 and text(browser, "running") == "1")
    browser.find_element("id", "stop").click()
    until(browser, lambda: text(browser, "speed") == "Stopped.")
    until(browser, lambda: text(browser, "running") == "0")
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("width", [400, 800, 1300])
def test_it_fits_a_telephone(browser: Any, server: Running, width: int) -> None:
    browser.set_window_size(width, 900)
    browser.get(server.url)
    until(browser, lambda: "%" in text(browser, "kv"))
    widths = browser.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert widths[0] <= widths[1]


def test_with_keys_it_asks_for_one(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"PAGE_KEY": "sesame"}
    words = ("server.clients=[{name: me, key_env: PAGE_KEY}]", "executor.seconds_per_step=0.001")
    with running("sim", *words, environment=keys) as server:
        assert httpx.get(f"{server.url}/overview").status_code == 401
        browser.get(server.url)
        until(browser, lambda: browser.find_element("id", "login").is_displayed())
        assert text(browser, "kv") == "–"
        browser.find_element("id", "key").send_keys("sesame")
        browser.find_element("css selector", "#login button").click()
        until(browser, lambda: "%" in text(browser, "kv"))
        assert not browser.find_element("id", "login").is_displayed()
