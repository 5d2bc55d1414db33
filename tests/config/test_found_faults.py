"""Faults that people found in configurations, by their ids."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanofw.assembly import check, select
from nanofw.cli.inputs import MAX_LINE_BYTES, file_prompts
from nanofw.cli.main import main
from nanofw.config import document
from nanofw.config.layers import defaults, file_layers
from nanofw.config.load import load_config, resolve
from nanofw.config.source import ConfigLayer
from nanofw.errors import ConfigError
from nanofw.workloads import trace

Write = Callable[[str, str], Path]


class Counted(dict[Any, Any]):
    """Places of values, which counts how often all of them are gone through."""

    num_scans = 0

    def __iter__(self) -> Any:
        self.num_scans += 1
        return super().__iter__()

    def items(self) -> Any:
        self.num_scans += 1
        return super().items()


def test_F045_merging_takes_no_more_than_its_values(write: Write) -> None:
    """A layer's places are not searched for each of its values."""
    num = 4000
    body = "sampling:\n  logit_bias:\n" + "".join(f'    "{i}": 1\n' for i in range(num))
    write("low.yaml", body)
    file = write("run.yaml", "base: low.yaml\n" + body.replace(": 1\n", ": 2\n"))
    layers = [
        ConfigLayer(layer.name, layer.data, Counted(layer.sources))
        for layer in [defaults(), *file_layers(file)]
    ]
    counted: list[Any] = [layer.sources for layer in layers]
    loaded = resolve(layers)
    assert loaded.config.sampling.logit_bias == dict.fromkeys(range(num), 2)
    assert str(loaded.values.source(("sampling", "logit_bias", "7"))).endswith("run.yaml:11")
    assert all(sources.num_scans < 10 for sources in counted)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("logging:\n  modules:\n" + "".join(f"    m{i}: debug\n" for i in range(2000)), "1000"),
        ("a: [" + "1," * 120_000 + "]", "more than 100,000 values"),
        ("a: '" + "x" * (5 << 20) + "'", "larger than 4,194,304 bytes"),
        ("engine: {seed: " + "1" * 401 + "}", "it has 401 characters, and at most 400 are read"),
        ("engine: {seed: -" + "9" * 5000 + "}", "at most 400 are read"),
        ("a: " + "[" * 3000, "nested too deeply"),
        ("a: &a {k: 1}\nb: &b {<<: [*a, *a]}\n" + "".join(
            f"c{i}: &c{i} {{<<: [{', '.join([f'*c{i - 1}' if i else '*b'] * 300)}], x{i}: 1}}\n"
            for i in range(300)), "100,000 values"),
    ],
    ids=["keys", "values", "bytes", "digits", "more-digits", "depth", "merge-keys"],
)  # fmt: skip
def test_F045_a_file_has_bounds(write: Write, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write("run.yaml", text))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 3000
    assert "run.yaml" in str(caught.value)


@pytest.mark.parametrize(
    "last", ["${input.prompts[0]}${input.prompts[0]}", "[X, X]", "{a: X, b: X}"]
)
def test_F045_references_multiply_within_bounds(write: Write, last: str) -> None:
    def reference(i: int) -> str:
        text = last.replace("${input.prompts[0]}", f"${{input.workload.k{i}}}")
        return text.replace("X", f"'${{input.workload.k{i}}}'")

    lines = "".join(f"    k{i}: {reference(i + 1)}\n" for i in range(40))
    text = f"input:\n  workload:\n    name: poisson\n{lines}    k40: {'x' * 100}\n"
    with pytest.raises(ConfigError, match="references multiply to more than") as caught:
        load_config(write("run.yaml", text))
    assert str(caught.value.key).startswith("input.workload.k")


def test_F045_references_in_a_circle_or_a_long_chain_are_told(write: Write) -> None:
    with pytest.raises(ConfigError, match="refers to itself: 'engine.chunk_tokens -> engine.seed"):
        load_config(
            write("a.yaml", "engine: {seed: '${.chunk_tokens}', chunk_tokens: '${engine.seed}'}")
        )
    lines = "".join(f"    k{i}: '${{.k{i + 1}}}'\n" for i in range(2000))
    text = f"input:\n  workload:\n    name: poisson\n{lines}    k2000: 1\n"
    with pytest.raises(ConfigError, match="references lead to each other"):
        load_config(write("b.yaml", text))


