"""What a policy's `on_finish` raises, which a run only logs."""

from __future__ import annotations

from nanofw.contracts.requests import FinishReason
from nanofw.contracts.scheduler import Policy, RequestView, SchedulerView
from nanofw.plugin_calls import raised


class WatchedFinish:
    """Stands between the engine and `on_finish` of a policy's object.

    Attributes:
        errors: a sentence for each call that raised.
    """

    def __init__(self, policy: Policy) -> None:
        self._on_finish = policy.on_finish
        self.errors: list[str] = []
        setattr(policy, "on_finish", self.on_finish)  # noqa: B010 # a method is not assigned to

    def on_finish(self, request: RequestView, reason: FinishReason, view: SchedulerView) -> None:
        try:
            self._on_finish(request, reason, view)
        except Exception as error:
            sentence = f"on_finish raised {raised(error)}, for {request!r}"
            if request.sample_index:
                sentence += (
                    ": samples of a request share `id` and `index`; each has a view of its own, "
                    "by which state is to be kept"
                )
            self.errors.append(sentence)
