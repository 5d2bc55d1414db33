"""A story as sentences and as a line of time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nanofw.decisions.log import DecisionLog, Life, shown_id
from nanofw.decisions.records import token_ids
from nanofw.decisions.story import IN_PROGRESS, Ran, Story, Waited
from nanofw.engine.journal import Blocker
from nanofw.engine.request_state import SAMPLE_SEPARATOR

REASONS: dict[str, str] = {
    IN_PROGRESS: "for the end of a step",
    Blocker.ROW: "for a row (all were taken)",
    Blocker.BUDGET: "for the step's budget of tokens",
    Blocker.BLOCKS: "for KV blocks",
    Blocker.PREFILL: "for prompts in the middle of their prefill",
    Blocker.POLICY: "because the policy admitted no request",
}
MAX_NAMES = 8
WIDTH = 60
LEGEND = "w waits, p computes its prompt, d generates, ~ waits after a preemption"


def lines(log: DecisionLog, story: Story) -> Iterator[str]:
    """The story, a line for each event, with seconds since the log's first arrival."""
    life, start = story.life, log.start
    yield _title(life)
    for seconds, text in _events(log, story):
        yield f"{seconds - start:12.6f} s  {text}"
    yield ""
    yield from timeline(story, start)


def names(ids: Sequence[str]) -> str:
    """`a, b and 3 more`."""
    shown = [shown_id(name) for name in ids[:MAX_NAMES]]
    more = len(ids) - len(shown)
    if more:
        return f"{', '.join(shown)} and {more} more"
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else "".join(shown)


def _title(life: Life) -> str:
    request = life.request
    num_prompt = len(token_ids(request.prompt))
    parts = [f"{num_prompt:,} prompt tokens"]
    if (most := request.sampling.get("max_tokens", 16)) is not None:
        parts.append(f"at most {most:,} tokens of output")
    if request.client:
        parts.append(f"client {request.client}")
    if request.priority:
        parts.append(f"priority {request.priority}")
    return f"request {shown_id(life.id)}: {', '.join(parts)}"


def _events(log: DecisionLog, story: Story) -> Iterator[tuple[float, str]]:
    life = story.life
    first = story.parts[0] if story.parts else None
    if SAMPLE_SEPARATOR not in life.id:
        crowd = ""
        if isinstance(first, Waited):
            crowd = f"; {first.num_waiting} requests waited and {first.num_running} ran"
        yield life.arrival, f"arrived{crowd}"
    if life.request.refused is not None:
        yield life.request.now, f"was refused: {life.request.refused}"
        return
    num_stays = 0
    for part in story.parts:
        if isinstance(part, Waited):
            is_admitted = num_stays < len(life.stays)
            call = life.stays[num_stays].began if is_admitted else len(log.calls)
            for text in _waited(log, life, part, call):
                yield part.began, text
        else:
            yield from _ran(log, life, part, life.stays[num_stays].ended)
            num_stays += 1
    done = life.finished
    if done is None:
        yield log.calls[-1].planned if log.calls else life.arrival, "had not finished at the end"
        return
    error = f": {done.error}" if done.error else ""
    yield (
        done.finished,
        f"finished with {len(token_ids(done.tokens)):,} tokens ({done.reason}){error}",
    )


def _waited(log: DecisionLog, life: Life, part: Waited, call: int) -> Iterator[str]:
    total = sum(part.seconds.values())
    if not part.steps:
        return
    reasons = [
        f"{_seconds(seconds)} {REASONS.get(reason, reason)}{_steps(part.steps[reason])}"
        for reason, seconds in sorted(part.seconds.items(), key=lambda item: -item[1])
    ]
    again = " again" if part.after_preemption else ""
    yield f"waited{again} {_seconds(total)}: {'; '.join(reasons)}"
    if part.heads:
        yield f"  at the head of the queue meanwhile: {names(part.heads)}"
    earlier, later = _split(log, life, part.served_before)
    if earlier:
        yield f"  served before it, came earlier: {names(earlier)}"
    if later:
        keys = _keys(log, life, later, call)
        yield f"  served before it though they came later: {names(later)}{keys}"


