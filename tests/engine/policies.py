"""Quite different policies, sound and unsound, for tests of the core."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from random import Random
from typing import Any

from nanofw.contracts.arrays import IntArray
from nanofw.contracts.requests import FinishReason
from nanofw.contracts.scheduler import Policy, Refuse, RequestView, SchedulerView
from nanofw.plugins import load_target
from nanofw.schedulers.manifest import scheduler


class ShortestWithAgeing(Policy):
    """Shortest prompt first; a second of waiting is worth two tokens. Skips what does not fit."""

    skip_ahead = 3

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.num_prompt_tokens + 2 * request.arrival


class ClientsInTurn(Policy):
    """Orders groups: the client that got the fewest tokens is next."""

    def __init__(self) -> None:
        self.served: defaultdict[Hashable, int] = defaultdict(int)
        self.client_of_row: dict[int, str] = {}

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.arrival

    def group(self, request: RequestView) -> Hashable:
        return request.client

    def group_key(self, group: Hashable, view: SchedulerView) -> int:
        return self.served[group]

    def on_start(self, row: int, request: RequestView, view: SchedulerView) -> None:
        self.client_of_row[row] = request.client

    def on_progress(
        self, rows: IntArray, num_tokens: IntArray, num_decodes: int, view: SchedulerView
    ) -> None:
        for row, count in zip(rows.tolist(), num_tokens.tolist(), strict=True):
            self.served[self.client_of_row[row]] += count


class LongestPrefixInWindow(Policy):
    """Orders a window anew in each step: most cached tokens first."""

    window = 4

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return request.arrival

    def window_key(self, requests: Sequence[RequestView], view: SchedulerView) -> Sequence[int]:
        return [-view.cached_tokens(request) for request in requests]


class UrgentPreempts(Policy):
    """Gives up the least urgent running request for a more urgent one that waits."""

    def key(self, request: RequestView, view: SchedulerView) -> int:
        return request.priority

    def victim(self, for_request: RequestView | None, view: SchedulerView) -> int | None:
        if for_request is None:
            return None
        worst = max(view.running.rows.tolist(), key=lambda row: (view.running.key(row), row))
        return worst if view.running.key(worst) > for_request.priority else None


class Whimsical(Policy):
    """Allowed answers at random: every hook is used."""

    window = 3
    skip_ahead = 2

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)

    def key(self, request: RequestView, view: SchedulerView) -> float:
        return self.random.random()

    def group(self, request: RequestView) -> Hashable:
        return self.random.randrange(3)

    def group_key(self, group: Hashable, view: SchedulerView) -> float:
        return self.random.random()

    def window_key(self, requests: Sequence[RequestView], view: SchedulerView) -> Sequence[float]:
        return [self.random.random() for _ in requests]

    def admit(self, request: RequestView, view: SchedulerView) -> bool:
        return view.num_running == 0 or self.random.random() < 0.6

    def chunk(self, request: RequestView, view: SchedulerView) -> int | None:
        return self.random.choice([None, 1, 3, 7, 1000])

    def victim(self, for_request: RequestView | None, view: SchedulerView) -> int | None:
        rows: list[int] = view.running.rows.tolist()
        if for_request is not None:
            return None
        return self.random.choice([*rows, None])


class Capricious(Whimsical):
    """Every power of the contract at random: new keys, pauses, budgets, refusals, waking."""

    max_rekeys = 4

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.live: dict[tuple[int, int], RequestView] = {}

    def key(self, request: RequestView, view: SchedulerView) -> float | Refuse:
        if not request.is_running and self.random.random() < 0.02:
            return Refuse("a whim", retry_after_s=1.0)
        return self.random.random()

    def window_key(
        self, requests: Sequence[RequestView], view: SchedulerView
    ) -> Sequence[float | Refuse]:
        keys: list[float | Refuse] = [self.random.random() for _ in requests]
        if keys and self.random.random() < 0.02:
            keys[0] = Refuse("a whim in the window")
        return keys

    def rekey(self, view: SchedulerView) -> list[RequestView]:
        names = list(self.live)
        self.random.shuffle(names)
        return [self.live[name] for name in names[: self.random.randrange(5)]]

    def admit(self, request: RequestView, view: SchedulerView) -> bool | Refuse:
        chance = self.random.random()
        return Refuse("a whim at the door") if chance < 0.02 else chance < 0.6

    def step_budget(self, view: SchedulerView) -> int | None:
        return self.random.choice([None, 0, 1, view.num_decoding, 5, 1000])

    def pause(self, view: SchedulerView) -> list[int]:
        rows = view.running.rows.tolist()
        return [row for row in rows if self.random.random() < 0.3]

    def wake(self, view: SchedulerView) -> float:
        return view.now + 0.01

    def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
        self.live[request.index, request.sample_index] = request

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        del self.live[request.index, request.sample_index]


class Nonsense(Policy):
    """Sound until one of its answers is not; `fault` says which, `after` how many answers."""

    FAULTS: tuple[str, ...] = (
        "key_raises",
        "key_nan",
        "key_none",
        "key_mixed_types",
        "group_unhashable",
        "group_key_raises",
        "window_short",
        "window_mixed_types",
        "window_raises",
        "admit_raises",
        "admit_never",
        "chunk_zero",
        "chunk_negative",
        "chunk_text",
        "victim_unknown",
        "victim_text",
        "victim_raises",
        "victim_better_than_head",
        "progress_raises",
        "start_raises",
        "arrival_raises",
        "finish_raises",
        "preempt_raises",
        "rekey_raises",
        "rekey_unknown",
        "rekey_too_many",
        "rekey_finished",
        "refuses_the_running",
        "refuses_without_reason",
        "refuses_a_group",
        "pause_raises",
        "pause_unknown",
        "budget_negative",
        "budget_text",
        "wake_nan",
        "wake_raises",
        "wake_now",
        "exits",
    )

    def __init__(self, fault: str, after: int) -> None:
        self.fault, self.left = fault, after
        self.window = 3 if fault.startswith("window") else 0
        self.max_rekeys = 1
        self.seen: list[RequestView] = []
        self.finished: list[RequestView] = []

    def _due(self, *faults: str) -> bool:
        if self.fault not in faults:
            return False
        self.left -= 1
        return self.left < 0

    def _raise(self, *faults: str) -> None:
        if self._due(*faults):
            raise ZeroDivisionError("a bug in the policy")

    def key(self, request: RequestView, view: SchedulerView) -> Any:
        self._raise("key_raises")
        if self.fault == "exits" and self._due("exits"):
            raise SystemExit(0)
        if self._due("refuses_without_reason"):
            return Refuse("")
        if request.is_running and self._due("refuses_the_running"):
            return Refuse("no more")
        if self._due("key_nan"):
            return float("nan")
        if self._due("key_none"):
            return None
        if self._due("key_mixed_types") and self.left == -1:  # all text would be sound
            return "text"
        return request.priority

    def group(self, request: RequestView) -> Any:
        return [] if self._due("group_unhashable") else request.client

    def group_key(self, group: Hashable, view: SchedulerView) -> Any:
        self._raise("group_key_raises")
        return Refuse("no") if self._due("refuses_a_group") else 0

    def window_key(self, requests: Sequence[RequestView], view: SchedulerView) -> Sequence[Any]:
        self._raise("window_raises")
        if self._due("window_short"):
            return []
        if self._due("window_mixed_types"):
            return [*range(len(requests) - 1), "text"]
        return range(len(requests))

    def admit(self, request: RequestView, view: SchedulerView) -> bool:
        self._raise("admit_raises")
        return not self._due("admit_never", "wake_nan", "wake_raises", "wake_now")

    def rekey(self, view: SchedulerView) -> Any:
        self._raise("rekey_raises")
        if self._due("rekey_unknown"):
            return ["r0"]
        if len(self.seen) > 1 and self._due("rekey_too_many"):
            return self.seen[-2:]
        if self.finished and self._due("rekey_finished"):
            return self.finished[:1]
        running = view.running
        if self.fault == "refuses_the_running" and len(running.rows):
            return [running.request(int(running.rows[0]))]
        return []

    def pause(self, view: SchedulerView) -> Any:
        self._raise("pause_raises")
        return [10_000] if self._due("pause_unknown") else []

    def step_budget(self, view: SchedulerView) -> Any:
        answers = {"budget_negative": -1, "budget_text": "all"}
        return answers[self.fault] if self._due(*answers) else None

    def wake(self, view: SchedulerView) -> Any:
        if self.fault == "wake_raises":
            raise ZeroDivisionError("a bug in the policy")
        return {"wake_nan": float("nan"), "wake_now": view.now}.get(self.fault)

    def chunk(self, request: RequestView, view: SchedulerView) -> Any:
        answers = {"chunk_zero": 0, "chunk_negative": -4, "chunk_text": "all"}
        return answers[self.fault] if self._due(*answers) else None

    def victim(self, for_request: RequestView | None, view: SchedulerView) -> Any:
        self._raise("victim_raises")
        if self._due("victim_unknown"):
            return 10_000
        if self._due("victim_text"):
            return "the slow one"
        if for_request is not None and self._due("victim_better_than_head"):
            return min(view.running.rows.tolist(), key=view.running.key)
        return None

    def on_progress(
        self, rows: IntArray, num_tokens: IntArray, num_decodes: int, view: SchedulerView
    ) -> None:
        self._raise("progress_raises")

    def on_start(self, row: int, request: RequestView, view: SchedulerView) -> None:
        self._raise("start_raises")

    def on_preempt(self, row: int, request: RequestView, view: SchedulerView) -> None:
        self._raise("preempt_raises")

    def on_arrival(self, request: RequestView, view: SchedulerView) -> None:
        self._raise("arrival_raises")
        self.seen.append(request)

    def on_finish(self, request: RequestView, reason: Any, view: SchedulerView) -> None:
        self._raise("finish_raises")
        self.finished.append(request)
        if request in self.seen:
            self.seen.remove(request)


SOUND: dict[str, Callable[[], Policy]] = {
    "shortest_with_ageing": ShortestWithAgeing,
    "clients_in_turn": ClientsInTurn,
    "longest_prefix_in_window": LongestPrefixInWindow,
    "urgent_preempts": UrgentPreempts,
    "whimsical": Whimsical,
}
"""They serve every request."""

POWERFUL: dict[str, Callable[[], Policy]] = {"capricious": Capricious}
"""They use every power of the contract, refusing included."""


def _shipped(name: str, **options: Any) -> Policy:
    plugin = next(plugin for plugin in scheduler() if plugin.name == name)
    return load_target(plugin.target)(load_target(str(plugin.options))(**options))


SHIPPED: dict[str, Callable[[], Policy]] = {
    **{plugin.name: partial(_shipped, plugin.name) for plugin in scheduler()},
    "priority that preempts": partial(_shipped, "priority", preempt=True, ageing=0.5),
    "partitioned in three": partial(
        _shipped, "partitioned", limits=(4, 12), shares=(0.2, 0.3, 0.5)
    ),
}
"""The policies that nanofw ships."""
