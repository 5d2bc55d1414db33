"""Measuring commands as a user calls them: in processes of their own, with their JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

from tests.spawn import run_python

SMALL = ["kv_allocator.num_blocks=64", "engine.max_model_len=256", "engine.max_num_seqs=4"]
"""A run of the embedded model that is quick to start."""
RECORD: dict[str, Any] = {
    "type": "object",
    "required": ["command", "complete", "options", "results", "provenance"],
    "properties": {
        "complete": {"type": "boolean"},
        "options": {"type": "object"},
        "results": {"type": "array", "items": {"type": "object"}, "minItems": 1},
        "provenance": {
            "type": "object",
            "required": ["date", "arguments", "nanofw", "commit", "python", "packages", "machine",
                         "devices", "nvidia_driver", "config", "components", "facts"],
            "properties": {
                "packages": {"type": "object", "required": ["torch", "numpy"]},
                "devices": {"type": "array", "items": {"required": ["device"]}},
                "config": {"type": "object", "required": ["model", "engine", "sampling"]},
            },
        },
    },
}  # fmt: skip
"""JSON Schema of what `--json` writes."""


def nanofw(*words: str, environment: dict[str, str] | None = None) -> str:
    """Standard output of a command that succeeds, in a terminal of 80 columns."""
    return run_python(
        "-m", "nanofw", *words, environment={"COLUMNS": "80", **(environment or {})}, timeout_s=600
    )


def read_record(path: Path, command: str) -> dict[str, Any]:
    """What a command wrote, held to the schema."""
    record = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(record, RECORD)
    assert record["command"] == command
    return record
