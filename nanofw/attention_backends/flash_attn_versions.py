"""Which FlashAttention is installed, and what that build can do. No kernel is touched here."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

INSTALL = (
    "pip install 'nanofw[fa3]' (Hopper), or flash-attn (Ampere and later), "
    "or flash-attn-4 (Hopper, Blackwell)"
)
MODULES = {2: "flash_attn", 3: "flash_attn_interface", 4: "flash_attn.cute"}
# The versions that run on a card of this major compute capability, the fastest first.
VERSIONS_BY_CARD: dict[int, tuple[int, ...]] = {
    8: (2,),
    9: (3, 2, 4),
    10: (4, 2),
    11: (4,),
    12: (2,),
}
HEAD_DIMS = (64, 80, 96, 112, 128, 160, 192, 224, 256)


@dataclass(frozen=True, slots=True)
class FlashVersion:
    """A FlashAttention that was found.

    Attributes:
        number: 2, 3 or 4.
        module: imported.
        limits: what this build cannot do is taken off here, in the words of a manifest.
    """

    number: int
    module: ModuleType
    limits: Mapping[str, object]

    def __str__(self) -> str:
        version = getattr(self.module, "__version__", None)
        return f"FlashAttention-{self.number}" + (f" ({version})" if version else "")


def find_version(capability: tuple[int, int], wanted: int | None) -> FlashVersion | str:
    """The best FlashAttention for a card of this compute capability, or why no version fits.

    Args:
        wanted: 2, 3 or 4 where the user insists; None: the best that is installed.
    """
    card = f"compute capability {capability[0]}.{capability[1]}"
    order = VERSIONS_BY_CARD.get(capability[0], ())
    if not order:
        return f"no FlashAttention supports {card}"
    if wanted is not None and wanted not in order:
        return f"FlashAttention-{wanted} does not support {card}; it takes {_numbers(order)}"
    reasons = []
    for number in order if wanted is None else (wanted,):
        found = _load(number)
        if isinstance(found, FlashVersion):
            return found
        reasons.append(found)
    return "; ".join(reasons) + f": {INSTALL}"


def _numbers(order: tuple[int, ...]) -> str:
    return " or ".join(f"FlashAttention-{n}" for n in order)


def _load(number: int) -> FlashVersion | str:
    name = MODULES[number]
    try:
        if importlib.util.find_spec(name) is None:
            return f"FlashAttention-{number} is not installed"
        module = importlib.import_module(name)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and name.startswith(str(error.name)):
            return f"FlashAttention-{number} is not installed"
        return f"FlashAttention-{number} is installed but fails to import ({error})"
    missing = _missing_feature(number, module)
    if missing:
        return f"FlashAttention-{number} {missing}"
    return FlashVersion(number, module, _LIMITS[number]())


def _missing_feature(number: int, module: ModuleType) -> str | None:
    """Why the build is of no use, or None."""
    if number == 3 and _build_flags().get("FLASHATTENTION_DISABLE_PAGEDKV"):
        return "was built without paged KV"
    functions = {
        2: ("flash_attn_with_kvcache", "flash_attn_varlen_func"),
        3: ("flash_attn_with_kvcache", "get_scheduler_metadata"),
        4: ("flash_attn_varlen_func",),
    }[number]
    absent = [name for name in functions if not hasattr(module, name)]
    return f"has no {' and no '.join(absent)}" if absent else None


def _build_flags() -> Mapping[str, object]:
    """How FlashAttention-3 was built; empty where the wheel does not say."""
    try:
        return importlib.import_module("flash_attn_config").CONFIG["build_flags"]
    except (ImportError, AttributeError, KeyError):
        return {}


def _limits_3() -> dict[str, object]:
    flags = _build_flags()
    sizes = [d for d in (64, 96, 128, 192, 256) if not flags.get(f"FLASHATTENTION_DISABLE_HDIM{d}")]
    largest = max(sizes, default=0)
    limits: dict[str, object] = {
        # Larger pages are loaded whole: what a failed request left past the context, NaN say,
        # reaches the output.
        "block_sizes": (64, 32, 16, 8, 4, 2, 1),
        # A head size that was not built takes the next larger kernel.
        "head_dims": tuple(d for d in HEAD_DIMS if d <= largest),
        "dtypes": ("bfloat16",)
        if flags.get("FLASHATTENTION_DISABLE_FP16")
        else ("bfloat16", "float16"),
    }
    if flags.get("FLASHATTENTION_DISABLE_LOCAL"):
        limits["sliding_window"] = False
    if flags.get("FLASHATTENTION_DISABLE_SOFTCAP"):
        limits["soft_cap"] = False
    return limits


def _limits_2() -> dict[str, object]:
    return {"block_sizes": (256,)}


def _limits_4() -> dict[str, object]:
    # Pages that are one key tile of the kernel; not captured so far, nor run with capped scores.
    return {
        "block_sizes": (128,),
        "head_dims": (64, 96, 128),
        "cuda_graph": False,
        "cuda_graph_prefill": False,
        "soft_cap": False,
    }


_LIMITS = {2: _limits_2, 3: _limits_3, 4: _limits_4}
