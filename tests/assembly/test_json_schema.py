from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from nanofw.assembly import json_schema
from nanofw.config.layers import PRESETS
from nanofw.config.load import load_config
from nanofw.plugins import build_registry
from tests.plugins.packages import manifest, write_dist_info


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json_schema(build_registry(environ={"NANOFW_PLUGINS": ""}))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def errors(validator: Any, text: str) -> list[str]:
    return [error.json_path for error in validator.iter_errors(yaml.safe_load(text))]


@pytest.mark.parametrize("preset", sorted(PRESETS.glob("*.yaml")), ids=lambda path: path.stem)
def test_presets_keep_the_schema(validator: Any, preset: Any) -> None:
    assert errors(validator, preset.read_text(encoding="utf-8")) == []


def test_the_whole_default_configuration_keeps_the_schema(validator: Any) -> None:
    assert list(validator.iter_errors(load_config().values.data)) == []


@pytest.mark.parametrize(
    "text",
    [
        "scheduler: {name: fcfs, watermark: 0.1}",
        "scheduler: {name: 'nanofw:fcfs'}",
        "scheduler: {watermark: 0.1}",
        "executor: {name: sim, cost_model: {name: roofline, device: h100}}",
        "engine: {seed: '${oc.env:SEED}', chunk_tokens: null}",
        "attention_backend: {name: auto}",
        "base: [a.yaml, sim]",
    ],
)
def test_what_loads_keeps_the_schema(validator: Any, text: str) -> None:
    assert errors(validator, text) == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("scheduler: {name: fcfs, watermrk: 0.1}", "$.scheduler"),
        ("scheduler: {name: sjf}", "$.scheduler"),
        ("engine: {seed: twelve}", "$.engine"),
        ("engin: {}", "$"),
    ],
)
def test_what_does_not_load_breaks_it(validator: Any, text: str, path: str) -> None:
    assert errors(validator, text) == [path]


def test_a_broken_plugin_is_left_out_and_said(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    points = {"scheduler.bad": "schema_bad", "scheduler.good": "schema_good"}
    write_dist_info(tmp_path, "outside", "1.0", points)
    (tmp_path / "schema_bad.py").write_text("raise ImportError('no')", encoding="utf-8")
    (tmp_path / "schema_good.py").write_text(manifest("good"), encoding="utf-8")
    schema = json_schema(build_registry(environ={"NANOFW_PLUGINS": "outside"}))
    assert "scheduler 'bad' of outside 1.0 failed to import" in str(schema["$comment"])
    assert errors(jsonschema.Draft202012Validator(schema), "scheduler: {name: good}") == []
