"""Shorter calls of the modules of transformers: at a few rows, a step is mostly Python.

What is left out serves training, hooks and old names of arguments: nothing of it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn

_NEEDLESS = ("transformers.utils.deprecation", "transformers.modeling_layers")
"""Modules whose wrappers of `forward` accept old names of arguments, or recompute in training."""


class PlainConfig:
    """The values of a configuration, read without the checks of its class."""

    def __init__(self, config: Any) -> None:
        self.__dict__.update(vars(config))
        self.__dict__["_attn_implementation"] = config._attn_implementation
        self.__dict__["_whole"] = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_whole"], name)


def shorten_calls(body: nn.Module) -> None:
    """Let the modules below a loaded body be called, and their parts be found, directly.

    A module keeps its class as a base class. Hooks on these modules are no longer called.
    """
    configs: dict[int, PlainConfig] = {}
    modules: list[Any] = [*body.modules()]
    for module in modules:
        if module is body or isinstance(module, nn.ModuleList):
            continue
        for name, part in [*module.named_children(), *module.named_parameters(recurse=False)]:
            module.__dict__.setdefault(name, part)
        if hasattr(module, "layer_idx") and hasattr(module, "config"):
            config = module.config
            module.config = configs.setdefault(id(config), PlainConfig(config))
        if not _has_hooks(module) and "forward" not in module.__dict__:
            module.__class__ = _direct(type(module))


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


@cache
def _direct(kind: type[nn.Module]) -> type[nn.Module]:
    """A class of modules whose call is what computes in `forward`."""
    forward: Callable[..., Any] = kind.forward
    while _is_needless(forward):
        forward = forward.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
    direct = type(kind.__name__, (kind,), {"__module__": kind.__module__})
    direct.forward = direct.__call__ = forward  # pyright: ignore[reportAttributeAccessIssue]
    return direct


def _is_needless(forward: Callable[..., Any]) -> bool:
    home = getattr(forward, "__globals__", {}).get("__name__")
    return home in _NEEDLESS and hasattr(forward, "__wrapped__")
