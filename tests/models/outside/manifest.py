"""A package as an outside author writes it: a family that the core's reader refuses."""

from __future__ import annotations

from nanofw.plugins import Options, Plugin, hookimpl

CAPABILITIES = {"devices": ("*",), "dtypes": ("float32",), "overlap": True}


class OddOptions(Options):
    experts_per_token: int | None = None
    """Experts that a token is given to; null: as `config.json` says."""
    broken: str = ""
    """The method that fails, for tests."""


@hookimpl
def model() -> list[Plugin]:
    return [
        Plugin(
            name,
            "tests.models.outside.odd:OddForCausalLM",
            api="model/2",
            options=OddOptions,
            capabilities=CAPABILITIES,
            spec="tests.models.outside.spec:read",
            architectures=architectures,
        )
        for name, architectures in (("OddForCausalLM", ()), ("odd_for_any", ("*",)))
    ]


@hookimpl
def attention_backend() -> Plugin:
    return Plugin(
        "failing",
        "tests.models.outside.odd:FailingBackend",
        api="attention_backend/2",
        capabilities={**CAPABILITIES, "head_dims": ("*",), "block_sizes": ("*",)},
    )
