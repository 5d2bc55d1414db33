"""Calls into an executor: what it raises, or answers wrongly, becomes an error in its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from nanofw.contracts.plan import StepPlan, StepResult
from nanofw.contracts.requests import Request
from nanofw.errors import ExecutorError, NanofwError, shown
from nanofw.plugin_calls import failed_call

P = ParamSpec("P")
T = TypeVar("T")


class ExecutorGuard:
    """Names an executor in what its methods raise. All of it ends the run, but in `check`.

    Args:
        label: the executor for messages, `executor 'torch' of nanofw 0.1.0`.
    """

    def __init__(self, label: str) -> None:
        self.label = label

    def call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The method's answer. `SystemExit` and its like in a method are failures of it."""
        try:
            return method(*args, **kwargs)
        except ExecutorError as error:
            if type(error) is not ExecutorError:
                raise  # it carries more than its text
            raise ExecutorError(f"{self.label}: {error}") from error
        except (NanofwError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise ExecutorError(self._failure(method, error)) from error

    def check(self, method: Callable[[Request], None], request: Request) -> None:
        """Let it check a request; raises ValueError when the request cannot be served."""
        try:
            method(request)
        except (ValueError, NanofwError, KeyboardInterrupt):
            raise
        except BaseException as error:  # this request alone is refused
            raise ValueError(self._failure(method, error)) from error

    def check_result(self, result: StepResult, plan: StepPlan) -> None:
        """Raise ExecutorError when this is not the result of the plan."""
        given: Any = result
        if not isinstance(given, StepResult):
            raise ExecutorError(f"{self.label}: collect() returned {shown(given)}, no StepResult")
        if result.step != plan.step:
            raise ExecutorError(
                f"{self.label} answered step {shown(result.step)} when {plan.step} was due"
            )

    def _failure(self, method: Callable[..., Any], error: BaseException) -> str:
        name = getattr(method, "__name__", "a method")
        return f"{self.label}: {failed_call(name, error)}"
