"""What the parts of the scheduler share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nanofw.contracts.limits import Limits
from nanofw.contracts.scheduler import Refuse
from nanofw.engine.checked_allocator import CheckedAllocator
from nanofw.engine.counters import Counters
from nanofw.engine.journal import Journal
from nanofw.engine.policy_guard import PolicyGuard
from nanofw.engine.request_state import RequestState
from nanofw.engine.running import RunningSet
from nanofw.engine.waiting import WaitingQueue


@dataclass(frozen=True, slots=True)
class Parts:
    """The scheduler's collaborators, handed to admission and preemption as one.

    Attributes:
        shed: finish a request that the policy refused.
    """

    limits: Limits
    running: RunningSet
    queue: WaitingQueue
    guard: PolicyGuard
    allocator: CheckedAllocator
    counters: Counters
    journal: Journal
    shed: Callable[[RequestState, Refuse], None]
