from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanofw.config.layers import presets
from nanofw.config.load import LoadedConfig, load_config
from nanofw.config.schema import Config
from nanofw.config.show import as_lines, as_yaml
from nanofw.config.source import dotted
from nanofw.errors import ConfigError

Write = Callable[[str, str], Path]


def dropped(loaded: LoadedConfig) -> list[str]:
    return [dotted(item.path) for item in loaded.dropped]


# -- layers ---------------------------------------------------------------------------------


def test_layers_are_merged_in_order(write: Write) -> None:
    write("low.yaml", "engine: {seed: 1, max_num_seqs: 1, chunk_tokens: 1}")
    write("high.yaml", "engine: {seed: 2, max_num_seqs: 2}")
    file = write("run.yaml", "base: [low.yaml, high.yaml]\nengine: {seed: 3}")
    engine = load_config(file, ["engine.max_partial_prefills=4"]).config.engine
    assert (engine.seed, engine.max_num_seqs, engine.chunk_tokens) == (3, 2, 1)
    assert (engine.max_partial_prefills, engine.max_num_batched_tokens) == (4, 8192)


def test_values_from_python_lie_between_file_and_command_line(write: Write) -> None:
    file = write("run.yaml", "engine: {seed: 1, max_num_seqs: 1}")
    values = {"engine": {"seed": 2, "max_num_seqs": 2}, "output": {"file": Path("x")}}
    config = load_config(file, ["engine.seed=3"], values=values).config
    assert (config.engine.seed, config.engine.max_num_seqs) == (3, 2)
    assert config.output.file == Path.cwd() / "x"


def test_a_list_replaces_a_list(write: Write) -> None:
    write("low.yaml", "input: {prompts: [a, b]}")
    file = write("run.yaml", "base: low.yaml\ninput: {prompts: [c]}")
    assert load_config(file).config.input.prompts == ("c",)


def test_bases_are_relative_to_the_file_that_names_them(write: Write) -> None:
    write("sub/deep.yaml", "engine: {seed: 7}")
    write("sub/middle.yaml", "base: deep.yaml")
    file = write("run.yaml", "base: [sub/middle.yaml, sim]")
    config = load_config(file).config
    assert config.engine.seed == 7
    assert config.executor.name == "sim"


def test_bases_in_a_circle_are_an_error(write: Write) -> None:
    write("a.yaml", "base: b.yaml")
    file = write("b.yaml", "base: a.yaml")
    with pytest.raises(ConfigError, match="circle.*b.yaml.*a.yaml.*b.yaml"):
        load_config(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: qwen3-dem", "no preset 'qwen3-dem'; did you mean 'qwen3-demo'"),
        ("base: ./absent.yaml", "no such file"),
        ("base: [3]", "should be the name of a preset or file"),
    ],
)
def test_a_wrong_base_has_its_place(write: Write, text: str, message: str) -> None:
    file = write("run.yaml", f"engine: {{seed: 1}}\n{text}")
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(file)
    assert caught.value.line == 2


def test_a_model_in_place_of_a_configuration_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    for text in ("embedded:demo", str(tmp_path)):
        with pytest.raises(ConfigError, match=f"names a model.*write model.path={text}"):
            load_config(text)


def test_every_preset_loads() -> None:
    assert "qwen3-demo" in presets()
    for name in presets():
        assert load_config(name).config.model.path is not None


# -- a changed name drops options -----------------------------------------------------------


def test_a_changed_name_drops_the_options_below_and_says_so(write: Write) -> None:
    write("low.yaml", "scheduler: {name: fair_share, weights: {a: 1}, ageing: 0.5}")
    file = write("run.yaml", "base: low.yaml\nscheduler: {name: lottery, tickets: 3}")
    loaded = load_config(file)
    assert loaded.config.scheduler.options == {"tickets": 3}
    assert dropped(loaded) == ["scheduler.weights", "scheduler.ageing"]
    lines = [line for line in as_lines(loaded) if line.startswith("dropped: ")]
    assert "scheduler.ageing = 0.5" in lines[1]
    assert "low.yaml:1" in lines[1]
    assert "changes the name from fair_share to lottery" in lines[1]
    assert "run.yaml:2" in lines[1]


