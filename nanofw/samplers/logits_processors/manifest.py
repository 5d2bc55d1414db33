"""Built-in logits processors."""

from __future__ import annotations

from pydantic import Field

from nanofw.plugins import Options, Plugin, hookimpl


class SuppressTokensOptions(Options):
    """`logits_processors: [{name: suppress_tokens, token_ids: [...]}]`."""

    token_ids: tuple[int, ...] = Field(default=())
    """Tokens that no request draws."""


@hookimpl
def logits_processor() -> Plugin:
    return Plugin(
        "suppress_tokens",
        "nanofw.samplers.logits_processors.suppress_tokens:SuppressTokens",
        api="logits_processor/1",
        options=SuppressTokensOptions,
        capabilities={
            "devices": ("*",),
            "needs_history": "none",
            "tensor_parallel": True,
            "overlap": True,
        },
        summary="tokens that are never drawn, for all requests and for single ones",
    )
