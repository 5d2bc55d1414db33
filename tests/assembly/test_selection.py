from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanofw.assembly import Selection, check, select
from nanofw.config.load import LoadedConfig, load_config
from nanofw.errors import (
    CapabilityError,
    ConfigError,
    DuplicatePlugin,
    ModelError,
    PluginLoadError,
    UnknownPlugin,
)

Choose = Callable[..., Selection]
Load = Callable[..., LoadedConfig]
Local = Callable[[str], Path]

PLAIN_POLICY = """
    class Plain(Policy):
        def key(self, request, now):
            return request.arrival

    @hookimpl
    def scheduler():
        return Plugin("plain", ":Plain", api="scheduler/1")
"""
OPTIONS = """
    class Settings(Options):
        weight: float = 1.0
        label: str = "x"

    class Weighted(Policy):
        def __init__(self, options):
            self.options = options

        def key(self, request, now):
            return request.arrival * self.options.weight

    @hookimpl
    def scheduler():
        return Plugin(
            "weighted", ":Weighted", api="scheduler/1", options=Settings,
            capabilities={"overlap": True},
        )
"""
EXECUTOR = """
    class Machine:
        def __init__(self, options, config):
            self.config = config
        def capacity(self):
            return Capacity(num_blocks=8, block_size=self.config.block_size, max_in_flight=2)
        def check(self, request): ...
        def submit(self, plan): ...
        def provide(self, masks): ...
        def collect(self): ...
        def close(self): ...

    class Thing:
        def __init__(self, *arguments): ...

    def probe(device, options):
        if device == "cuda":
            return "no CUDA device"
        return {{"dtypes": ("float32", "float64")}}

    @hookimpl
    def executor():
        return Plugin("machine", ":Machine", api="executor/1",
                      capabilities={{"devices": ("cuda", "cpu"), "overlap": True}})

    @hookimpl
    def model():
        return Plugin("TinyForCausalLM", ":Thing", api="model/1", capabilities={model})

    @hookimpl
    def sampler():
        return Plugin("draw", ":Thing", api="sampler/1", capabilities={{"devices": ("*",)}})

    @hookimpl
    def attention_backend():
        return [
            Plugin("first", ":Thing", api="attention_backend/1", capabilities={backend}),
        ]
"""
MODEL_CLAIMS = {"devices": ("cpu",), "dtypes": ("float32",), "rope_types": ("default",)}
BACKEND_CLAIMS = {
    "devices": ("cpu",),
    "dtypes": ("float32",),
    "head_dims": (64, 128),
    "block_sizes": (32, 16),
    "sliding_window": True,
}


def machine(local: Local, model: Any = MODEL_CLAIMS, backend: Any = BACKEND_CLAIMS) -> Path:
    return local(EXECUTOR.format(model=model, backend=backend))


MACHINE = {
    "executor": {"name": "machine"},
    "sampler": {"name": "draw"},
    "attention_backend": {"name": "first"},
}


@pytest.fixture
def tiny(tmp_path: Path) -> dict[str, Any]:
    """A checkpoint folder with a configuration, as the `model` section."""
    import json

    config = {
        "architectures": ["TinyForCausalLM"],
        "vocab_size": 100,
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 256,
        "torch_dtype": "bfloat16",
    }
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return {"path": str(folder)}


