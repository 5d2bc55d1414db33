"""The report of a comparison, as a file and in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from nanofw.cli.main import main
from tests.chromium import chromium
from tests.compare.test_compare import BASE, write

pytest.importorskip("matplotlib")
NASTY = '<b onclick="alert(1)">&\'$x$</script>'


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an experiment at two loads, one arm of which has a name to be careful with."""
    folder = tmp_path_factory.mktemp("report")
    changes = {
        "name": "first come & others <2026>",
        "arms": {**BASE["arms"], NASTY: {"scheduler": {"name": "random"}}},
        "loads": [0.6, 1.1],
        "capacity": 130.0,
        "expect": [{"metric": "e2e.mean", "arm": "sjf", "max_ratio": 5, "why": "a & b"}],
        "output": str(folder / "result.json"),
        "report": str(folder / "result.html"),
    }
    assert main(["compare", str(write(folder, **changes))]) == 0
    return folder


class Page(HTMLParser):
    """What a page has: unclosed elements, links to elsewhere, ids, scripts."""

    VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.scripts: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), "a name has become an attribute"
            if name == "id" and value:
                self.ids.append(value)
            if name in ("src", "href", "xlink:href") and value and not value.startswith("#"):
                self.links.append(value)
        if tag == "script":
            self.scripts.append(dict(attrs))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag


def test_one_file_is_enough_and_names_cannot_break_it(reported: Path) -> None:
    page = Page((reported / "result.html").read_text(encoding="utf-8"))
    assert not page.open
    assert page.links == ["data:,"]
    assert page.scripts == [{"type": "application/json", "id": "result"}]
    assert len(page.ids) == len(set(page.ids)), "ids of pictures clash"


def test_it_holds_the_result(reported: Path) -> None:
    text = (reported / "result.html").read_text(encoding="utf-8")
    found = re.search(r'id="result">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    held = json.loads(found[1])
    written = json.loads((reported / "result.json").read_text(encoding="utf-8"))
    assert held == written


@pytest.mark.slow
def test_the_same_result_makes_the_same_pictures(reported: Path, tmp_path: Path) -> None:
    experiment = str(reported / "experiment.yaml")
    again = tmp_path / "again.html"
    output = f"compare.output={tmp_path / 'again.json'}"
    assert main(["compare", experiment, f"compare.report={again}", output]) == 0
    pictures = [
        re.findall(r"<svg.*?</svg>", path.read_text(encoding="utf-8"), re.DOTALL)
        for path in (reported / "result.html", again)
    ]
    assert pictures[0] == pictures[1]
    assert len(pictures[0]) == 9  # by load; effects, runs, spread and queue of two loads


def test_an_experiment_that_ends_early_is_reported_without_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "late.py").write_text(
        "from nanofw.plugins import Plugin, Policy, hookimpl\n"
        "@hookimpl\n"
        "def scheduler():\n"
        "    return Plugin('late', ':Late', api='scheduler/2')\n"
        "class Late(Policy):\n"
        "    def key(self, request, view):\n"
        "        raise KeyboardInterrupt\n",
        encoding="utf-8",
    )
    config = {**BASE["config"], "plugins": {"load": ["./late.py"]}}
    report = tmp_path / "result.html"
    arms = {"fcfs": {}, "late": {"scheduler": {"name": "late"}}}
    path = write(tmp_path, config=config, arms=arms, aa=False, report=str(report))
    main(["compare", str(path)])
    error = capsys.readouterr().err
    assert f"1 runs were finished and are in {report}" in error
    text = report.read_text(encoding="utf-8")
    assert "The experiment ended early" in text
    assert "fcfs at 1.1: runs 2 to 3" in text
    assert 'id="verdicts"' not in text
    assert not Page(text).open


def test_a_report_that_cannot_be_written_is_told_before_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = str(tmp_path / "result")
    assert main(["compare", str(write(tmp_path, output=same, report=same))]) == 2
    assert "report: would overwrite" in capsys.readouterr().err
    assert main(["compare", str(write(tmp_path, report="/proc/nope/result.html"))]) == 2
    assert "report: cannot write" in capsys.readouterr().err


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