def test_the_same_name_keeps_the_options(write: Write) -> None:
    write("low.yaml", "scheduler: {name: fair_share, ageing: 0.5}")
    file = write("run.yaml", "base: low.yaml\nscheduler: {name: fair_share, share: 2}")
    loaded = load_config(file, ["scheduler.ageing=0.25"])
    assert loaded.config.scheduler.options == {"ageing": 0.25, "share": 2}
    assert not loaded.dropped


@pytest.mark.parametrize("order", list(itertools.permutations(range(2))))
def test_the_order_of_overrides_does_not_matter(write: Write, order: tuple[int, ...]) -> None:
    file = write("run.yaml", "scheduler: {name: fair_share, ageing: 0.5}")
    pairs = ["scheduler.tickets=1", "scheduler.name=lottery"]
    loaded = load_config(file, [pairs[i] for i in order])
    assert loaded.config.scheduler.options == {"tickets": 1}


def test_a_name_given_by_interpolation_is_compared_by_what_it_comes_to(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("low.yaml", "scheduler: {name: fair_share, ageing: 0.5}")
    file = write("run.yaml", "base: low.yaml\nscheduler: {name: '${oc.env:POLICY}'}")
    monkeypatch.setenv("POLICY", "fair_share")
    assert load_config(file).config.scheduler.options == {"ageing": 0.5}
    monkeypatch.setenv("POLICY", "lottery")
    loaded = load_config(file)
    assert loaded.config.scheduler.options == {}
    assert dropped(loaded) == ["scheduler.ageing"]


def test_the_pool_belongs_to_the_engine_and_survives_another_allocator(write: Write) -> None:
    file = write("run.yaml", "kv_allocator: {name: mine, num_blocks: 7, block_size: 4, x: 1}")
    loaded = load_config(file, ["kv_allocator.name=paged"])
    section = loaded.config.kv_allocator
    assert (section.num_blocks, section.block_size, dict(section.options)) == (7, 4, {})
    assert dropped(loaded) == ["kv_allocator.x"]


def test_a_nested_component_follows_the_same_rule(write: Write) -> None:
    file = write("run.yaml", "executor: {name: sim, cost_model: {name: roofline, device: h100}}")
    loaded = load_config(file, ["executor.cost_model.name=constant"])
    assert loaded.config.executor.cost_model is not None
    assert dict(loaded.config.executor.cost_model.options) == {}
    assert dropped(loaded) == ["executor.cost_model.device"]
    loaded = load_config(file, ["executor.name=other"])
    assert loaded.config.executor.cost_model is None
    assert dropped(loaded) == ["executor.cost_model"]


def test_another_input_replaces_the_one_below(write: Write) -> None:
    write("low.yaml", "input: {prompts: [a]}")
    file = write("run.yaml", "base: low.yaml\ninput: {file: prompts.jsonl}")
    loaded = load_config(file)
    assert loaded.config.input.prompts is None
    assert dropped(loaded) == ["input.prompts"]


@pytest.mark.parametrize("first", ["prompts: [a]", "file: p.jsonl", "workload: {name: poisson}"])
@pytest.mark.parametrize("second", ["prompts: [a]", "file: p.jsonl", "workload: {name: poisson}"])
def test_two_inputs_in_one_layer_are_an_error_as_one_would_be_dropped(
    write: Write, first: str, second: str
) -> None:
    if first == second:
        return
    file = write("run.yaml", f"input:\n  {first}\n  {second}\n")
    with pytest.raises(ConfigError, match=r"run\.yaml:[23]: input\.\w+: stands beside input\.\w+"):
        load_config(file)
    one = write("one.yaml", f"input:\n  {first}\n")
    assert load_config(one, [f"input.{second.split(':')[0]}=null"])  # null is not a choice


def test_two_inputs_on_the_command_line_are_an_error() -> None:
    with pytest.raises(
        ConfigError, match=r"command line: input\.file: stands beside input\.prompts"
    ):
        load_config("sim", ["input.file=p.jsonl", "input.prompts=[a]"])
    assert load_config("sim", ["input.file=p.jsonl", "input.prompts=null"]).config.input.file


# -- values -----------------------------------------------------------------------------------


def test_B099_false_in_a_file_is_applied_and_shown_with_its_source(write: Write) -> None:
    write("low.yaml", "engine: {overlap: true}\nplugins: {strict: true}")
    file = write("run.yaml", "base: low.yaml\nengine:\n  overlap: false\nplugins: {strict: false}")
    loaded = load_config(file)
    assert loaded.config.engine.overlap is False
    assert loaded.config.plugins.strict is False
    (line,) = [line for line in as_lines(loaded) if line.startswith("engine.overlap ")]
    assert "= false" in line
    assert line.endswith("run.yaml:3")


def test_B102_false_on_the_command_line_overrides_true_in_the_file(write: Write) -> None:
    file = write("run.yaml", "engine: {cuda_graphs: true}")
    loaded = load_config(file, ["engine.cuda_graphs=false"])
    assert loaded.config.engine.cuda_graphs is False
    assert str(loaded.values.source(("engine", "cuda_graphs"))) == "command line"


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 0.001), ("1", 1.0), ("1_0", 10.0), ("0o10", 8.0)]
)
def test_B103_numbers_are_numbers(write: Write, text: str, value: float) -> None:
    file = write("run.yaml", f"sampling: {{temperature: {text}}}")
    assert load_config(file).config.sampling.temperature == value


