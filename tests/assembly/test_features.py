from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanofw.assembly import Selection, selection
from nanofw.config.load import LoadedConfig
from nanofw.errors import CapabilityError
from nanofw.plugins import KINDS
from tests.assembly.local_plugins import BACKEND_CLAIMS, MACHINE, PLAIN_POLICY, machine

Choose = Callable[..., Selection]
Load = Callable[..., LoadedConfig]
Local = Callable[[str], Path]


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
            return Plugin("eight", ":Thing", api="kv_allocator/2",
                          capabilities={"block_sizes": (8,)})
        """
    )
    with pytest.raises(CapabilityError, match="no block size suits all: .*8"):
        choose(
            "kv_allocator.name=eight", plugins=[machine(local), allocator], model=tiny, **MACHINE
        )


def _try_in_order(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    """Let `auto` try these attention backends."""
    kind = dataclasses.replace(KINDS["attention_backend"], auto=names)
    monkeypatch.setattr(selection, "KINDS", {**KINDS, kind.name: kind})


def test_auto_says_why_each_was_passed_over(
    choose: Choose, local: Local, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = local(
        """
        class Thing:
            def __init__(self, *arguments): ...

        @hookimpl
        def attention_backend():
            claims = {"devices": ("cpu",), "dtypes": ("float32",), "block_sizes": (16,)}
            return [
                Plugin("absent", ":Thing", api="attention_backend/2",
                       requires=(Requirement("no_such_module", "pip install it"),)),
                Plugin("broken", "no_such_module:X", api="attention_backend/2"),
                Plugin("narrow", ":Thing", api="attention_backend/2",
                       capabilities={**claims, "head_dims": (128,)}),
            ]
        """
    )
    order = ("not_installed", "absent", "broken", "narrow", "first")
    _try_in_order(monkeypatch, order)
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
    _try_in_order(monkeypatch, order[:-1])
    with pytest.raises(CapabilityError, match="no attention_backend fits:\n    absent: needs"):
        choose(
            plugins=[machine(local), more],
            model=tiny,
            **{**MACHINE, "attention_backend": {"name": "auto"}},
        )


@pytest.mark.parametrize(
    ("rows", "length", "chosen"),
    [(2, 20_000, "second"), (3, 20_000, "first"), (2, 10_000, "first")],
)
def test_auto_takes_the_backend_that_is_faster_for_few_long_rows(
    rows: int,
    length: int,
    chosen: str,
    choose: Choose,
    local: Local,
    tiny: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = Path(tiny["path"]) / "config.json"
    stated = json.loads(config.read_text("utf-8"))
    config.write_text(json.dumps({**stated, "max_position_embeddings": 32_768}), encoding="utf-8")
    second = local(
        """
        class Thing:
            def __init__(self, *arguments): ...

        @hookimpl
        def attention_backend():
            claims = {"devices": ("cpu",), "dtypes": ("float32",), "block_sizes": (16,),
                      "head_dims": ("*",), "few_long_rows": 2}
            return [Plugin("second", ":Thing", api="attention_backend/2", capabilities=claims)]
        """
    )
    _try_in_order(monkeypatch, ("first", "second"))
    choice = choose(
        f"engine.max_num_seqs={rows}",
        f"engine.max_model_len={length}",
        "kv_allocator.num_blocks=2000",
        plugins=[machine(local), second],
        model=tiny,
        **{**MACHINE, "attention_backend": {"name": "auto"}},
    ).explanation.choice("attention_backend")
    assert choice is not None
    assert choice.name == chosen
    passed = dict(choice.passed_over)
    assert ("second is faster where at most 2 requests run" in passed.get("first", "")) == (
        chosen == "second"
    )


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
        return Plugin("gpu", ":Executor", api="executor/2", capabilities=claims)

    @hookimpl
    def attention_backend():
        more = {**GPU, "cuda_graph_prefill": True}
        return [Plugin("decodes", ":Backend", api="attention_backend/2", capabilities=GPU),
                Plugin("all", ":Backend", api="attention_backend/2", capabilities=more)]
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
