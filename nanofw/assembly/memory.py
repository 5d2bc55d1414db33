"""What a selection will take of memory and what it will capture, as its executor says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nanofw.assembly.build import executor_config
from nanofw.assembly.selection import Selection
from nanofw.contracts.clock import RealClock
from nanofw.errors import NanofwError
from nanofw.plugins.descriptor import load_target
from nanofw.plugins.manager import guarded


def memory_estimate(selection: Selection) -> Mapping[str, Any] | None:
    """Bytes and blocks by name, or None when the executor states no estimate.

    An executor states one by the capability `estimate`, the target of a function of its options
    and `ExecutorConfig`; docs/plugins/capabilities.md lists the names. Nothing is loaded.

    Raises:
        PluginError: the executor's function is broken.
    """
    return _ask(selection, "estimate")


def graph_sizes(selection: Selection) -> Sequence[Mapping[str, Any]]:
    """What is captured in CUDA graphs: of each kind `graphs` (a name), `count` and `sizes`.

    An executor says so by the capability `graphs`, like `estimate`; empty where it does not, or
    captures nothing.

    Raises:
        PluginError: the executor's function is broken.
    """
    return _ask(selection, "graphs") or []


def _ask(selection: Selection, capability: str) -> Any:
    """Call the function that the executor states as a capability; None: it states none."""
    component = selection.components["executor"]
    target = component.plugin.capabilities.get(capability)
    if target is None:
        return None
    what = f"{capability} of {component.kind} {component.name!r}{component.origin_text}"
    function = guarded(lambda: load_target(target), what, "import")
    config = executor_config(selection, RealClock())
    return guarded(lambda: function(component.options, config), what, "run", passing=(NanofwError,))