@pytest.mark.parametrize("text", ["'1e-3'", "12:30", "off", "null", "[1]", "true", "fast"])
def test_B103_anything_else_is_refused_with_its_key(write: Write, text: str) -> None:
    file = write("run.yaml", f"sampling:\n  temperature: {text}")
    with pytest.raises(ConfigError, match="should be a number") as caught:
        load_config(file)
    assert caught.value.key == "sampling.temperature"
    assert caught.value.line == 2
    assert str(caught.value.source).endswith("run.yaml")


@pytest.mark.parametrize("word", ["off", "no"])
def test_B103_words_for_false_are_refused_with_the_right_one(write: Write, word: str) -> None:
    file = write("run.yaml", f"plugins: {{strict: {word}}}")
    with pytest.raises(ConfigError, match=f"not the string '{word}'; write false"):
        load_config(file)


def test_null_where_it_means_something_and_where_not(write: Write) -> None:
    write("low.yaml", "engine: {chunk_tokens: 5}")
    file = write("run.yaml", "base: low.yaml\nengine: {chunk_tokens: null}")
    assert load_config(file).config.engine.chunk_tokens is None
    with pytest.raises(ConfigError, match="engine.max_num_seqs: should be an integer, not null"):
        load_config(None, ["engine.max_num_seqs=null"])
    with pytest.raises(ConfigError, match="engine: should be a mapping, not null"):
        load_config(write("empty.yaml", "engine:\n"))


