"""Results leave in the order of the input, and none is lost."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest

from nanofw.cli.files import PENDING_SUFFIX
from nanofw.cli.outputs import JsonlFile, JsonlStream, PlainText
from nanofw.contracts.requests import FinishReason
from nanofw.errors import ConfigError
from nanofw.llm.results import Completion, RequestResult, refused


def result(name: str, text: str = "text") -> RequestResult:
    completion = Completion(text=text, token_ids=(1, 2), finish_reason=FinishReason.LENGTH)
    return RequestResult(request_id=name, prompt=f"prompt {name} ", outputs=[completion])


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_results_are_written_in_input_order_as_soon_as_possible(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.jsonl"
    output = JsonlFile(path)
    output.put_result(0, result("a"))
    assert [line["id"] for line in lines(path)] == ["a"]
    output.put_result(2, result("c"))
    assert [line["id"] for line in lines(path)] == ["a"]
    output.put_result(1, result("b"))
    assert [line["id"] for line in lines(path)] == ["a", "b", "c"]
    output.close()
    assert [line["index"] for line in lines(path)] == [0, 1, 2]
    assert list(path.parent.iterdir()) == [path]


def test_what_waits_for_an_earlier_result_is_on_disk_too(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    pending = tmp_path / f"results.jsonl{PENDING_SUFFIX}"
    output = JsonlFile(path)
    output.put_result(3, result("d"))
    output.put_result(1, result("b"))
    assert [line["id"] for line in lines(pending)] == ["d", "b"]
    output.close()
    assert [line["id"] for line in lines(path)] == ["b", "d"]
    assert not pending.exists()
    output.close()


def test_any_order_of_ends_gives_the_order_of_the_input(tmp_path: Path) -> None:
    for seed in range(20):
        tickets = list(range(30))
        random.Random(seed).shuffle(tickets)
        output = JsonlFile(tmp_path / "results.jsonl")
        output.start_run()  # results of the last round go
        for ticket in tickets:
            output.put_result(ticket, result(str(ticket)))
        output.close()
        written = lines(tmp_path / "results.jsonl")
        assert [line["id"] for line in written] == [str(ticket) for ticket in range(30)]


def test_a_refused_request_has_a_line_with_its_error() -> None:
    file = io.StringIO()
    JsonlStream(file).put_result(0, refused("x", "the prompt is empty"))
    record = json.loads(file.getvalue())
    assert record["finish_reason"] == "refused"
    assert record["error"] == "the prompt is empty"
    assert record["token_ids"] == []
    assert record["ttft_s"] is None


def test_a_file_that_cannot_be_written_names_its_key(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").mkdir()
    with pytest.raises(ConfigError, match="output.file: cannot write"):
        JsonlFile(tmp_path / "results.jsonl")


def test_plain_text_is_prompt_and_continuation() -> None:
    file = io.StringIO()
    output = PlainText(file, live=False)
    output.add_prompt(0, "prompt a ")
    output.add_prompt(1, "prompt b ")
    output.put_result(1, result("b"))
    output.put_result(0, result("a", "first"))
    output.put_result(2, refused("c", "why"))
    output.close()
    assert file.getvalue() == "prompt a first\n\nprompt b text\n\n [refused: why]\n\n"


def test_a_terminal_shows_the_text_of_whose_turn_it_is() -> None:
    file = io.StringIO()
    output = PlainText(file, live=True)
    output.add_prompt(0, "A:")
    output.add_prompt(1, "B:")
    output.show_text(1, "late ")
    output.show_text(0, "one ")
    shown = file.getvalue()
    assert "A:" in shown
    assert shown.endswith("one ")
    assert "late" not in shown
    output.show_text(0, "two")
    output.put_result(0, result("a", "one two"))
    assert file.getvalue().endswith("B:\033[0mlate ")
    output.show_text(1, "end")
    output.put_result(1, result("b", "late end"))
    output.close()
    assert file.getvalue().count("one two") == 1
    assert file.getvalue().count("late end") == 1
