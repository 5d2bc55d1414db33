"""Built-in logits processors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nanofw.plugins import Options, Plugin, hookimpl


class SuppressTokensOptions(Options):
    """`logits_processors: [{name: suppress_tokens, token_ids: [...]}]`."""

    token_ids: tuple[int, ...] = Field(default=())
    """Tokens that are never sampled."""


class StructuredOptions(Options):
    """`logits_processors: [{name: structured, ...}]`."""

    default: dict[str, object] | None = None
    """What requests without an argument `structured` must match: a mapping with one of
    json_schema, regex, choice, lark."""
    json_whitespace: Literal["none", "space", "any"] = "space"
    """Between the parts of a JSON text: nothing, at most one space, or any whitespace (a model may
    then write whitespace without end)."""
    max_cached_grammars: int = Field(default=128, ge=1)
    """Compiled grammars to keep for later requests."""
    num_threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads that compute masks; null: three quarters of the cores, at most 16."""
    max_lexer_states: int = Field(default=250_000, ge=16)
    """Most states that a request's lexer may have, 1 to 2 kB each; a request that needs more
    ends with an error."""
    compile_timeout_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """The longest time that the compilation of a grammar may take. If it takes longer, the request
    is refused. A request waits until its grammar is compiled."""


@hookimpl
def logits_processor() -> list[Plugin]:
    return [
        Plugin(
            "suppress_tokens",
            "nanofw.samplers.logits_processors.suppress_tokens:SuppressTokens",
            api="logits_processor/2",
            options=SuppressTokensOptions,
            capabilities={
                "devices": ("*",),
                "needs_history": "none",
                "tensor_parallel": True,
                "overlap": True,
            },
            summary="tokens that are never drawn, for all requests and for single ones",
        ),
        Plugin(
            "structured",
            "nanofw.samplers.logits_processors.structured:Structured",
            api="logits_processor/2",
            options=StructuredOptions,
            capabilities={
                "devices": ("*",),
                "needs_history": "host",
                "tensor_parallel": True,
                "overlap": True,
                "cuda_graph": True,
            },
            requires=("llguidance>=1.9",),
            summary="outputs that match a JSON schema, a regex, a list of choices or a grammar",
        ),
    ]