def test_F045_bases_multiply_within_bounds(write: Write) -> None:
    for i in range(40):
        write(f"b{i}.yaml", f"base: [b{i + 1}.yaml, b{i + 1}.yaml]\n")
    write("b40.yaml", "engine: {seed: 1}\n")
    with pytest.raises(ConfigError, match="more than 100 files are merged"):
        load_config(write("run.yaml", "base: b0.yaml\n"))


def test_F045_a_file_without_an_end_is_refused(write: Write, tmp_path: Path) -> None:
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(ConfigError, match="larger than"):
        load_config(tmp_path / "zero.yaml")
    for base in ("zero.yaml", "loop.yaml"):
        with pytest.raises(ConfigError) as caught:
            load_config(write("run.yaml", f"\nbase: {base}\n"))
        assert caught.value.key == "base"
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "loop.yaml")


def test_F045_a_pipe_that_nobody_writes_to_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "WAIT_S", 0.1)
    os.mkfifo(tmp_path / "run.yaml")
    with pytest.raises(ConfigError, match="nothing was written to the pipe"):
        load_config(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("engine.seed=" + "1" * 401, "it has 401 characters"),
        ("a" + ".a" * 5000 + "=1", "the key has 5,001 parts; 60 levels are read"),
        ("engine.seed=" + "[" * 5000, "nested too deeply"),
        ("model.path=a\0b", "the character U+0000"),
        ('model.path="a\\0b"', "cannot contain the character U+0000"),
        ('input.file="a\\0b"', "cannot contain the character U+0000"),
        ('output.file="a\\0b"', "cannot contain the character U+0000"),
        ('plugins.load=["a\\0b"]', "cannot contain the character U+0000"),
        ("model.path=caf\udce9", "the character U+DCE9"),
        ("scheduler.name=" + "x" * 100_000, "no scheduler"),
        ("x" * 100_000 + "=1", "no such key"),
    ],
    ids=lambda text: text[:20].replace("\0", "0").encode("ascii", "replace").decode(),
)  # fmt: skip
def test_F045_the_command_line_has_bounds(pair: str, message: str) -> None:
    with pytest.raises(Exception) as caught:
        check(load_config("sim", [pair]))
    assert type(caught.value).__module__ == "nanofw.errors"
    assert message in str(caught.value)
    assert len(str(caught.value)) < 3000


def test_F045_values_from_python_have_bounds() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = {"a": deep}
    for values, message in [
        (deep, "nested too deeply"),
        ({"model": {"path": "a\ud800"}}, "not text in UTF-8"),
        ({"engine": {"seed": 10**5000}}, "not plain data"),
        ({"input": {"prompts": [0] * 200_000}}, "more than 100,000 values"),
    ]:
        with pytest.raises(ConfigError, match=message):
            load_config(values=values)


class Endless(io.RawIOBase):
    """A stream without an end, in lines of some length."""

    def __init__(self, line: bytes) -> None:
        self.line = line

    def readline(self, size: int | None = -1, /) -> bytes:
        return self.line[:size] if size is not None and size >= 0 else self.line


