from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanofw.assembly import Selection, select
from nanofw.config.load import LoadedConfig
from nanofw.errors import ConfigError, ModelError
from tests.assembly.local_plugins import MACHINE, OPTIONS, machine

Choose = Callable[..., Selection]
Load = Callable[..., LoadedConfig]
Local = Callable[[str], Path]


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
    [
        ({}, "0 3"),
        ({"GOMP_SPINCOUNT": "7"}, "7 3"),
        pytest.param({"OMP_WAIT_POLICY": "active"}, "None 3", marks=pytest.mark.slow),
    ],
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
