"""What the package offers. Light: torch is imported when a run has chosen one of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from nanofw.plugins import Options, Plugin, hookimpl

CLAIMS = {"devices": ("*",), "tensor_parallel": True, "overlap": True}


class MirostatOptions(Options):
    """`sampler: {name: mirostat, ...}`."""

    tau: Annotated[float, Field(gt=0, le=64)] = 5.0
    """The surprise that a token should have, in bits. Requests may bring their own."""
    eta: Annotated[float, Field(gt=0, le=1)] = 0.1
    """How fast the bound follows what was sampled. Requests may bring their own."""


class XTCOptions(Options):
    """`logits_processors: [{name: xtc, ...}]`."""

    probability: Annotated[float, Field(ge=0, le=1)] = 0.5
    """How often the likely tokens are left out. Requests may bring their own."""
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.1
    """From this probability on a token is likely. Requests may bring their own."""
    stream: Annotated[int, Field(ge=16, le=255)] = 16
    """Of the random numbers; another plugin of the run may take the same."""


@hookimpl
def sampler() -> Plugin:
    return Plugin(
        "mirostat",
        "nanofw_sampling.mirostat:Mirostat",
        api="sampler/2",
        options=MirostatOptions,
        capabilities=CLAIMS,
        checks="nanofw_sampling.checks:MirostatChecks",
        summary="keeps the surprise of the text at a target",
    )


@hookimpl
def logits_processor() -> Plugin:
    return Plugin(
        "xtc",
        "nanofw_sampling.xtc:XTC",
        api="logits_processor/2",
        options=XTCOptions,
        capabilities={**CLAIMS, "needs_history": "none"},
        checks="nanofw_sampling.checks:XTCChecks",
        summary="now and then the most likely tokens are left out",
    )