# -- choosing -----------------------------------------------------------------------------------


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
            return Plugin("glass", "no_such_module:Backend", api="attention_backend/1",
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


# -- the model ------------------------------------------------------------------------------------


def test_a_model_must_be_named(load: Load) -> None:
    with pytest.raises(ConfigError, match="model.path: is required"):
        select(load("model.path=null"))


def test_an_unknown_architecture_lists_the_supported(
    choose: Choose, local: Local, tiny: dict[str, Any]
) -> None:
    config = Path(tiny["path"]) / "config.json"
    text = config.read_text("utf-8").replace("TinyForCausalLM", "GPT2LMHeadModel")
    config.write_text(text, encoding="utf-8")
    with pytest.raises(
        ModelError, match="architecture 'GPT2LMHeadModel' is not supported; .*TinyForCausalLM"
    ):
        choose(plugins=[machine(local)], model=tiny, **MACHINE)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("./absent", "no such folder"),
        ("embedded:dem", "did you mean 'demo'"),
        ("shape:qwen9", "no model shape"),
    ],
)
def test_a_model_that_is_not_there(choose: Choose, path: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        choose(model={"path": path})


def test_a_shape_has_no_weights(choose: Choose, local: Local) -> None:
    with pytest.raises(ModelError, match="executor: {name: sim}"):
        choose(plugins=[machine(local)], **MACHINE)


def test_the_length_is_bounded_by_the_model(choose: Choose) -> None:
    assert choose("engine.max_model_len=100").max_model_len == 100
    with pytest.raises(ConfigError, match="engine.max_model_len: 99999 is longer than the model"):
        choose("engine.max_model_len=99999")


# -- capabilities -----------------------------------------------------------------------------


def test_the_device_is_the_first_that_the_executor_finds(
    choose: Choose, local: Local, tiny: dict[str, Any]
) -> None:
    selection = choose(plugins=[machine(local)], model=tiny, **MACHINE)
    assert selection.device == "cpu"  # its probe finds no CUDA device
    assert selection.spec.dtype == "float32"  # the default on CPU
    assert selection.block_size == 32  # the backend's first
    assert not selection.overlap
    with pytest.raises(CapabilityError, match="executor 'machine': no CUDA device"):
        choose("engine.device=cuda", plugins=[machine(local)], model=tiny, **MACHINE)


def test_every_reason_is_reported_at_once(
    choose: Choose, local: Local, tiny: dict[str, Any]
) -> None:
    plugin = machine(
        local,
        model={"devices": ("cpu",), "rope_types": ("linear",)},
        backend={**BACKEND_CLAIMS, "dtypes": ("bfloat16",), "head_dims": (128,)},
    )
    with pytest.raises(CapabilityError) as caught:
        choose(
            "kv_allocator.block_size=24",
            "engine.tensor_parallel_size=2",
            plugins=[plugin],
            model=tiny,
            **MACHINE,
        )
    text = str(caught.value)
    for reason in (
        "executor 'machine': it does not claim tensor_parallel",
        "model 'TinyForCausalLM': it claims no dtype, float32 is needed",
        "model 'TinyForCausalLM': rope type default is needed, it claims linear",
        "attention_backend 'first': it claims no dtype, float32 is needed",
        "attention_backend 'first': head_dim 64 is needed, it claims 128",
        "attention_backend 'first': block size 24 is needed, it claims 32, 16",
        "sampler 'draw': it does not claim tensor_parallel",
    ):
        assert reason in text


def test_a_probe_narrows_and_never_widens(
    choose: Choose, local: Local, tiny: dict[str, Any]
) -> None:
    """The probe of the file says float32 and float64; the manifest's bound is float32, bfloat16."""
    plugin = machine(local, backend={**BACKEND_CLAIMS, "dtypes": ("float32", "bfloat16")})
    selection = choose(plugins=[plugin], model=tiny, **MACHINE)
    choice = selection.explanation.choice("attention_backend")
    assert choice is not None
    assert choice.claims["dtypes"] == ("float32",)


def test_no_common_block_size_is_a_reason(
    choose: Choose, local: Local, tiny: dict[str, Any]
) -> None:
    allocator = local(
        """
        class Thing: ...

        @hookimpl
        def kv_allocator():
            return Plugin("eight", ":Thing", api="kv_allocator/1",
                          capabilities={"block_sizes": (8,)})
        """
    )
    with pytest.raises(CapabilityError, match="no block size suits all: .*8"):
        choose(
            "kv_allocator.name=eight", plugins=[machine(local), allocator], model=tiny, **MACHINE
        )


def test_auto_says_why_each_was_passed_over(
    choose: Choose, local: Local, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nanofw.assembly import choosing as module

    more = local(
        """
        class Thing:
            def __init__(self, *arguments): ...

        @hookimpl
        def attention_backend():
            claims = {"devices": ("cpu",), "dtypes": ("float32",), "block_sizes": (16,)}
            return [
                Plugin("absent", ":Thing", api="attention_backend/1",
                       requires=(Requirement("no_such_module", "pip install it"),)),
                Plugin("broken", "no_such_module:X", api="attention_backend/1"),
                Plugin("narrow", ":Thing", api="attention_backend/1",
                       capabilities={**claims, "head_dims": (128,)}),
            ]
        """
    )
    order = ("not_installed", "absent", "broken", "narrow", "first")
    monkeypatch.setattr(module, "AUTO_ORDER", {"attention_backend": order})
    selection = choose(
        plugins=[machine(local), more],
        model=tiny,
        **{**MACHINE, "attention_backend": {"name": "auto"}},
    )
    choice = selection.explanation.choice("attention_backend")
    assert choice is not None
    assert (choice.name, choice.requested) == ("first", "auto")
    passed = dict(choice.passed_over)
    assert passed["absent"] == "needs the module no_such_module: pip install it"
    assert "failed to import" in passed["broken"]
    assert passed["narrow"] == "head_dim 64 is needed, it claims 128"
    monkeypatch.setattr(module, "AUTO_ORDER", {"attention_backend": order[:-1]})
    with pytest.raises(CapabilityError, match="no attention_backend fits:\n    absent: needs"):
        choose(
            plugins=[machine(local), more],
            model=tiny,
            **{**MACHINE, "attention_backend": {"name": "auto"}},
        )


# -- features -----------------------------------------------------------------------------------


def test_B037_a_policy_without_overlap_is_named_as_the_cause(choose: Choose, local: Local) -> None:
    plugin = local(PLAIN_POLICY)
    selection = choose("scheduler.name=plain", "engine.overlap=true", plugins=[plugin])
    assert selection.overlap is False
    assert selection.explanation.downgrades == ("overlap is off: not claimed by scheduler 'plain'",)
    with pytest.raises(CapabilityError, match="engine.overlap: not claimed by scheduler 'plain'"):
        choose(
            "scheduler.name=plain",
            "engine.overlap=true",
            "plugins.strict=true",
            plugins=[plugin],
        )


def test_what_auto_leaves_off_is_recorded_and_no_downgrade(choose: Choose, local: Local) -> None:
    selection = choose("scheduler.name=plain", "plugins.strict=true", plugins=[local(PLAIN_POLICY)])
    features = {feature.name: feature for feature in selection.explanation.features}
    assert not features["overlap"].value
    assert features["overlap"].reason == "not claimed by scheduler 'plain'"
    assert selection.explanation.downgrades == ()
    assert choose().overlap is True
    assert choose("engine.overlap=false").overlap is False


def test_graphs_need_a_device_that_has_them(choose: Choose) -> None:
    assert choose("engine.cuda_graphs=false").explanation.downgrades == ()
    selection = choose("engine.cuda_graphs=true")
    assert selection.explanation.downgrades == ("cuda_graphs is off: device cpu has none",)
    with pytest.raises(CapabilityError, match="engine.cuda_graphs: device cpu has none"):
        choose("engine.cuda_graphs=true", "plugins.strict=true")


GPU_PLUGINS = """
    class Executor: ...
    class Backend: ...
    GPU = {"devices": ("cuda",), "dtypes": ("*",), "head_dims": ("*",), "block_sizes": (16,),
           "cuda_graph": True, "overlap": True}

    @hookimpl
    def executor():
        claims = {**GPU, "cuda_graph_prefill": True, "needs": ("attention_backend",)}
        return Plugin("gpu", ":Executor", api="executor/1", capabilities=claims)

    @hookimpl
    def attention_backend():
        more = {**GPU, "cuda_graph_prefill": True}
        return [Plugin("decodes", ":Backend", api="attention_backend/1", capabilities=GPU),
                Plugin("all", ":Backend", api="attention_backend/1", capabilities=more)]
"""


@pytest.mark.parametrize(
    ("backend", "switch", "reason"),
    [
        ("all", "auto", "every component claims it"),
        ("decodes", "auto", "not claimed by attention_backend 'decodes'"),
        ("all", "false", "cuda_graphs is off"),
    ],
)
def test_graphs_of_prefill_are_claimed_apart(
    choose: Choose, local: Local, backend: str, switch: str, reason: str
) -> None:
    selection = choose(
        "executor.name=gpu",
        "engine.device=cuda",
        f"attention_backend.name={backend}",
        f"engine.cuda_graphs={switch}",
        "plugins.strict=true",
        plugins=[local(GPU_PLUGINS)],
    )
    features = {feature.name: feature for feature in selection.explanation.features}
    assert selection.cuda_graphs is (switch == "auto")
    assert selection.prefill_graphs is (reason == "every component claims it")
    assert features["prefill_graphs"].reason == reason


# -- order ----------------------------------------------------------------------------------------


def test_B096_logits_processors_keep_the_order_of_the_yaml(choose: Choose, local: Local) -> None:
    source = """
        class Host:
            def __init__(self, options, facts): ...
            def check(self, arguments): ...
            def start(self, request_id, arguments, prompt): return False
            def advance(self, request_id, token_ids): ...
            def mask(self, request_id, bits): ...
            def finish(self, request_id): ...

        @hookimpl
        def logits_processor():
            return Plugin("NAME", ":Host", api="logits_processor/1", capabilities={
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


def test_a_section_that_the_executor_has_no_use_for_is_noted(choose: Choose) -> None:
    assert not any("is not used" in note for note in choose().explanation.notes)
    notes = choose("sampler.name=other").explanation.notes
    assert "sampler (command line) is not used: the executor builds none" in notes


def test_dropped_options_are_part_of_the_record(choose: Choose, local: Local) -> None:
    selection = choose(
        "scheduler.name=fcfs",
        plugins=[local(OPTIONS)],
        scheduler={"name": "weighted", "weight": 2.0},
    )
    assert any("scheduler.weight = 2.0" in note for note in selection.explanation.notes)


@pytest.mark.parametrize(
    ("ranks", "fits"), [(1, True), (2, True), (3, False), (4, True), (8, False)]
)
def test_ranks_that_a_model_cannot_be_shared_by_are_refused(
    load: Load, ranks: int, fits: bool
) -> None:
    loaded = load(
        f"engine.tensor_parallel_size={ranks}",
        model={"path": "embedded:demo"},
        executor={"name": "torch"},
    )
    if fits:
        selection = select(loaded)
        assert selection.spec.num_heads % ranks == 0
        assert selection.explanation.facts.get("tensor_parallel_size", 1) == ranks
        return
    with pytest.raises(ConfigError, match=r"engine.tensor_parallel_size.*takes 1, 2, 4$"):
        select(loaded)


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
    return Plugin("odd", "builtins:object", api="scheduler/1", options=O)
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


# -- threads --------------------------------------------------------------------------------

THREADS_OF_A_RUN = """
import os
from nanofw import LLM
with LLM("embedded:demo", max_num_seqs=2, executor={"name": "torch", "num_threads": 3}) as llm:
    llm.generate("And it came to pass", None)
    import torch
    print(os.environ.get("GOMP_SPINCOUNT"), torch.get_num_threads())
"""


@pytest.mark.parametrize(
    ("set_by_user", "expected"),
    [({}, "0 3"), ({"GOMP_SPINCOUNT": "7"}, "7 3"), ({"OMP_WAIT_POLICY": "active"}, "None 3")],
)
def test_idle_threads_sleep_unless_the_user_decides(
    set_by_user: dict[str, str], expected: str
) -> None:
    ours = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
    environment = {key: value for key, value in os.environ.items() if key not in ours}
    done = subprocess.run(
        [sys.executable, "-c", THREADS_OF_A_RUN],
        env={**environment, **set_by_user},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[-2] == expected
