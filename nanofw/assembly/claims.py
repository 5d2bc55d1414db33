"""What components claim on this machine, held against what a run needs, and which block size all
of them accept.

Claims are data: a manifest's upper bound, narrowed by `probe(device, options)` where the target's
module has one. Absent means not claimed. See docs/plugins/capabilities.md.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from nanofw.assembly.explanation import Choice
from nanofw.assembly.reasons import problems
from nanofw.errors import PluginError, PluginLoadError, shown
from nanofw.narrowing import Claims, JsonObject
from nanofw.plugins import Component
from nanofw.plugins.capabilities import (
    CAPABILITIES,
    FEW_LONG_ROWS,
    LONG_CONTEXT,
    Needs,
    capability_problems,
)
from nanofw.plugins.checks import missing_requirements
from nanofw.plugins.component import guarded
from nanofw.plugins.value_types import ANY

PREFERRED_BLOCK_SIZE = 16
"""When every component takes any block size."""


def probe(component: Component, device: str) -> Claims | str:
    """The claims, narrowed to this machine; or why the component cannot be used here.

    Imports the component's module. Raises `PluginLoadError` with its traceback when that fails.
    """
    claims = component.plugin.capabilities
    target = guarded(component.load, component.label, "import")
    function = getattr(sys.modules.get(getattr(target, "__module__", "")), "probe", None)
    if function is None:
        return claims
    answer: Any = guarded(
        lambda: function(device, component.options), component.label, "probe this machine"
    )
    if isinstance(answer, str):
        return answer
    checked = guarded(lambda: _checked(answer), component.label, "probe this machine")
    return {**claims, **narrowed(claims, checked)}


def _checked(answer: Any) -> Claims:
    """The answer of a probe. Raises `PluginError` when it is not one."""
    if not isinstance(answer, Mapping):
        raise PluginError(f"probe returned {shown(answer)}, not a mapping of claims or a reason")
    claims = cast("Claims", answer)
    if problems := capability_problems(claims):
        raise PluginError(f"probe returned claims that cannot be: {'; '.join(problems)}")
    return claims


def narrowed(claims: Claims, answer: Claims) -> JsonObject:
    """The answer of a probe, never more than the manifest claims."""
    result: JsonObject = {}
    for key, value in answer.items():
        bound = claims.get(key)
        if isinstance(value, bool) or not isinstance(value, Collection) or isinstance(value, str):
            result[key] = value and bound if isinstance(value, bool) else value
        elif isinstance(bound, Collection):
            items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
            result[key] = tuple(item for item in items if ANY in bound or item in bound)
    return result


def faster_for_few_long_rows(candidates: Sequence[Component], needs: Needs) -> Component | None:
    """The first that fits and claims that few rows of long contexts are its strength."""
    if needs.max_model_len < LONG_CONTEXT:
        return None
    for component in candidates:
        at_most = component.plugin.capabilities.get(FEW_LONG_ROWS, 0)
        if needs.max_num_seqs > at_most or reasons_against(component, needs):
            continue
        claims = probe(component, needs.device)
        if not isinstance(claims, str) and needs.max_num_seqs <= claims.get(FEW_LONG_ROWS, 0):
            return component
    return None


def reasons_against(component: Component, needs: Needs) -> list[str]:
    """Every reason why `auto` passes a candidate over."""
    if missing := missing_requirements(component.plugin):
        return missing
    try:
        claims = probe(component, needs.device)
    except PluginLoadError as error:
        return [str(error).splitlines()[0]]
    return [claims] if isinstance(claims, str) else problems(component, claims, needs)


def common_block_size(choices: Sequence[Choice]) -> int | str:
    """The first block size that all accept, in the backend's order; or why no size fits."""
    kinds = CAPABILITIES["block_sizes"].kinds
    claimed = [
        (choice, tuple(choice.claims["block_sizes"]))
        for choice in choices
        if choice.kind in kinds and choice.claims.get("block_sizes")
    ]
    bound = [(choice, sizes) for choice, sizes in claimed if ANY not in sizes]
    if not bound:
        preferred = [size for _, sizes in claimed for size in sizes if size != ANY]
        return int(preferred[0]) if preferred else PREFERRED_BLOCK_SIZE
    _, candidates = min(bound, key=lambda item: kinds.index(item[0].kind))
    for size in candidates:
        if all(size in sizes for _, sizes in bound):
            return int(size)
    listed = "; ".join(f"{choice.label}: {', '.join(map(str, sizes))}" for choice, sizes in bound)
    return f"no block size suits all: {listed}"