class TestInABrowser:
    @pytest.fixture(autouse=True)
    def _opened(self, browser: Any, reported: Path) -> None:
        browser.get((reported / "result.html").as_uri())

    def test_nothing_is_loaded_and_nothing_fails(self, browser: Any) -> None:
        loaded = browser.execute_script(
            "return performance.getEntriesByType('resource').map(entry => entry.name)"
        )
        assert [name for name in loaded if not name.startswith("data:")] == []
        assert browser.get_log("browser") == []
        assert browser.title == "first come & others <2026>"

    def test_names_are_text(self, browser: Any) -> None:
        body = browser.find_element("tag name", "body").text
        assert NASTY in body
        assert browser.find_elements("css selector", "b") == []
        labels = browser.execute_script(
            "return [...document.querySelectorAll('svg text')].map(text => text.textContent)"
        )
        assert NASTY in labels

    def test_tables_say_what_the_terminal_says(self, browser: Any, reported: Path) -> None:
        written = json.loads((reported / "result.json").read_text(encoding="utf-8"))
        rows = browser.execute_script(
            "return [...document.querySelectorAll('table.effects tbody tr:not(.first)')].map("
            " row => [...row.querySelectorAll('td')].map(cell => cell.innerText.trim()))"
        )
        assert len(rows) == len(written["rows"])
        for cells, expected in zip(rows, written["rows"], strict=True):
            assert cells[0] == expected["arm"]
            assert cells[5] == (expected["verdict"] or "")
            effect = expected["effect"]
            if effect and effect["scale"] == "ratio" and effect["estimate"]:
                assert abs(float(cells[2][1:]) - effect["estimate"]) < 6e-4
        decided = browser.find_elements("css selector", "#verdicts tbody tr")
        assert len(decided) == 4  # two arms at two loads
        assert browser.find_element("css selector", "#expectations .met").text.startswith(
            "as expected"
        )

    def test_pictures_are_seen(self, browser: Any) -> None:
        sizes = browser.execute_script(
            "return [...document.querySelectorAll('figure svg')].map(picture => {"
            " const box = picture.getBoundingClientRect(); return [box.width, box.height] })"
        )
        assert len(sizes) == 9
        assert all(width > 200 and height > 100 for width, height in sizes)

    def test_it_begins_with_what_was_found_and_compared(self, browser: Any) -> None:
        sentences = [p.text for p in browser.find_elements("css selector", "#conclusion p")]
        told = " ".join(sentences)
        assert f" against {NASTY}" in told
        assert "sjf" in told
        assert "fcfs" in told
        facts = browser.find_element("id", "facts").text
        assert "shape:qwen3-0.6b" in facts
        assert "cost model roofline" in facts
        assert "80 requests" in facts

    def test_details_open(self, browser: Any) -> None:
        provenance = browser.find_element("id", "provenance")
        assert "shortest_job_first" not in provenance.text
        for summary in provenance.find_elements("tag name", "summary"):
            summary.click()
        assert "shortest_job_first" in provenance.text
        assert "num_requests: 80" in provenance.text

    def test_a_narrow_window_scrolls_tables_alone(self, browser: Any) -> None:
        browser.set_window_size(500, 900)  # the least that a headless window has
        widths = browser.execute_script(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        browser.set_window_size(1100, 900)
        assert widths[0] <= widths[1]


@pytest.fixture(scope="module")
def with_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with timelines: few blocks, so that requests are preempted."""
    folder = tmp_path_factory.mktemp("logs")
    config = {**BASE["config"], "kv_allocator": {"num_blocks": 12, "block_size": 16}}
    config["engine"] = {"max_num_seqs": 4, "max_model_len": 192}
    workload = {**BASE["workload"], "num_requests": 30}
    changes = {
        "config": config, "workload": workload, "repeats": 1, "aa": False,
        "decisions": str(folder / "logs"), "report": str(folder / "result.html"),
    }  # fmt: skip
    assert main(["compare", str(write(folder, **changes))]) == 0
    return folder / "result.html"


def test_timelines_hold_every_request_and_step(with_logs: Path) -> None:
    text = with_logs.read_text(encoding="utf-8")
    found = re.search(r'id="timelines">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    arms = json.loads(found[1])
    assert [arm["arm"] for arm in arms] == ["fcfs", "sjf"]
    for arm in arms:
        assert len(arm["requests"]) == arm["num_requests"] == 30
        assert len(arm["steps"]) == arm["num_steps"]
        assert max(used for _, _, used in arm["counts"]) <= arm["num_blocks"] == 12
        free_from: dict[int, float] = {}
        for _, lane, arrival, ended, stays in sorted(arm["requests"], key=lambda item: item[2]):
            assert free_from.get(lane, 0.0) <= arrival, "two requests in one place"
            free_from[lane] = ended
            times = [arrival, *(time for stay in stays for time in stay[:3])]
            assert times == sorted(times)
            assert times[-1] == ended
        num_decodes = sum(step[2] for step in arm["steps"])
        assert num_decodes > 0


def test_a_timeline_can_be_zoomed(browser: Any, with_logs: Path) -> None:
    browser.get(with_logs.as_uri())
    picture = "return document.querySelector('canvas').toDataURL()"
    whole = browser.execute_script(picture)
    blank = (
        "const c = document.createElement('canvas'); const o = document.querySelector('canvas');"
    )
    blank += "c.width = o.width; c.height = o.height; return c.toDataURL()"
    assert whole != browser.execute_script(blank)
    smaller, greater, every = browser.find_elements("css selector", "figure.timeline button")[:3]
    greater.click()
    closer = browser.execute_script(picture)
    assert closer != whole
    every.click()
    assert browser.execute_script(picture) == whole
    greater.click()
    smaller.click()
    assert browser.execute_script(picture) == whole
    assert browser.get_log("browser") == []


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of 100,000 requests; the first runs have timelines."""
    folder = tmp_path_factory.mktemp("large")
    model = {"name": "constant", "seconds_per_step": 0.02}
    config = {
        "model": BASE["config"]["model"],
        "engine": {"max_num_seqs": 256, "max_model_len": 192},
        "executor": {"name": "sim", "cost_model": model},
    }
    workload = {
        **BASE["workload"], "num_requests": 5000, "prompt": 16,
        "output": {"distribution": "lognormal", "mean": 8, "sigma": 1.0, "high": 60},
    }  # fmt: skip
    changes: dict[str, Any] = {
        "config": config, "workload": workload, "repeats": 10, "aa": False, "capacity": 1450.0,
        "loads": [0.9], "decisions": str(folder / "logs"), "report": str(folder / "result.html"),
        "processes": "auto",
    }  # fmt: skip
    assert main(["compare", str(write(folder, **changes))]) == 0
    return folder / "result.html"


@pytest.mark.slow
class TestManyRequests:
    def test_the_file_stays_small_and_says_what_is_drawn(self, large: Path) -> None:
        assert large.stat().st_size < 1_000_000
        text = large.read_text(encoding="utf-8")
        assert text.count("The first 2,000 of 5,000 requests and the first") == 2

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("width", [390, 1100])
    def test_it_opens_in_seconds_and_nothing_leaves_the_page(
        self, browser: Any, large: Path, scheme: str, width: int
    ) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        browser.set_page_load_timeout(10)
        browser.get(large.as_uri())
        assert browser.get_log("browser") == []
        widths = browser.execute_script(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert widths[0] <= widths[1] <= width
        back = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(255, 255, 255)") == (scheme == "light")
        right_edges = browser.execute_script(
            "return [...document.querySelectorAll('figure svg, canvas, #verdicts td')].map("
            " one => one.getBoundingClientRect().right)"
        )
        assert len(right_edges) > 6
        assert max(right_edges) <= width
