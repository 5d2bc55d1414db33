"""Whether a model of transformers does what paged attention needs, found by a trial of few tokens.

The attention only notes what it is given. Each layer must attend once, with the shapes, windows and
bounds that the backend was built for; and what a token gives to the attention may depend on its id
and its position alone, not on what else is in the pass. Convolutions, states and positions that a
model counts itself are found so.
"""

from __future__ import annotations

import torch
from torch import nn

from nanofw.contracts.model_spec import ModelSpec
from nanofw.errors import ModelError
from nanofw.models.any_decoder.attention import AttentionCall, AttentionPass

_LENGTH, _LATE = 8, 5
_BOUNDS = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.3}
_UNKNOWN = ("position_bias", "s_aux", "attention_bias", "alibi", "head_mask", "sinks")
"""Arguments of an attention function that change the scores in ways that no backend knows."""


@torch.inference_mode()
def check_loaded(
    body: nn.Module, state: AttentionPass, spec: ModelSpec, device: torch.device
) -> torch.Tensor:
    """The hidden states [t, hidden] of a few tokens, whose attention gave zeros.

    Raises:
        ModelError: the reason why paged attention cannot serve this model.
    """
    tokens = torch.arange(_LENGTH, device=device) * 7 % spec.vocab_size
    positions = torch.arange(_LENGTH, device=device)
    try:
        whole, states = _run(body, state, tokens, positions)
    except (RuntimeError, ValueError) as error:
        line = str(error).strip().partition("\n")[0]
        raise _refusal(body, spec, f"transformers cannot compute eight tokens ({line})") from error
    reason = _wrong_calls(whole, spec, state)
    if reason is None:
        late, late_states = _run(body, state, tokens[_LATE:], positions[_LATE:])
        reason = _dependence(whole, late, states[_LATE:], late_states)
    if reason is not None:
        raise _refusal(body, spec, reason)
    return states


def _refusal(body: nn.Module, spec: ModelSpec, reason: str) -> ModelError:
    name = type(body).__name__
    return ModelError(f"{spec.path}: {name}: {reason}; model.name: transformers cannot run it")


def _run(
    body: nn.Module, state: AttentionPass, tokens: torch.Tensor, positions: torch.Tensor
) -> tuple[dict[int, list[AttentionCall]], torch.Tensor]:
    """The calls of each layer, and the last hidden states [t, hidden]."""
    state.calls = {}
    try:
        output = body(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
        return state.calls, output.last_hidden_state[0]
    finally:
        state.calls = None


def _wrong_calls(
    calls: dict[int, list[AttentionCall]], spec: ModelSpec, state: AttentionPass
) -> str | None:
    if sorted(calls) != list(range(spec.num_layers)):
        return f"of {spec.num_layers} layers, {len(calls)} call the attention function"
    for layer, found in calls.items():
        if len(found) > 1:
            return f"layer {layer} attends {len(found)} times"
        if reason := _wrong_call(found[0], layer, spec, state):
            return f"layer {layer} {reason}"
    return None


def _wrong_call(
    call: AttentionCall, layer: int, spec: ModelSpec, state: AttentionPass
) -> str | None:
    heads, kv_heads, size = spec.num_heads, spec.num_kv_heads, spec.head_dim
    if call.query.shape[1] == state.num_heads:  # only those of this rank
        heads, kv_heads = state.num_heads, kv_heads // state.ranks.size
    if call.query.shape[1:] != (heads, size) or call.key.shape[1:] != (kv_heads, size):
        return (
            f"has queries of {_shape(call.query)} and keys of {_shape(call.key)}, where "
            f"config.json says {heads} x {size} and {kv_heads} x {size}"
        )
    if call.value.shape[1] != kv_heads or call.value.shape[2] > size:
        return f"has values of {_shape(call.value)}, and keys of {kv_heads} x {size}"
    given = call.arguments
    window = spec.sliding_windows[layer] if spec.sliding_windows else None
    if given.get("sliding_window") != window:
        return f"has a window of {given.get('sliding_window')}, where config.json says {window}"
    if given.get("softcap") != spec.soft_cap:
        return (
            f"bounds its scores by {given.get('softcap')}, where config.json says {spec.soft_cap}"
        )
    if given["attention_mask"] is not None or given["positional"]:
        return "brings a mask of its own"
    if getattr(given["module"], "is_causal", True) is False:
        return "sees tokens that come later"
    odd = [name for name in _UNKNOWN if given.get(name) is not None]
    return f"asks for {', '.join(odd)}, which attention backends do not have" if odd else None


def _shape(tensor: torch.Tensor) -> str:
    return " x ".join(map(str, tensor.shape[1:]))


def _dependence(
    whole: dict[int, list[AttentionCall]],
    late: dict[int, list[AttentionCall]],
    states: torch.Tensor,
    late_states: torch.Tensor,
) -> str | None:
    """Where tokens depend on others beside the attention; None: nowhere."""
    pairs: list[tuple[str, object, object]] = [
        (f"layer {layer}", getattr(whole[layer][0], part)[_LATE:], getattr(late[layer][0], part))
        for layer in sorted(whole)
        for part in ("query", "key", "value")
    ]
    for where, one, other in [*pairs, ("the last norm", states, late_states)]:
        difference = (one.float() - other.float()).flatten(1).norm(dim=1)
        size = one.float().flatten(1).norm(dim=1).clamp_min(1e-6)
        if not bool((difference <= _BOUNDS[one.dtype] * size).all()):
            return (
                f"up to {where}, what a token becomes depends on other tokens in other ways than "
                "by attention, or its position is not the one that it was given"
            )
    return None
