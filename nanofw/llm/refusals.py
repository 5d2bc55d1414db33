"""The boundary between a request and the run: whatever goes wrong with a request refuses it.

A prompt that cannot be read or encoded carries its refusal on to `Session.add_prompt`, which sends
it to the caller, as it does for what the engine refuses. `BaseEngine.add_request` is the
boundary of everything after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from nanofw.contracts.requests import SamplingParams
from nanofw.errors import RequestError, refusal_reason
from nanofw.llm.encoding import Encoder
from nanofw.llm.prompts import Prompt, parse_prompt, with_fields
from nanofw.narrowing import is_object

_NOTHING: Mapping[str, object] = {}
_UNREAD = Prompt(sampling=SamplingParams())  # made once: nearly every prompt can be read


def read_prompt(
    value: object,
    sampling: SamplingParams,
    arguments: Mapping[str, object] | None = None,
    fields: Mapping[str, object] = _NOTHING,
) -> Prompt:
    """A prompt as the user gave it; what is wrong with it is its `refusal`.

    Args:
        sampling, arguments: as for `parse_prompt`.
        fields: further keys of a record, where it does not bring them itself.
    """
    return or_refused(
        unread(value, fields), lambda: parse_prompt(with_fields(value, fields), sampling, arguments)
    )


def unread(*values: object) -> Prompt:
    """A prompt that is known by its id alone."""
    known = [request_id for value in values if (request_id := id_of(value)) is not None]
    return replace(_UNREAD, id=known[0]) if known else _UNREAD


def encode_prompt(encoder: Encoder, prompt: Prompt) -> Prompt:
    """The prompt encoded; what is wrong with it is its `refusal`."""
    if prompt.refusal is not None:
        return prompt
    return or_refused(prompt, lambda: encoder.encode(prompt))


def or_refused(prompt: Prompt, read: Callable[[], Prompt]) -> Prompt:
    """What `read` makes of the prompt; the prompt with its refusal where that fails."""
    try:
        return read()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        refusal = RequestError(prompt.id or "", refusal_reason(error))
        refusal.__cause__ = error
        return replace(prompt, refusal=refusal)


def id_of(prompt: object) -> str | None:
    """The id that a prompt brings, before anything else of it is read; None: none is usable."""
    if not is_object(prompt):
        return None
    try:
        request_id = prompt.get("id")
        if isinstance(request_id, bool) or not isinstance(request_id, (str, int)):
            return None
        return str(request_id) or None
    except KeyboardInterrupt:
        raise
    except BaseException:  # a mapping of its own; a number of more digits than Python writes
        return None


def chosen_ids(prompts: Iterable[object]) -> set[str]:
    """The ids that users gave to some of their prompts."""
    return {request_id for prompt in prompts if (request_id := id_of(prompt)) is not None}
