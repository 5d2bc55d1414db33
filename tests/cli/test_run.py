"""`nanofw run` as processes: inputs, results, exit codes, signals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

COMMAND = "import sys; from nanofw.cli.main import main; sys.exit(main())"
WITHOUT_TORCH = (
    "import sys; sys.modules.update(dict.fromkeys(['torch', 'triton', 'transformers'])); "
)
TIMEOUT_S = 60


def start(folder: Path, *arguments: str, prefix: str = "", **options: Any) -> subprocess.Popen[Any]:
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(
        [sys.executable, "-c", prefix + COMMAND, "run", *arguments], cwd=folder, **streams
    )


def nanofw_run(
    folder: Path, *arguments: str, stdin: bytes = b"", prefix: str = ""
) -> tuple[int, str, str]:
    process = start(folder, *arguments, prefix=prefix, stdin=subprocess.PIPE)
    output, errors = process.communicate(stdin, timeout=TIMEOUT_S)
    return process.returncode, output.decode(), errors.decode()


def write_lines(path: Path, lines: Sequence[Any]) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def read_results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_prompts_of_the_configuration_give_readable_text(tmp_path: Path) -> None:
    code, output, errors = nanofw_run(tmp_path, "sim", "sampling.max_tokens=4")
    assert code == 0
    assert output.startswith("And it came to pass in those days, that")
    assert "requests    4: 4 length" in errors
    for word in ("throughput", "TTFT", "E2E", "prefix hits", "preemptions", "virtual s"):
        assert word in errors


def test_jsonl_in_jsonl_out_in_input_order(tmp_path: Path) -> None:
    """Later requests end before earlier ones; every line of input has one of output."""
    lines = [
        {"prompt": f"number {index}", "id": f"n{index}", "max_tokens": 40 - index}
        for index in range(20)
    ]
    write_lines(tmp_path / "prompts.jsonl", lines)
    code, output, _ = nanofw_run(
        tmp_path, "sim", "input.file=prompts.jsonl", "output.file=out/results.jsonl"
    )
    assert (code, output) == (0, "")
    results = read_results(tmp_path / "out" / "results.jsonl")
    assert [result["id"] for result in results] == [line["id"] for line in lines]
    assert [result["num_output_tokens"] for result in results] == list(range(40, 20, -1))
    for result in results:
        assert len(result["token_ids"]) == result["num_output_tokens"]
        assert 0 <= result["queue_s"] <= result["ttft_s"] <= result["e2e_s"]
        assert result["text"]


def test_a_bad_line_is_refused_alone_with_file_and_line(tmp_path: Path) -> None:
    lines = [
        {"prompt": "good"},
        '{"prompt": ',
        {"promt": "near"},
        {"prompt": ""},
        {"prompt_token_ids": [99999]},
        {"prompt": "x", "temperature": -1},
        {"prompt_token_ids": [1, 2, 3], "max_tokens": 2},
    ]
    write_lines(tmp_path / "p.jsonl", lines)
    code, output, errors = nanofw_run(tmp_path, "sim", "input.file=p.jsonl", "output.file=-")
    assert code == 1, errors
    results = [json.loads(line) for line in output.splitlines()]
    reasons = [result["finish_reason"] for result in results]
    assert reasons == ["length", *["refused"] * 5, "length"]
    for number, words in enumerate(
        ["not JSON", "did you mean 'prompt'", "empty", "99999", "temperature is -1"], start=2
    ):
        assert f"p.jsonl:{number}: " in results[number - 1]["error"]
        assert words in results[number - 1]["error"]
        assert f"p.jsonl:{number}: " in errors


def test_messages_client_priority_and_stop(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    folder = tmp_path / "model"
    folder.mkdir()
    import nanofw

    demo = Path(nanofw.__file__).parent / "models" / "embedded" / "demo"
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((demo / name).read_bytes())
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    messages = [{"role": "user", "content": "And it came to pass"}]
    lines = [
        {"messages": messages, "client": "a", "priority": 3, "deadline": 5},
        {"messages": [{"content": "no role"}]},
        {"prompt": "And it came to pass", "stop": ["e"], "max_tokens": 500},
    ]
    write_lines(tmp_path / "p.jsonl", lines)
    code, output, errors = nanofw_run(
        tmp_path, "sim", "model.path=./model", "input.file=p.jsonl", "output.file=-"
    )
    first, second, third = (json.loads(line) for line in output.splitlines())
    assert code == 1, errors
    assert first["prompt"] == "And it came to pass"
    assert "role" in second["error"]
    assert (third["finish_reason"], third["stop_reason"]) == ("stop", "e")
    assert "e" not in third["text"]


def test_standard_input(tmp_path: Path) -> None:
    code, output, _ = nanofw_run(
        tmp_path, "sim", "input.file=-", "output.file=-", stdin=b"one\ntwo\n"
    )
    assert code == 0
    assert [json.loads(line)["prompt"] for line in output.splitlines()] == ["one", "two"]


def test_a_simulated_run_with_text_needs_no_torch(tmp_path: Path) -> None:
    code, output, errors = nanofw_run(
        tmp_path, "sim", "sampling.max_tokens=4", prefix=WITHOUT_TORCH
    )
    assert code == 0, errors
    assert output


def test_a_workload_that_was_cut_says_so(tmp_path: Path) -> None:
    workload = "{name: fixed, requests: [{prompt_tokens: 9000, output_tokens: 4}]}"
    code, _, errors = nanofw_run(tmp_path, "sim", f"input.workload={workload}", "output.file=-")
    assert code == 0
    assert "note: 1 of 1 prompts were cut to max_model_len 2048" in errors


@pytest.mark.parametrize(
    "workload", ["name: poisson, num_requests: 100", "name: closed_loop", "name: conversations"]
)
def test_generated_traffic(tmp_path: Path, workload: str) -> None:
    code, output, errors = nanofw_run(
        tmp_path, "sim", f"input.workload={{{workload}}}", "output.file=-"
    )
    assert code == 0, errors
    results = [json.loads(line) for line in output.splitlines()]
    assert [result["index"] for result in results] == list(range(len(results)))
    assert len(results) >= 100
    assert all(result["finish_reason"] == "length" for result in results)
    assert all(0 <= result["queue_s"] <= result["ttft_s"] for result in results)
    assert f"requests    {len(results)}: " in errors


def test_an_interrupt_is_heard_between_arrivals(tmp_path: Path) -> None:
    """In real time, with the next request an hour away."""
    options = ("input.workload={name: poisson, num_requests: 2, rate: 0.0001}", "output.file=-")
    process = start(tmp_path, "qwen3-demo", *options, "output.steps=steps.jsonl")
    deadline = time.monotonic() + TIMEOUT_S
    while not (tmp_path / "steps.jsonl").exists():
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert b"interrupted: " in errors


def test_two_runs_are_equal(tmp_path: Path) -> None:
    arguments = ("sim", "output.file=-", "sampling.max_tokens=8")
    assert nanofw_run(tmp_path, *arguments)[1] == nanofw_run(tmp_path, *arguments)[1]


def test_steps_and_token_times(tmp_path: Path) -> None:
    code, output, _ = nanofw_run(
        tmp_path,
        "sim",
        "output.file=-",
        "output.steps=steps.jsonl",
        "output.token_times=true",
        "sampling.max_tokens=5",
    )
    assert code == 0
    results = [json.loads(line) for line in output.splitlines()]
    assert all(len(result["itl_s"]) == 4 for result in results)
    steps = read_results(tmp_path / "steps.jsonl")
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert sum(step["num_decode_tokens"] for step in steps) == 4 * 4
    assert sum(step["num_prefill_tokens"] for step in steps) == sum(
        result["num_prompt_tokens"] for result in results
    )
    assert all(step["planned"] <= step["committed"] for step in steps)


def test_logging_is_turned_up_for_one_module(tmp_path: Path) -> None:
    quiet = nanofw_run(tmp_path, "sim", "sampling.max_tokens=3")[2]
    assert "step 1" not in quiet
    loud = nanofw_run(
        tmp_path,
        "sim",
        "sampling.max_tokens=3",
        "logging.modules={nanofw.llm.session: debug}",
    )[2]
    assert "DEBUG nanofw.llm.session: step 1: 0 prefill and 4 decode tokens" in loud
    assert "length after 3 tokens" in loud
    assert all("nanofw.llm.session" in line for line in loud.splitlines() if "DEBUG" in line)


def test_what_was_written_is_said(tmp_path: Path) -> None:
    code, output, errors = nanofw_run(
        tmp_path, "sim", "output.file=results.jsonl", "output.steps=steps.jsonl"
    )
    assert (code, output) == (0, "")
    results, steps = tmp_path / "results.jsonl", tmp_path / "steps.jsonl"
    assert f"\nwritten     results in {results}, steps in {steps}\n" in errors


def test_texts_of_generated_traffic_are_not_shown(tmp_path: Path) -> None:
    code, output, errors = nanofw_run(
        tmp_path, "sim", "input.workload={name: poisson, num_requests: 3}"
    )
    assert (code, output) == (0, "")
    assert errors.startswith("requests    3: 3 length\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.yaml"], "no such file"),
        (["sim", "engine.max_num_seq=3"], "did you mean 'max_num_seqs'"),
        (["sim", "input.file=none.jsonl"], "cannot read"),
        (["sim", "input.prompts=[]"], "no prompts"),
        (["sim", "scheduler.name=fcsf"], "fcfs"),
        (["sim", "more"], "one configuration at most"),
        (["sim", "--model", "x"], "no option --model; settings are written key=value"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_exit_code_2(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    code, output, errors = nanofw_run(tmp_path, *arguments)
    assert (code, output) == (2, "")
    assert words in errors
    assert "Traceback" not in errors


FAILING_POLICY = '''
"""A policy that breaks down in the middle of a run."""
from nanofw.plugins import Plugin, Policy, hookimpl


class Fragile(Policy):
    finished = 0

    def key(self, request, view):
        return request.arrival

    def on_finish(self, request, reason, view):
        self.finished += 1

    def on_progress(self, *arrays):
        if self.finished >= 3:
            raise RuntimeError("the policy fell asleep")


@hookimpl
def scheduler():
    return Plugin("fragile", ":Fragile", api="scheduler/2")
'''


def test_results_never_overwrite_their_prompts(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", [{"prompt": "x"}])
    code, _, errors = nanofw_run(tmp_path, "sim", "input.file=p.jsonl", "output.file=./p.jsonl")
    assert code == 2
    assert "overwrite" in errors
    assert read_results(path) == [{"prompt": "x"}]


def test_a_run_that_never_begins_leaves_earlier_results(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "results.jsonl", [{"id": "earlier"}])
    arguments = ["sim", "output.file=results.jsonl", "input.prompts=[x]"]
    assert nanofw_run(tmp_path, *arguments, "scheduler.name=fcsf")[0] == 2
    assert read_results(path) == [{"id": "earlier"}]
    assert nanofw_run(tmp_path, *arguments)[0] == 0
    assert [line["index"] for line in read_results(path)] == [0]


def test_a_failing_engine_is_exit_code_3_and_keeps_what_was_finished(tmp_path: Path) -> None:
    (tmp_path / "fragile.py").write_text(FAILING_POLICY, encoding="utf-8")
    lines = [{"prompt": "x", "max_tokens": 5 + 30 * (index % 2)} for index in range(8)]
    write_lines(tmp_path / "p.jsonl", lines)
    code, _, errors = nanofw_run(
        tmp_path,
        "sim",
        "plugins.load=[./fragile.py]",
        "scheduler.name=fragile",
        "input.file=p.jsonl",
        "output.file=results.jsonl",
    )
    assert code == 3, errors
    assert "the policy fell asleep" in errors
    results = read_results(tmp_path / "results.jsonl")
    assert [result["index"] for result in results] == list(range(8))
    assert [result["finish_reason"] for result in results] == ["length", "error"] * 4
    assert all("the policy fell asleep" in result["error"] for result in results[1::2])


def test_an_interrupted_run_counts_the_tokens_of_requests_that_had_not_ended(
    tmp_path: Path,
) -> None:
    """None ends in time; 16 run at once, a token each per step of 10 virtual ms."""
    write_lines(tmp_path / "p.jsonl", [{"prompt": "endless", "max_tokens": 1900}] * 1000)
    model = "executor.cost_model={name: constant, seconds_per_step: 0.01, seconds_per_token: 0}"
    process = start(
        tmp_path, "sim", model, "engine.max_num_seqs=16", "input.file=p.jsonl",
        "output.steps=steps.jsonl", "output.file=results.jsonl",
    )  # fmt: skip
    deadline = time.monotonic() + TIMEOUT_S
    steps = tmp_path / "steps.jsonl"
    while not (steps.exists() and steps.stat().st_size > 10_000):
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    found = re.search(rb" 0 requests/s, .*output ([\d,]+) tokens/s", errors)
    assert found is not None, errors.decode()
    assert int(found[1].replace(b",", b"")) == pytest.approx(1600, rel=0.1)


def test_who_reads_the_texts_is_told_once_why_a_policy_failed(tmp_path: Path) -> None:
    (tmp_path / "fragile.py").write_text(FAILING_POLICY, encoding="utf-8")
    prompts = "input.prompts=[" + ",".join(["x"] * 8) + "]"
    words = ("sim", "plugins.load=[./fragile.py]", prompts, "sampling.max_tokens=5")
    words = (*words, "engine.max_num_seqs=1", "engine.overlap=false")
    code, output, errors = nanofw_run(tmp_path, *words, "scheduler.name=fragile")
    assert code == 3
    assert output.count("[error: the run could not go on]") == 5
    assert (output + errors).count("the policy fell asleep") == 1
    assert "nanofw: scheduler 'fragile' of " in errors
    assert "fragile.py: on_progress() raised RuntimeError" in errors


def test_who_reads_the_texts_is_told_once_why_a_request_was_refused(tmp_path: Path) -> None:
    code, output, errors = nanofw_run(tmp_path, "sim", 'input.prompts=["", "x"]')
    assert code == 1
    assert "[refused: input.prompts[0]: " in output
    assert "refused: input" not in errors
    code, _, errors = nanofw_run(tmp_path, "sim", 'input.prompts=["", "x"]', "output.file=-")
    assert code == 1
    assert "refused: input.prompts[0]: " in errors


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_keeps_what_is_finished(
    tmp_path: Path, number: signal.Signals, expected: int
) -> None:
    """The first request never ends in time, those behind it do: nothing of them is lost."""
    lines = [{"prompt": "endless", "max_tokens": 1900}]
    lines += [{"prompt": "short", "max_tokens": 20} for _ in range(50)]
    lines += [{"prompt": "endless", "max_tokens": 1900} for _ in range(1000)]
    write_lines(tmp_path / "p.jsonl", lines)
    process = start(tmp_path, "sim", "input.file=p.jsonl", "output.file=results.jsonl")
    pending = tmp_path / "results.jsonl.pending"
    deadline = time.monotonic() + TIMEOUT_S
    while not (pending.exists() and len(pending.read_text("utf-8").splitlines()) > 30):
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < deadline, "nothing was finished in time"
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == expected
    assert b"interrupted: " in errors
    assert b"Traceback" not in errors
    results = read_results(tmp_path / "results.jsonl")
    assert [result["index"] for result in results] == sorted({r["index"] for r in results})
    assert len(results) > 30
    assert all(result["finish_reason"] == "length" for result in results)
    assert not pending.exists()


def test_what_waited_for_its_turn_survives_a_kill(tmp_path: Path) -> None:
    lines = [{"prompt": "endless", "max_tokens": 1900}]
    lines += [{"prompt": "short", "max_tokens": 20} for _ in range(10)]
    lines += [{"prompt": "endless", "max_tokens": 1900} for _ in range(1000)]
    write_lines(tmp_path / "p.jsonl", lines)
    process = start(tmp_path, "sim", "input.file=p.jsonl", "output.file=results.jsonl")
    pending = tmp_path / "results.jsonl.pending"
    deadline = time.monotonic() + TIMEOUT_S
    while not (pending.exists() and len(pending.read_text("utf-8").splitlines()) >= 10):
        assert time.monotonic() < deadline, "nothing was finished in time"
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
    assert {result["index"] for result in read_results(pending)[:10]} == set(range(1, 11))


def test_on_a_terminal_text_comes_live_and_the_bar_stays_away(tmp_path: Path) -> None:
    code, shown = on_terminal(tmp_path, "stdout", "sim", "sampling.max_tokens=6")
    assert code == 0
    assert "\033[1mIn the beginning\033[0m" in shown
    assert "tok/s" not in shown


def test_the_progress_bar_is_for_a_terminal_on_standard_error(tmp_path: Path) -> None:
    code, shown = on_terminal(tmp_path, "stderr", "sim", "output.file=results.jsonl")
    assert code == 0
    assert "prefill" in shown
    assert "decode" in shown
    assert "4/4" in shown
    _, _, errors = nanofw_run(tmp_path, "sim", "output.file=results.jsonl")
    assert "tok/s" not in errors


def test_a_run_into_a_file_shows_its_progress_on_a_terminal(tmp_path: Path) -> None:
    code, shown = on_terminal(tmp_path, "stdout stderr", "sim", "output.file=results.jsonl")
    assert code == 0
    assert "4/4" in shown


def test_a_flood_of_refusals_is_told_briefly(tmp_path: Path) -> None:
    write_lines(tmp_path / "p.jsonl", ["{"] * 200)
    code, output, errors = nanofw_run(tmp_path, "sim", "input.file=p.jsonl", "output.file=-")
    assert code == 1
    assert len(output.splitlines()) == 200
    assert errors.count("refused: p.jsonl:") == 10
    assert "requests    200: 200 refused" in errors


def on_terminal(folder: Path, streams: str, *arguments: str) -> tuple[int, str]:
    """Exit code and what a terminal in place of some streams shows."""
    ours, theirs = pty.openpty()
    replaced: dict[str, Any] = dict.fromkeys(streams.split(), theirs)
    process = start(folder, *arguments, **replaced)
    os.close(theirs)
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end was closed
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    process.communicate(timeout=TIMEOUT_S)
    return process.returncode, b"".join(parts).decode()


# -- files that must not be lost ----------------------------------------------------------------


@pytest.mark.parametrize("key", ["output.file", "output.steps"])
@pytest.mark.parametrize("other", ["prompts.jsonl", "sub/../prompts.jsonl", "link.jsonl"])
def test_no_output_overwrites_the_prompts(tmp_path: Path, key: str, other: str) -> None:
    (tmp_path / "sub").mkdir()
    path = write_lines(tmp_path / "prompts.jsonl", [{"prompt": "a"}])
    before = path.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(path)
    code, _, errors = nanofw_run(tmp_path, "sim", "input.file=prompts.jsonl", f"{key}={other}")
    assert code == 2
    assert f"{key}: would overwrite the prompts" in errors
    assert path.read_bytes() == before


def test_no_output_overwrites_the_configuration_or_another_output(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("base: sim\n", encoding="utf-8")
    code, _, errors = nanofw_run(tmp_path, "run.yaml", "output.file=run.yaml")
    assert (code, path.read_text(encoding="utf-8")) == (2, "base: sim\n")
    assert "would overwrite the configuration" in errors
    code, _, errors = nanofw_run(tmp_path, "sim", "output.file=o.jsonl", "output.steps=o.jsonl")
    assert code == 2
    assert "output.steps: would overwrite output.file" in errors


def test_what_waits_is_kept_in_no_file_that_the_run_reads(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "o.jsonl.pending", [{"prompt": "a"}])
    code, _, errors = nanofw_run(
        tmp_path, "sim", "input.file=o.jsonl.pending", "output.file=o.jsonl"
    )
    assert code == 2
    assert "output.file: its o.jsonl.pending would overwrite the prompts" in errors
    assert read_results(path) == [{"prompt": "a"}]
    code, _, errors = nanofw_run(
        tmp_path, "sim", "output.file=o.jsonl", "output.steps=o.jsonl.pending"
    )
    assert code == 2
    assert "output.steps: would overwrite the pending results of output.file" in errors


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-16"])
def test_an_output_that_cannot_show_every_letter_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    prompts = ['input.prompts=["k\u016f\u0148 \U0001f600"]', "sampling.max_tokens=2"]
    for output in ([], ["output.file=-"]):
        process = start(tmp_path, "sim", *prompts, *output)
        shown, errors = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, errors
        if output:
            assert json.loads(shown.decode(encoding))["prompt"] == "k\u016f\u0148 \U0001f600"


def test_ids_that_are_given_leave_those_of_the_input_alone(tmp_path: Path) -> None:
    lines = [
        {"prompt": "a"}, {"prompt": "b", "id": "request-0"}, {"prompt": "c", "id": "request-2"},
        {"prompt": "d"}, {"prompt": "e", "id": 7}, "{",
    ]  # fmt: skip
    write_lines(tmp_path / "p.jsonl", lines)
    arguments = ["input.file=p.jsonl", "output.file=o.jsonl", "sampling.max_tokens=2"]
    assert nanofw_run(tmp_path, "sim", *arguments)[0] == 1  # the last line
    found = read_results(tmp_path / "o.jsonl")
    assert [result["finish_reason"] for result in found] == ["length"] * 5 + ["refused"]
    assert [result["id"] for result in found][1:5] == ["request-0", "request-2", "request-3", "7"]
    assert len({result["id"] for result in found}) == len(lines)


def test_results_of_an_earlier_run_survive_one_that_cannot_start(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    path.write_text("precious, and longer than a result\n" * 100, encoding="utf-8")
    code, _, _ = nanofw_run(tmp_path, "sim", "output.file=o.jsonl", "model.path=shape:nope")
    assert code == 3
    assert path.read_text(encoding="utf-8").startswith("precious")
    code, _, _ = nanofw_run(tmp_path, "sim", "output.file=o.jsonl", "sampling.max_tokens=2")
    assert code == 0
    assert len(read_results(path)) == 4


def test_a_full_disk_is_one_message(tmp_path: Path) -> None:
    code, _, errors = nanofw_run(tmp_path, "sim", "output.file=/dev/full", "sampling.max_tokens=2")
    assert code == 3
    assert "output.file: cannot write /dev/full: No space left on device" in errors
    assert "Traceback" not in errors
    code, output, errors = nanofw_run(
        tmp_path, "sim", "output.steps=/dev/full", "sampling.max_tokens=2"
    )
    assert code == 0
    assert "In the beginning" in output
    assert "output.steps: cannot write /dev/full" in errors


def test_half_a_surrogate_pair_is_refused_alone(tmp_path: Path) -> None:
    lines = ['{"prompt": "\\ud800"}', '{"prompt": "\\ud83d\\ude00"}', '{"prompt": "a"}']
    write_lines(tmp_path / "p.jsonl", lines)
    code, _, errors = nanofw_run(
        tmp_path, "sim", "input.file=p.jsonl", "output.file=o.jsonl", "sampling.max_tokens=2"
    )
    assert code == 1
    assert "p.jsonl:1: half of a surrogate pair" in errors
    reasons = [result["finish_reason"] for result in read_results(tmp_path / "o.jsonl")]
    assert reasons == ["refused", "length", "length"]


@pytest.mark.parametrize("arguments", [["--help"], ["config", "show", "sim"], ["run", "sim"]])
def test_nobody_who_takes_the_output_is_no_traceback(tmp_path: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-c", COMMAND, *arguments]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, timeout=TIMEOUT_S
        )
    assert done.returncode == 3
    assert b"nanofw: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
