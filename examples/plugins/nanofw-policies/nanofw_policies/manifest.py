"""What the package offers. Light: a policy is imported when a run has chosen it."""

from __future__ import annotations

from nanofw.plugins import Plugin, hookimpl

POLICIES = {
    "weighted_vtc": ("WeightedVTC", "equal service per client by virtual token counters"),
    "fast_serve": ("FastServe", "skip-join multilevel feedback queue, with pausing"),
    "sarathi": ("Sarathi", "a token budget per step that decodes never exceed"),
    "andes": ("Andes", "quality of experience: serve the reader who gains most"),
    "slo_admission": ("SLOAdmission", "refuse what would miss its time to first token"),
    "token_rate": ("TokenRate", "a token bucket per client"),
    "prefix_batching": ("PrefixBatching", "requests with an equal prefix run side by side"),
}


@hookimpl
def scheduler() -> list[Plugin]:
    return [
        Plugin(
            name,
            f"nanofw_policies.{name}:{cls}",
            api="scheduler/2",
            options=f"nanofw_policies.{name}:{cls}Options",
            capabilities={"overlap": True},
            summary=summary,
        )
        for name, (cls, summary) in POLICIES.items()
    ]
