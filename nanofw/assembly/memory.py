"""What a selection will take of memory, as its executor estimates it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanofw.assembly.build import executor_config
from nanofw.assembly.selection import Selection
from nanofw.core.clock import RealClock
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
    component = selection.components["executor"]
    target = component.plugin.capabilities.get("estimate")
    if target is None:
        return None
    what = f"estimate of {component.kind} {component.name!r}{component.origin_text}"
    function = guarded(lambda: load_target(target), what, "import")
    config = executor_config(selection, RealClock())
    return guarded(lambda: function(component.options, config), what, "run", passing=(NanofwError,))
