"""nanofw: an LLM inference framework in which every decision is a plugin.

The public packages are `nanofw`, `nanofw.plugins`, `nanofw.testing`, `nanofw.models.layers`,
`nanofw.kernels`, `nanofw.samplers`, `nanofw.compare` and `nanofw.decisions`. Their public names
are those that their `__all__` lists. Every other module is private.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanofw.contracts.observer import StepObserver
    from nanofw.contracts.requests import Request, SamplingParams
    from nanofw.engine.engine import Engine
    from nanofw.errors import (
        AllocatorError,
        ApiMismatch,
        CapabilityError,
        ConfigError,
        DuplicatePlugin,
        ExecutorError,
        ModelError,
        NanofwError,
        ObserverError,
        PluginError,
        PluginLoadError,
        PolicyError,
        RequestError,
        RequestShed,
        RouterError,
        UnknownPlugin,
    )
    from nanofw.llm.async_llm import AsyncLLM
    from nanofw.llm.beams import Beam, beam_search
    from nanofw.llm.embeddings import EmbeddingResult
    from nanofw.llm.llm import LLM
    from nanofw.llm.results import RequestResult
    from nanofw.llm.scores import ScoreResult

__version__ = "0.1.0"
__all__ = [
    # running a model
    "LLM",
    "AsyncLLM",
    "Beam",
    "EmbeddingResult",
    "Engine",
    "Request",
    "RequestResult",
    "SamplingParams",
    "ScoreResult",
    "StepObserver",
    "beam_search",
    # errors
    "AllocatorError",
    "ApiMismatch",
    "CapabilityError",
    "ConfigError",
    "DuplicatePlugin",
    "ExecutorError",
    "ModelError",
    "NanofwError",
    "ObserverError",
    "PluginError",
    "PluginLoadError",
    "PolicyError",
    "RequestError",
    "RequestShed",
    "RouterError",
    "UnknownPlugin",
    "__version__",
]

_MODULES = {
    "LLM": "nanofw.llm.llm",
    "AsyncLLM": "nanofw.llm.async_llm",
    "Beam": "nanofw.llm.beams",
    "Engine": "nanofw.engine.engine",
    "beam_search": "nanofw.llm.beams",
    "Request": "nanofw.contracts.requests",
    "EmbeddingResult": "nanofw.llm.embeddings",
    "RequestResult": "nanofw.llm.results",
    "SamplingParams": "nanofw.contracts.requests",
    "ScoreResult": "nanofw.llm.scores",
    "StepObserver": "nanofw.contracts.observer",
}
"""Where the public names are defined; those that are not here are errors."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import nanofw` alone imports nothing heavy."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_MODULES.get(name, "nanofw.errors"))
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
