"""nanofw: an LLM inference framework in which every decision is a plugin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanofw.contracts.requests import SamplingParams
    from nanofw.engine.engine import Engine
    from nanofw.llm.async_llm import AsyncLLM
    from nanofw.llm.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "Engine", "SamplingParams", "__version__"]

_LAZY = {
    "LLM": "nanofw.llm.llm",
    "AsyncLLM": "nanofw.llm.async_llm",
    "SamplingParams": "nanofw.contracts.requests",
    "Engine": "nanofw.engine.engine",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import nanofw` alone imports nothing heavy."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
