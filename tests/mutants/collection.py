"""How a module of this folder lists its plugins."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from nanofw.plugins import Options, Plugin

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sample:
    """One plugin.

    Attributes:
        sentence: what is wrong with it, or why it is right.
        claims: its capabilities.
        checks: attributes of the checks that its author sets.
    """

    cls: type
    sentence: str
    options: type[Options] | None
    claims: Mapping[str, Any]
    checks: Mapping[str, Any]

    @property
    def name(self) -> str:
        """`HashOfClient` is the plugin `hash_of_client`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.cls.__name__).lower()


@dataclass(slots=True)
class Collection:
    """The plugins of one module, in the order in which they are written. It decorates them:

        @sample()
        class HashOfClient(Plain):
            ...

    Attributes:
        api: of their contract.
        claims: capabilities of all; a decorator may change single ones.
        fields: what else their descriptors say.
    """

    api: str
    claims: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    samples: list[Sample] = field(default_factory=list[Sample])

    def __call__(
        self,
        options: type[Options] | None = None,
        checks: Mapping[str, Any] = MappingProxyType({}),
        **claims: Any,
    ) -> Callable[[type[T]], type[T]]:
        def add(cls: type[T]) -> type[T]:
            sentence = " ".join((vars(cls)["__doc__"] or "").split())
            self.samples.append(Sample(cls, sentence, options, {**self.claims, **claims}, checks))
            return cls

        return add

    def plugins(self) -> list[Plugin]:
        """Their descriptors, for the module's hook."""
        return [
            Plugin(
                sample.name,
                f":{sample.cls.__name__}",
                api=self.api,
                options=sample.options,
                capabilities=sample.claims,
                summary=sample.sentence,
                **self.fields,
            )
            for sample in self.samples
        ]
