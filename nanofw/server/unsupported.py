"""Parameters of other servers that are refused, with the reason; their neutral values are taken."""

from __future__ import annotations

from collections.abc import Mapping

from nanofw.errors import near, shown
from nanofw.server.errors import ApiError

_STRUCTURED = "use response_format, or arguments of the logits processor structured"

REFUSED: Mapping[str, tuple[str, tuple[object, ...]]] = {
    "suffix": ("the model continues a prompt, it does not fill a gap", ("",)),
    "best_of": ("use n", (1,)),
    "store": ("nothing is stored", (False,)),
    "metadata": ("nothing is stored", ({},)),
    "service_tier": ("use priority", ("auto", "default")),
    "modalities": ("answers are text alone", (["text"],)),
    "audio": ("answers are text alone", ()),
    "prediction": ("there is no predicted output", ()),
    "web_search_options": ("there is no search", ()),
    "functions": ("use tools", ([],)),
    "function_call": ("use tool_choice", ()),
    "verbosity": ("say it in the messages", ("medium",)),
    "moderation": ("there is no moderation", ()),
    "prompt_cache_key": ("prefixes are always shared; cache_salt keeps them apart", ()),
    "prompt_cache_retention": ("the prefix cache keeps what has room", ()),
    "safety_identifier": ("use user, which is written into the log", ()),
    "use_beam_search": ("there is no beam search", (False,)),
    "length_penalty": ("there is no beam search", (1.0,)),
    "early_stopping": ("there is no beam search", (False,)),
    "truncate_prompt_tokens": ("a prompt is never cut", ()),
    "prompt_logprobs": ("use echo with logprobs on /v1/completions", ()),
    "add_special_tokens": ("give token ids as the prompt", (True,)),
    "spaces_between_special_tokens": ("texts are as the tokenizer writes them", (True,)),
    "allowed_token_ids": ("use arguments of a logits processor", ()),
    "documents": ("use chat_template_kwargs", ()),
    "guided_json": (_STRUCTURED, ()),
    "guided_regex": (_STRUCTURED, ()),
    "guided_choice": (_STRUCTURED, ()),
    "guided_grammar": (_STRUCTURED, ()),
    "structured_outputs": (_STRUCTURED, ()),
    "logits_processors": ("they are chosen in the server's configuration", ()),
    "mm_processor_kwargs": ("prompts are text alone", ()),
    "lora": ("adapters are not supported", ()),
    "deadline": ("use deadline_s, seconds after the arrival", ()),
    "request_id": ("send the header X-Request-Id", ()),
}
"""Name -> reason, and values that say the same as leaving it out; null always does."""


def without_neutral(values: Mapping[str, object]) -> dict[str, object]:
    """The parameters without those that ask for nothing.

    Raises:
        ApiError: one that is not supported.
    """
    kept: dict[str, object] = {}
    for name, value in values.items():
        refused = REFUSED.get(name)
        if refused is None:
            kept[name] = value
        elif value is not None and value not in refused[1]:
            reason = f"{name} {shown(value)} is not supported: {refused[0]}"
            raise ApiError(400, reason, param=name, code="unsupported_parameter")
    return kept


def unknown(name: str, known: list[str]) -> str:
    """What to say of a parameter that nothing knows."""
    hint = near(name, known, count=1)
    return (
        f"unknown parameter {shown(name)}{hint}"
        if hint
        else (f"unknown parameter {shown(name)}; docs/serving.md lists those that there are")
    )