def test_all_problems_are_reported_at_once(write: Write) -> None:
    file = write(
        "run.yaml",
        """\
        engine: {seed: -1, max_num_seqs: 0}
        schedular: {name: fcfs}
        sampling: {temprature: 1}
        """,
    )
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    text = str(caught.value)
    assert "4 values cannot be used" in text
    assert f"{file}:1: engine.seed: should be greater than or equal to 0, not -1" in text
    assert f"{file}:2: schedular: no such key; did you mean 'scheduler'" in text
    assert f"{file}:3: sampling.temprature: no such key; did you mean 'temperature'" in text


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("engine.sed=1", "engine.sed: no such key; did you mean 'seed'"),
        ("engine.dtype=x", "engine.dtype: no such key; did you mean 'model.dtype'"),
        ("engine.name=x", "engine.name: no such key; keys here"),  # many sections have one
        ("basee=x", "did you mean 'base'"),
        ("engine=3", "engine: should be a mapping, not 3"),
        ("engine.seed.x=1", "engine.seed: should be an integer, not a mapping"),
        ("engine.batching=mixd", "should be 'mixed' or 'prefill_first', not the string 'mixd'"),
        ("engine.device=GPU!", "engine.device"),
        ("base=sim", "belongs in a file"),
        ("input.prompts=[a", "quote it as YAML does"),
        ("input.prompts=a", "should be a list"),
        ("logits_processors=[{x: 1}]", r"logits_processors\[0\].name: is required"),
    ],
)
def test_wrong_overrides_are_errors_of_the_command_line(pair: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(None, [pair])
    assert "command line" in str(caught.value)


def test_an_override_cannot_set_a_key_and_keys_below_it() -> None:
    with pytest.raises(ConfigError, match="set to a value and to keys below it"):
        load_config(None, ["scheduler=1", "scheduler.name=fcfs"])


def test_what_is_typed_takes_the_type_of_its_field() -> None:
    pairs = ["model.path=123", "scheduler.name=007", "plugins.require={x: 1}"]
    with pytest.raises(ConfigError, match="plugins.require.x: should be a string, not 1"):
        load_config(None, pairs)
    config = load_config(None, [*pairs[:2], "plugins.require.nanofw=>=0.1"]).config
    assert (config.model.path, config.scheduler.name) == ("123", "007")
    assert config.plugins.require == {"nanofw": ">=0.1"}
    with pytest.raises(ConfigError, match="engine.seed: should be an integer"):
        load_config(None, ["engine.seed='3'"])


# -- interpolation ----------------------------------------------------------------------------


def test_B101_environment_variables_enter_where_a_file_says_so_and_lose_to_the_command_line(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule of the fault, for a framework in which variables enter through `${oc.env}` only:
    no variable sets a key by its own name, and one named in a file is below the command line.
    """
    monkeypatch.setenv("NANOFW__SCHEDULER__NAME", "sjf")
    monkeypatch.setenv("POLICY", "sjf")
    file = write("run.yaml", "scheduler: {name: '${oc.env:POLICY}'}")
    assert load_config(None).config.scheduler.name == "fcfs"
    assert load_config(file).config.scheduler.name == "sjf"
    assert load_config(file, ["scheduler.name=fcfs"]).config.scheduler.name == "fcfs"
    (line,) = [line for line in as_lines(load_config(file)) if line.startswith("scheduler.name")]
    assert line.endswith("run.yaml:1, ${oc.env:POLICY}")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("kv_allocator.num_blocks", "64", 64),
        ("kv_allocator.num_blocks", "auto", "auto"),
        ("engine.chunk_tokens", "null", None),
        ("engine.overlap", "false", False),
        ("engine.memory_utilization", "5e-1", 0.5),
        ("scheduler.name", "64", "64"),
        ("model.path", "true", "true"),
    ],
)
def test_B105_an_environment_value_takes_the_type_of_its_field(
    write: Write, monkeypatch: pytest.MonkeyPatch, key: str, text: str, value: object
) -> None:
    monkeypatch.setenv("NB", text)
    section, name = key.split(".")
    file = write("run.yaml", f"{section}: {{{name}: '${{oc.env:NB}}'}}")
    loaded = load_config(file)
    assert getattr(getattr(loaded.config, section), name) == value


def test_B105_a_wrong_or_missing_environment_value_is_an_error_with_its_key(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("run.yaml", "kv_allocator:\n  num_blocks: ${oc.env:NB}")
    monkeypatch.setenv("NB", "abc")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert caught.value.key == "kv_allocator.num_blocks"
    assert caught.value.line == 2
    assert "not the string 'abc' (from ${oc.env:NB})" in str(caught.value)
    monkeypatch.delenv("NB")
    with pytest.raises(ConfigError, match="'NB' not found") as caught:
        load_config(file)
    assert caught.value.key == "kv_allocator.num_blocks"
    assert caught.value.line == 2


def test_B105_a_default_may_stand_beside_the_variable(write: Write) -> None:
    file = write("run.yaml", "kv_allocator: {num_blocks: '${oc.env:ABSENT_NB,32}'}")
    assert load_config(file).config.kv_allocator.num_blocks == 32


def test_B107_a_value_follows_the_overlay_of_what_it_refers_to(write: Write) -> None:
    write("low.yaml", "engine: {seed: 1, chunk_tokens: '${engine.seed}'}")
    file = write("run.yaml", "base: low.yaml\nengine: {seed: 9}")
    assert load_config(file).config.engine.chunk_tokens == 9
    assert load_config(file, ["engine.seed=11"]).config.engine.chunk_tokens == 11
    with pytest.raises(ConfigError, match=r"engine.chunk_tokens.*\(from \$\{engine.seed\}\)"):
        load_config(file, ["engine.seed=0"])  # typed fields are checked after resolution


def test_an_interpolation_that_leads_nowhere_names_its_key(write: Write) -> None:
    file = write("run.yaml", "engine:\n  seed: ${engine.sed}")
    with pytest.raises(ConfigError, match="engine.sed") as caught:
        load_config(file)
    assert (caught.value.key, caught.value.line) == ("engine.seed", 2)


def test_a_literal_dollar_brace_is_written_with_a_backslash(write: Write) -> None:
    file = write("run.yaml", "input: {prompts: ['costs \\${x}', 'plain $ {y}', '???']}")
    assert load_config(file).config.input.prompts == ("costs ${x}", "plain $ {y}", "???")


# -- paths ------------------------------------------------------------------------------------


def test_relative_paths_are_relative_to_the_file_that_names_them(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub" / "model").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    write(
        "sub/low.yaml",
        """\
        model: {path: model}
        input: {file: in.jsonl}
        output: {file: ../out.jsonl}
        plugins: {load: [a.py, /abs/b.py]}
        """,
    )
    file = write("run.yaml", "base: sub/low.yaml")
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load_config(file).config
    assert config.model.path == str(tmp_path / "sub" / "model")
    assert config.input.file == tmp_path / "sub" / "in.jsonl"
    assert config.output.file == tmp_path / "sub" / ".." / "out.jsonl"
    assert config.plugins.load == (tmp_path / "sub" / "a.py", Path("/abs/b.py"))
    config = load_config(file, ["output.file=here.jsonl", "model.path=Qwen/Qwen3-0.6B"]).config
    assert config.output.file == tmp_path / "elsewhere" / "here.jsonl"
    assert config.model.path == "Qwen/Qwen3-0.6B"


# -- the result -------------------------------------------------------------------------------


def test_a_configuration_is_never_written_to() -> None:
    config = load_config("qwen3-demo").config
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        config.engine.seed = 3
    with pytest.raises(TypeError):
        config.scheduler.options["x"] = 1  # pyright: ignore[reportIndexIssue]


def test_the_defaults_are_those_of_the_schema() -> None:
    assert load_config().config == Config()


def test_what_is_shown_loads_to_the_same_configuration(write: Write) -> None:
    pairs = ["scheduler.ageing=0.5", "plugins.override={scheduler.fcfs: x}"]
    first = load_config("sim", pairs, values={"input": {"prompts": ["a ${x}", "1e-3", "null"]}})
    again = load_config(write("shown.yaml", as_yaml(first)))
    assert again.config == first.config


SEEDS = st.integers(0, 3)


@given(st.lists(st.dictionaries(st.sampled_from(["seed", "chunk_tokens"]), SEEDS), max_size=4))
def test_the_highest_layer_that_speaks_wins(layers: list[dict[str, int]]) -> None:
    """Against the plainest model: dictionaries updated in order."""
    from nanofw.config.layers import defaults, python_layer
    from nanofw.config.merge import merge

    made = [defaults(), *(python_layer({"engine": layer}) for layer in layers)]
    defaults_of_engine: Any = made[0].data["engine"]
    expected = dict(defaults_of_engine)
    for layer in layers:
        expected.update(layer)
    merged = merge(made, lambda data, *_: data)
    assert merged.data["engine"] == expected
    assert set(merged.sources) >= {("engine", key) for key in expected}


@pytest.mark.parametrize("value", ["false", "0", "{}", "5", "{a: b}"])
def test_a_base_that_is_no_name_is_an_error(write: Write, value: str) -> None:
    with pytest.raises(ConfigError, match="name of a preset or file"):
        load_config(write("run.yaml", f"base: {value}\n"))


@pytest.mark.parametrize("name", ["~nosuchuser/x.yaml", "a" * 300 + ".yaml"])
def test_a_base_that_cannot_be_looked_for_has_its_place(write: Write, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write("run.yaml", f"\nbase: {name}\n"))
    assert (caught.value.key, caught.value.line) == ("base", 2)


@pytest.mark.parametrize("key", ["output.file", "input.file", "model.path"])
def test_the_home_of_nobody_is_an_error_with_its_key(key: str) -> None:
    with pytest.raises(ConfigError, match="home folder of ~nosuchuser"):
        load_config("sim", [f"{key}=~nosuchuser/x"])


def test_a_pipe_is_a_configuration_file(tmp_path: Path) -> None:
    pipe = tmp_path / "run.yaml"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("engine: {seed: 5}\n",))
    writer.start()
    assert load_config(pipe).config.engine.seed == 5
    writer.join()


@pytest.mark.parametrize("change", ["scheduler=fcfs", "scheduler=null"])
def test_a_section_replaced_above_an_interpolated_name_is_an_error_of_its_own(
    write: Write, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setenv("SCH", "fcfs")
    path = write("run.yaml", "scheduler: {name: '${oc.env:SCH}', watermark: 1}\n")
    with pytest.raises(ConfigError, match="scheduler: should be a mapping"):
        load_config(path, [change])


def test_an_interpolated_name_that_is_overridden_need_not_be_resolved(write: Write) -> None:
    path = write("run.yaml", "scheduler: {name: '${oc.env:NOT_SET_ANYWHERE}', by: output}\n")
    loaded = load_config(path, ["scheduler.name=fcfs"])
    assert loaded.config.scheduler.name == "fcfs"
    assert [item.path for item in loaded.dropped] == [("scheduler", "by")]
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert (caught.value.key, caught.value.line) == ("scheduler.name", 1)


@pytest.mark.parametrize("text", ["my #1.jsonl", "a: b", "a\nb", "- a", "5", "true", "a=b c"])
def test_text_typed_for_a_path_arrives_as_typed(text: str) -> None:
    file = load_config("sim", [f"output.file={text}"]).config.output.file
    assert file == Path.cwd() / text


def test_keys_with_dots_can_be_set_on_the_command_line() -> None:
    loaded = load_config(
        "sim",
        ["logging.modules.nanofw.engine.engine=debug", "plugins.override.scheduler.fcfs=nanofw",
         "plugins.require.zope.interface=>=5"],
    )  # fmt: skip
    assert loaded.config.logging.modules == {"nanofw.engine.engine": "debug"}
    assert loaded.config.plugins.override == {"scheduler.fcfs": "nanofw"}
    assert loaded.config.plugins.require == {"zope.interface": ">=5"}


def test_what_is_shown_has_the_type_of_its_key(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NB", "64")
    loaded = load_config("sim", ["engine.seed=${oc.env:NB}", "output.file=5"])
    data: Any = loaded.values.data
    assert data["engine"]["seed"] == 64
    assert data["output"]["file"] == "5"
    again = load_config(write("again.yaml", as_yaml(loaded)))
    assert again.config.engine == loaded.config.engine


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("scheduler: fcfs\n", "scheduler", "write {name: fcfs}"),
        ("engine:\n", "engine", "leave the key out"),
        ("engine:\n  seed:1\n", "engine", "a space belongs after the colon"),
        ("sampling: {temperature: .inf}\n", "sampling.temperature", "finite"),
        ("sampling: {max_tokens: 0}\n", "sampling.max_tokens", "must be from 1 to"),
        ("sampling: {stop: [1]}\n", "sampling.stop[0]", "a string"),
    ],
)
def test_a_mistake_is_told_with_what_to_do(write: Write, text: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write("run.yaml", text))
    assert caught.value.key == key
    assert message in str(caught.value)


@pytest.mark.parametrize("values", [{1: 2, (1, 2): 3}, {"engine": {"seed": {1, 2}}}])
def test_values_from_python_must_be_plain(values: Any) -> None:
    with pytest.raises(ConfigError, match="plain data"):
        load_config(values=values)


@pytest.mark.parametrize(
    ("biases", "message"),
    [
        ('{" 5": 1}', "logit_bias key ' 5' is not a token id"),
        ('{"05": 1}', "logit_bias key '05' is not a token id"),
        ('{"5_0": 1}', "logit_bias key '5_0' is not a token id"),
        ('{"5.0": 1}', "logit_bias key '5.0' is not a token id"),
        ('{"-0": 1}', "logit_bias key '-0' is not a token id"),
    ],
)
def test_keys_of_logit_bias_are_those_of_a_request(write: Write, biases: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(write("run.yaml", f"sampling: {{logit_bias: {biases}}}"))
    good = load_config(write("run.yaml", 'sampling: {logit_bias: {"5": 1, "6": 2}}'))
    assert good.config.sampling.logit_bias == {5: 1.0, 6: 2.0}


@pytest.mark.parametrize("key", ["max_num_seqs", "max_num_batched_tokens"])
def test_a_batch_beyond_any_array_is_refused_by_its_key(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"engine\.{key}: should be less than or equal to"):
        load_config(None, [f"engine.{key}=99999999999999999999999"])
