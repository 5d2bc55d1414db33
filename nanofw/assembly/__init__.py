"""From a configuration to an engine: choose, check, explain, build.

`select` decides everything and builds nothing; `build` makes the engine of a selection.
"""

from __future__ import annotations

from nanofw.assembly.build import (
    DowngradeWarning,
    PluginSettingWarning,
    assemble,
    build,
    build_on,
    build_workload,
    chosen_workload,
    graph_sizes,
    memory_estimate,
)
from nanofw.assembly.checking import check, settle_options
from nanofw.assembly.explanation import Choice, Explanation, Feature
from nanofw.assembly.json_schema import json_schema
from nanofw.assembly.model_source import locate, read_spec
from nanofw.assembly.selection import Selection, registry_for, select

__all__ = [
    "Choice",
    "DowngradeWarning",
    "Explanation",
    "Feature",
    "PluginSettingWarning",
    "Selection",
    "assemble",
    "build",
    "build_on",
    "build_workload",
    "chosen_workload",
    "check",
    "graph_sizes",
    "json_schema",
    "locate",
    "memory_estimate",
    "read_spec",
    "registry_for",
    "select",
    "settle_options",
]