def _split(log: DecisionLog, life: Life, ids: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those that came earlier, and later."""
    unique = list(dict.fromkeys(ids))
    earlier = [name for name in unique if log.lives[name].arrival <= life.arrival]
    return earlier, [name for name in unique if name not in set(earlier)]


def _keys(log: DecisionLog, life: Life, others: Sequence[str], call: int) -> str:
    """The keys of the first of the others and of the request."""
    other = log.lives[others[0]]
    mine = life.key_at(call)
    theirs = other.key_at(other.stays[0].began) if other.stays else None
    if mine is None or theirs is None:
        return ""
    name = shown_id(other.id)
    if mine.group != theirs.group:
        return f" ({name} is of group {key_text(theirs.group)}, this one of {key_text(mine.group)})"
    return f" (key {key_text(theirs.key)} of {name}, {key_text(mine.key)} of this one)"


def key_text(key: object) -> str:
    """A key or group, short."""
    if isinstance(key, float):
        return f"{key:.6g}"
    if isinstance(key, list):
        parts: list[object] = key  # pyright: ignore[reportUnknownVariableType]
        return f"({', '.join(key_text(part) for part in parts)})"
    return str(key)


def _ran(log: DecisionLog, life: Life, part: Ran, ended: int | None) -> Iterator[tuple[float, str]]:
    hits = f", {part.num_cached:,} tokens were found in the cache" if part.num_cached else ""
    yield part.began, f"got a row in step {part.step}{hits}"
    done = life.finished
    if done is not None and done.first_token is not None:
        is_here = part.began <= done.first_token and (
            part.ended is None or done.first_token <= part.ended
        )
        if is_here:
            ttft = _seconds(done.first_token - life.arrival)
            yield done.first_token, f"first token ({ttft} after arrival)"
    if part.was_preempted and part.ended is not None and ended is not None:
        yield part.ended, f"was preempted{_needed(log, life, part, ended)}"


def _needed(log: DecisionLog, life: Life, part: Ran, call: int) -> str:
    others = [name for name in part.needed_by if name != life.id]
    if len(part.needed_by) == 1 and others and log.lives[others[0]].waits_at(call):
        other = log.lives[others[0]]
        mine, theirs = life.key_at(call - 1), other.key_at(call)
        keys = ""
        if mine is not None and theirs is not None:
            keys = f", whose key is smaller ({key_text(theirs.key)} against {key_text(mine.key)})"
        return f" for {shown_id(other.id)}{keys}"
    if not others:
        return ": the pool was short of blocks, and it was one that needed another"
    return f": the pool was short of blocks, of which {names(others)} needed one each"


def timeline(story: Story, start: float) -> Iterator[str]:
    """One line of time from arrival to end, and what its letters mean."""
    parts = story.parts
    begin = story.life.arrival
    end = max((part.ended or part.began for part in parts), default=begin)
    if end <= begin:
        return
    letters = ["w"] * WIDTH
    for part in parts:
        stop = end if part.ended is None else part.ended
        if isinstance(part, Waited):
            _fill(letters, "~" if part.after_preemption else "w", (part.began, stop), (begin, end))
            continue
        _fill(letters, "d", (part.began, stop), (begin, end))
        middle = stop if part.prefilled is None else min(part.prefilled, stop)
        _fill(letters, "p", (part.began, middle), (begin, end))
    yield f"{begin - start:.6g} s |{''.join(letters)}| {end - start:.6g} s"
    yield LEGEND


def _fill(
    letters: list[str], letter: str, span: tuple[float, float], whole: tuple[float, float]
) -> None:
    scale = WIDTH / (whole[1] - whole[0])
    first, last = (round((at - whole[0]) * scale) for at in span)
    for place in range(max(first, 0), min(last, WIDTH)):
        letters[place] = letter


def _seconds(value: float) -> str:
    return f"{value * 1e3:.4g} ms" if value < 1 else f"{value:.4g} s"


def _steps(count: int) -> str:
    return "" if not count else f" ({count:,} step{'s' if count != 1 else ''})"
