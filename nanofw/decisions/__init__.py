"""Decision logs: what a policy saw and chose in each step, why a request waited, another policy.

log = read_log(Path("log.jsonl"))
story = tell_story(log, "request-17")
replayed = replay_log(log, ["scheduler.name=priority"])
"""

from __future__ import annotations

from nanofw.decisions.log import DecisionLog, read_log
from nanofw.decisions.recorder import recording
from nanofw.decisions.replay import Difference, Replayed, replay_log
from nanofw.decisions.story import Story, tell_story

__all__ = [
    "DecisionLog",
    "Difference",
    "Replayed",
    "Story",
    "read_log",
    "recording",
    "replay_log",
    "tell_story",
]