@pytest.mark.parametrize(
    ("line", "message"),
    [(b"\0" * (MAX_LINE_BYTES + 5), "the line is longer"), (b"y\n", "more than 1,000,000 lines"),
     (b"x" * (1 << 24), "the prompts are longer than")],
    ids=["line", "lines", "bytes"],
)  # fmt: skip
def test_F045_an_input_without_an_end_is_refused(
    line: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = type("Stdin", (), {"buffer": Endless(line)})
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(ConfigError, match=message) as caught:
        for _ in file_prompts("-", "text"):
            pass
    assert caught.value.key == "input.file"


@pytest.mark.parametrize("bound", ["MAX_ROWS", "MAX_CHARACTERS", "MAX_LINE"])
@pytest.mark.parametrize("line", ['{"prompt_tokens": 1, "output_tokens": 1}\n', "\n", "x"])
def test_F045_a_trace_without_an_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, line: str
) -> None:
    for name, value in (("MAX_ROWS", 2000), ("MAX_CHARACTERS", 1 << 20), ("MAX_LINE", 1 << 19)):
        monkeypatch.setattr(trace, name, value if name == bound else 1 << 22)
    pipe = tmp_path / "trace.jsonl"
    os.mkfifo(pipe)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), pipe.open("w", encoding="utf-8") as file:
            while True:
                file.write(line * 1000)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(ConfigError, match="the trace has more than|longer than"):
            trace.read_trace(pipe, "nanofw")
    finally:
        writer.join()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("sampling: {\n stop: ['']}", "sampling.stop[0]"),
        ("sampling: {\n stop: ''}", "sampling.stop"),
        ("sampling: {\n stop: [a, '']}", "sampling.stop[1]"),
        ("sampling: {\n bad_words: [[]]}", "sampling.bad_words"),
        ("sampling: {\n bad_words: ['']}", "sampling.bad_words[0]"),
        ("sampling: {\n bad_words: [[-1]]}", "sampling.bad_words"),
        ("output: {\n logprobs: 65}", "output.logprobs"),
        ("engine: {\n device: 'cpu:5'}", "engine.device"),
        ("engine: {\n device: 'auto:1'}", "engine.device"),
        ("engine: {\n device: 'cuda:01'}", "engine.device"),
        ("engine: {\n device: ''}", "engine.device"),
        ("engine: {\n chunk_tokens: 1" + "0" * 30 + "}", "engine.chunk_tokens"),
        ("kv_allocator: {\n num_blocks: 1" + "0" * 30 + "}", "kv_allocator.num_blocks"),
        ("engine: {\n tensor_parallel_size: 1000000}", "engine.tensor_parallel_size"),
        ("model: {\n path: ''}", "model.path"),
        ("model: {\n name: ''}", "model.name"),
        ("scheduler: {\n name: ' '}", "scheduler.name"),
        ("plugins: {\n disable: ['']}", "plugins.disable[0]"),
        ("plugins: {\n override: {scheduler.fcfs: ''}}", "plugins.override.scheduler.fcfs"),
        ("logging: {\n modules: {nanofw.enginee.x: debug}}", "logging.modules.nanofw.enginee.x"),
        ("logging: {\n modules: {no_such_package.x: debug}}", "logging.modules.no_such_package.x"),
        ("logging: {\n modules: {'': debug}}", "logging.modules"),
        ("logging: {\n modules: {'a/b': debug}}", "logging.modules.a/b"),
    ],
    ids=lambda text: text.replace("\n", "")[:40] if "{" in text else "",
)  # fmt: skip
def test_F046_what_means_nothing_is_refused_by_key_and_line(
    write: Write, text: str, key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write("run.yaml", text))
    assert str(caught.value.key).startswith(key)
    assert caught.value.line == 2


@pytest.mark.parametrize(
    "prompt",
    ["{prompt: x, deadline: true}", "{promt: x}", "{}",
     "{prompt: x, prompt_token_ids: [1]}", "{prompt: x, client: 5}"],
)  # fmt: skip
@pytest.mark.parametrize("command", ["run", "validate"])
def test_F046_a_prompt_that_is_not_one_is_refused_by_key_and_line(
    write: Write, prompt: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write("run.yaml", f"base: sim\ninput:\n  prompts:\n  - {prompt}\n")
    words = ["run"] if command == "run" else ["config", "validate"]
    assert main([*words, str(path)]) == 2
    assert f"{path}:4: input.prompts[0]: " in capsys.readouterr().err


LISTS = """
from pathlib import Path
from nanofw.plugins import Options, Plugin, Policy, hookimpl

class Settings(Options):
    tags: list[str] = []
    names: set[str] = set()
    files: list[Path] = []
    by_name: dict[str, Path] = {}
    pair: tuple[Path, int] = (Path("x"), 1)

class Mine(Policy):
    def key(self, request, view):
        return request.arrival

@hookimpl
def scheduler():
    return Plugin("mine", ":Mine", api="scheduler/2", options=Settings)
"""


def test_F053_options_have_the_types_of_their_fields(write: Write, tmp_path: Path) -> None:
    write("mine.py", LISTS)
    file = write(
        "run.yaml",
        """\
        base: sim
        plugins: {load: [mine.py]}
        scheduler:
          name: mine
          tags: [a, b]
          names: [c]
          files: [x, /y]
          by_name: {k: z}
          pair: [q, 2]
        """,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = select(load_config(file)).components["scheduler"].options
    assert options.tags == ["a", "b"]
    assert options.names == {"c"}
    assert options.files == [tmp_path / "x", Path("/y")]
    assert options.by_name == {"k": tmp_path / "z"}
    assert options.pair == (tmp_path / "q", 2)
