from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanofw.assembly import Selection, check, select
from nanofw.config.load import LoadedConfig, load_config
from nanofw.errors import (
    ConfigError,
    DuplicatePlugin,
    PluginLoadError,
    UnknownPlugin,
)
from tests.assembly.local_plugins import MACHINE, OPTIONS, PLAIN_POLICY, machine

Choose = Callable[..., Selection]
Load = Callable[..., LoadedConfig]
Local = Callable[[str], Path]


def test_a_simulated_run_is_chosen_and_explained(choose: Choose) -> None:
    selection = choose("scheduler.name=shortest_job_first")
    explanation = selection.explanation
    choice = explanation.choice("scheduler")
    assert choice is not None
    assert (choice.name, choice.origin.split()[0]) == ("shortest_job_first", "nanofw")
    assert explanation.choice("model") is None  # the simulated executor builds none
    assert selection.virtual_time
    assert explanation.facts["block_size"] == selection.block_size == 16
    assert explanation.facts["dtype"] == "bfloat16"  # a device is simulated, not this CPU
    assert explanation.as_dict()["choices"][0]["kind"] == "executor"


def test_options_are_validated_with_their_place(load: Load, local: Local, tmp_path: Path) -> None:
    from nanofw.config.load import load_config

    plugin = local(OPTIONS)
    file = tmp_path / "run.yaml"
    file.write_text(
        f"model: {{path: 'shape:qwen3-0.6b'}}\n"
        f"executor: {{name: sim, seconds_per_stp: 1}}\n"
        f"plugins: {{load: [{plugin.name}]}}\n"
        f"scheduler:\n"
        f"  name: weighted\n"
        f"  weight: heavy\n",
        encoding="utf-8",
    )
    for action in (select, check):
        with pytest.raises(ConfigError) as caught:
            action(load_config(file))
        text = str(caught.value)
        assert f"{file}:6: scheduler.weight: should be a number, not the string 'heavy'" in text
        assert f"{file}:2: executor.seconds_per_stp: no such key; did you mean" in text


def test_B094_options_reach_the_component_that_declares_them(
    load: Load, local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIGHT", "2.5")
    loaded = load(
        "scheduler.label=7",
        "scheduler.weight=${oc.env:WEIGHT}",
        plugins=[local(OPTIONS)],
        scheduler={"name": "weighted"},
    )
    component = select(loaded).components["scheduler"]
    assert (component.options.weight, component.options.label) == (2.5, "7")


def test_a_component_without_options_takes_none(load: Load, local: Local) -> None:
    loaded = load("scheduler.weight=1", plugins=[local(PLAIN_POLICY)], scheduler={"name": "plain"})
    with pytest.raises(ConfigError, match="scheduler: the component has no options, weight"):
        select(loaded)


def test_an_unknown_name_has_its_place_and_near_matches(choose: Choose) -> None:
    with pytest.raises(UnknownPlugin, match="command line: scheduler.name: no scheduler 'fcsf'"):
        choose("scheduler.name=fcsf")


def test_B089_a_component_named_in_the_configuration_never_falls_back(
    choose: Choose, local: Local, tiny: dict[str, Any]
) -> None:
    broken = local(
        """
        @hookimpl
        def attention_backend():
            return Plugin("glass", "no_such_module:Backend", api="attention_backend/2",
                          capabilities={"devices": ("*",)})
        """
    )
    with pytest.raises(PluginLoadError, match="no_such_module") as caught:
        choose(
            plugins=[machine(local), broken],
            model=tiny,
            **{**MACHINE, "attention_backend": {"name": "glass"}},
        )
    assert str(broken) in str(caught.value)


def test_a_local_copy_of_a_built_in_must_be_meant(choose: Choose, local: Local) -> None:
    mine = local(PLAIN_POLICY.replace('"plain"', '"fcfs"'))
    with pytest.raises(DuplicatePlugin, match="local_1"):
        choose(plugins=[mine])
    selection = choose("scheduler.name=local_1:fcfs", plugins=[mine])
    assert selection.components["scheduler"].entry.path == mine
    selection = choose("plugins.override={scheduler.fcfs: local_1}", plugins=[mine])
    assert selection.components["scheduler"].entry.path == mine


def test_wrong_plugin_settings_have_their_place(load: Load) -> None:
    with pytest.raises(ConfigError, match="command line: plugins.require.nanofw: .*>=99"):
        select(load("plugins.require={nanofw: '>=99'}"))


def test_B096_logits_processors_keep_the_order_of_the_yaml(choose: Choose, local: Local) -> None:
    source = """
        class Host(HostProcessor):
            def __init__(self, options, facts): ...
            def check(self, arguments): ...
            def start(self, request_id, arguments, prompt): return False
            def advance(self, request_id, token_ids): ...
            def mask(self, request_id, bits): ...
            def finish(self, request_id): ...

        @hookimpl
        def logits_processor():
            return Plugin("NAME", ":Host", api="logits_processor/2", capabilities={
                "devices": ("*",), "overlap": True, "needs_history": "host"})
    """
    files = [local(source.replace("NAME", name)) for name in ("a", "b", "c")]
    processors = [{"name": "c"}, {"name": "a"}, {"name": "b"}]
    selection = choose(plugins=files, logits_processors=processors)
    listed = [c.name for c in selection.explanation.choices if c.kind == "logits_processor"]
    assert listed == ["c", "a", "b"]
    assert [item.name for item in selection.components["logits_processor"]] == ["c", "a", "b"]
    with pytest.raises(ConfigError, match=r"logits_processors\[1\].name: a is listed twice"):
        choose(plugins=files, logits_processors=[{"name": "a"}, {"name": "a"}])


CARELESS = """
from nanofw.plugins import Plugin, hookimpl
from pydantic import BaseModel, ConfigDict, model_validator
from typing import Any

class O(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    a: int = 0

    @model_validator(mode="after")
    def check(self) -> Any:
        if self.a == 1:
            raise RuntimeError("the validator broke")
        if self.a == 2:
            raise ValueError("a may not be 2")
        return self

@hookimpl
def scheduler():
    return Plugin("odd", "builtins:object", api="scheduler/2", options=O)
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("scheduler.a=1", r"odd\.py failed to validate its options: RuntimeError"),
        ("scheduler.a=2", r"command line: scheduler.*: a may not be 2$"),
        ("scheduler.b=3", r"command line: scheduler\.b: no such key; .*keys here: a$"),
    ],
)
def test_options_of_a_careless_model_are_held_to_it(
    tmp_path: Path, change: str, message: str
) -> None:
    file = tmp_path / "odd.py"
    file.write_text(CARELESS, encoding="utf-8")
    values = {"plugins": {"load": [str(file)]}, "scheduler": {"name": "odd"}}
    with pytest.raises((PluginLoadError, ConfigError), match=message):
        check(load_config("sim", [change], values=values))
