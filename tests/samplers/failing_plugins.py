"""Samplers and logits processors that fail where a request's arguments, or an option, say so."""

from __future__ import annotations

from typing import Any

import torch

from nanofw.plugins import (
    HostProcessor,
    LogitsProcessor,
    Options,
    Plugin,
    SampledTokens,
    Sampler,
    hookimpl,
)


class FailingOptions(Options):
    where: str = ""
    """The method that fails."""
    how: str = "raise"
    """Raise, or the wrong answer that it gives."""


class Failing(LogitsProcessor):
    def __init__(self, options: FailingOptions, config: Any) -> None:
        super().__init__(options, config)
        fail(options, "init")

    def check(self, arguments: Any) -> None:
        if arguments is not None:
            arguments["strength"]

    def add_row(self, new: Any) -> Any:
        fail(self.options, "add_row")
        return 1 if self.options.how == "one" else True

    def apply(self, logits: torch.Tensor, rows: Any, positions: Any) -> Any:
        fail(self.options, "apply")
        return {
            "ten": lambda: logits[:, :10],
            "twice": lambda: torch.cat((logits, logits), dim=1),
            "double": logits.double,
            "list": logits.tolist,
            "nothing": lambda: None,
        }.get(self.options.how, lambda: logits)()

    def sampled(self, rows: Any, token_ids: torch.Tensor) -> None:
        fail(self.options, "sampled")

    def finish(self, request_id: str) -> None:
        fail(self.options, "finish")


class FailingHost(HostProcessor):
    def check(self, arguments: Any) -> None:
        if arguments is not None:
            arguments["strength"]

    def start(self, request_id: str, arguments: Any, prompt: Any) -> bool:
        fail(self.options, "start")
        return True

    def mask(self, request_id: str, bits: Any) -> None:
        fail(self.options, "mask")

    def finish(self, request_id: str) -> None:
        fail(self.options, "finish")


class FailingSampler(Sampler):
    def __init__(self, options: FailingOptions, config: Any) -> None:
        super().__init__(options, config)
        fail(options, "init")

    def check(self, sampling: Any, arguments: Any) -> None:
        if arguments is not None:
            arguments["strength"]

    def edit(self, logits: torch.Tensor, rows: Any, positions: Any) -> torch.Tensor:
        fail(self.options, "edit")
        return logits

    def sample(
        self, logits: Any, rows: Any, positions: Any, *, scaled: bool = False, sharded: bool = False
    ) -> SampledTokens:
        fail(self.options, "sample")
        token_ids = logits.argmax(-1)
        if self.options.how != "long":
            token_ids = token_ids.int()
        if self.options.how == "outside":
            token_ids += 1_000_000
        return SampledTokens(token_ids=token_ids, failed=torch.zeros(len(rows), dtype=torch.bool))


class Nothing:
    def __init__(self, *_: object) -> None: ...


class Abstract(Sampler):
    def smaple(self) -> None: ...


class Misspelt(FailingSampler):
    def remove_rows(self, row: int) -> None: ...


def fail(options: FailingOptions, where: str) -> None:
    if options.where == where and options.how == "raise":
        raise ValueError("oops")


def described(kind: str, name: str, **capabilities: Any) -> Plugin:
    claims = {"devices": ("*",), "overlap": True, **capabilities}
    return Plugin(name, f":{name}", api=f"{kind}/2", options=FailingOptions, capabilities=claims)


@hookimpl
def sampler() -> list[Plugin]:
    names = ("FailingSampler", "Nothing", "Abstract", "Misspelt")
    return [described("sampler", name) for name in names]


@hookimpl
def logits_processor() -> list[Plugin]:
    return [
        described("logits_processor", "Failing", needs_history="device"),
        described("logits_processor", "FailingHost", needs_history="host"),
    ]
