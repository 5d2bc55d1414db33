"""`nanofw doctor MODEL`: what a checkpoint is, what it takes, and what of it is not supported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nanofw.cli import ExitCode
from nanofw.cli.tables import console, print_json, readable_bytes, table
from nanofw.narrowing import JsonObject

if TYPE_CHECKING:
    from nanofw.assembly import Selection
    from nanofw.contracts.model_spec import ModelSpec

_LONG_CONTEXT = 4096


def main(model: str, settings: Sequence[str], *, as_json: bool) -> int:
    """Describe the model; exit code 1 where it cannot run here, with the reason.

    Args:
        model: as `model.path` has it.
        settings: more `key=value` pairs.
    """
    report = describe(model, settings)
    if as_json:
        print_json(report)
    else:
        _print(report)
    return ExitCode.OK if report["runs"] else ExitCode.BAD_RESULT


def describe(model: str, settings: Sequence[str] = ()) -> dict[str, object]:
    """What there is to say: `runs`, then `facts`, `backends`, `notes`, or the `reason`."""
    from nanofw.assembly import memory_estimate, select
    from nanofw.config.load import DEFAULT_PRESET, load_config
    from nanofw.errors import NanofwError

    words = [f"model.path={model}", *settings]
    try:
        selection = select(load_config(DEFAULT_PRESET, words))
        memory = memory_estimate(selection) or {}
    except NanofwError as error:
        return {"model": model, "runs": False, "reason": str(error)} | _elsewhere(words)
    return {
        "model": model,
        "runs": "problem" not in memory,
        **({"reason": memory["problem"]} if "problem" in memory else {}),
        "facts": _facts(selection, memory),
        "backends": _backends(selection),
        "notes": list(selection.spec.notes),
    }


def _elsewhere(words: Sequence[str]) -> dict[str, object]:
    """Whether transformers could run what nanofw itself cannot."""
    from nanofw.assembly import select
    from nanofw.config.load import DEFAULT_PRESET, load_config
    from nanofw.errors import NanofwError

    if any(word.startswith("model.name=") for word in words):
        return {}
    try:
        selection = select(load_config(DEFAULT_PRESET, [*words, "model.name=transformers"]))
    except NanofwError as error:
        return {"through_transformers": str(error)}
    return {"through_transformers": True, "facts": _facts(selection, {})}


def _facts(selection: Selection, memory: Any) -> JsonObject:
    spec, chosen = selection.spec, selection.components["model"]
    facts: JsonObject = {
        "architecture": spec.architecture,
        "run by": f"model {chosen.name} ({chosen.plugin.summary})",
        "parameters": f"{spec.num_parameters:,} in matrices",
        "weights": f"{readable_bytes(spec.weight_bytes)} in {spec.dtype}",
        "KV of a token": readable_bytes(spec.kv_bytes_per_token),
        f"KV of {_LONG_CONTEXT:,} tokens": readable_bytes(_LONG_CONTEXT * spec.kv_bytes_per_token),
        "layers": f"{spec.num_layers} of {spec.hidden_size}, {spec.intermediate_size} inside",
        "heads": f"{spec.num_heads}, {spec.num_kv_heads} for keys and values, of {spec.head_dim}",
        "vocabulary": f"{spec.vocab_size:,}{', tied' if spec.tie_word_embeddings else ''}",
        "positions": _positions(spec),
        "rope": _rope(spec),
        "windows": _windows(spec),
        "scores": "" if spec.soft_cap is None else f"bounded by {spec.soft_cap:g}",
        "keys that count": _keys(spec),
        "ends with": ", ".join(map(str, spec.eos_token_ids)) or "nothing",
        "device": selection.device,
        "attention": selection.components["attention_backend"].name,
    }
    if "num_kv_tokens" in memory:
        facts["room now"] = f"{memory['num_kv_tokens']:,} tokens of KV beside the weights"
    return {key: value for key, value in facts.items() if value}


def _keys(spec: ModelSpec) -> str:
    """What of `config.json` has a meaning; empty where a plugin reads it in its own way."""
    from nanofw.checkpoints.families import FAMILIES

    family = FAMILIES.get(spec.architecture)
    return "" if family is None else ", ".join(family.known_keys(spec.raw))


def _positions(spec: ModelSpec) -> str:
    served, most = spec.default_model_len, spec.max_model_len
    longer = f"; engine.max_model_len reaches {most:,}" if most > served else ""
    return f"{served:,}{longer}"


def _rope(spec: ModelSpec) -> str:
    if not spec.rope:
        return "the model's own"
    still = sum(rope is None for rope in spec.layer_ropes)
    kinds = sorted({rope["rope_type"] for rope in (spec.rope, *spec.layer_ropes) if rope})
    more = f", none in {still} layers" if still else ""
    part = f", {spec.rope['partial_rotary_factor']:g} of each head" if spec.rotates_partly else ""
    return f"{' and '.join(kinds)}{part}{more}"


def _windows(spec: ModelSpec) -> str:
    windows = [window for window in spec.sliding_windows if window is not None]
    sizes = " and ".join(f"{window:,}" for window in sorted(set(windows)))
    return f"{sizes} tokens in {len(windows)} layers" if windows else ""


def _backends(selection: Selection) -> list[dict[str, str]]:
    """The chosen attention backend, and why others were passed over."""
    choice = selection.explanation.choice("attention_backend")
    if choice is None:
        return []
    others = [{"name": name, "reason": reason} for name, reason in choice.passed_over]
    return [{"name": choice.name, "reason": ""}, *others]


def _print(report: JsonObject) -> None:
    out = console()
    title = report["model"] if report["runs"] else f"{report['model']} cannot run here"
    if "reason" in report:
        out.print(f"{title}: {report['reason']}")
    through = report.get("through_transformers")
    if through is True:
        out.print("through transformers it can: model.name=transformers")
    elif through is not None:
        out.print(f"nor through transformers: {through}")
    if "facts" in report:
        out.print(table(report["model"], ("fact", "value"), _rows(report["facts"].items())))
    passed = [(item["name"], item["reason"]) for item in report.get("backends", ())]
    if passed:
        out.print(table("attention backends", ("backend", "passed over because"), passed))
    for note in report.get("notes", ()):
        out.print(f"note: {note}")


def _rows(items: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    return [(key, str(value)) for key, value in items]
