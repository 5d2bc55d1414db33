"""What an object keeps alive, for checks that nothing only grows."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def reachable_bytes(root: object) -> int:
    """Bytes of all objects that one keeps alive; code is left out."""
    return sum(sys.getsizeof(item) for item in _reachable(root))


def _reachable(root: object) -> Iterator[object]:
    seen: set[int] = set()
    stack = [root]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, _CODE):
            continue
        seen.add(id(item))
        yield item
        stack += gc.get_referents(item)
