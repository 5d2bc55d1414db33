"""The base class of layers."""

from __future__ import annotations

from typing import Any

from torch import nn


class Layer(nn.Module):
    """A module whose parts are ordinary attributes and whose call is `forward`.

    `nn.Module` looks parts up in dictionaries of its own and passes each call through its
    hooks, which takes a tenth of a decode step of a small model on a CPU. Hooks on layers are
    not called.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        self.__dict__.pop(name, None)
        if name in self._parameters or name in self._modules or name in self._buffers:
            super().__delattr__(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)
