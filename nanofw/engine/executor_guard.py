"""Calls into an executor: what it raises, or answers wrongly, becomes an error in its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, cast

import numpy as np

from nanofw.contracts.executor import Executor, ExecutorFacts
from nanofw.contracts.hooks import speaks_for
from nanofw.contracts.outputs import TokenLogprobs
from nanofw.contracts.plan import Capacity, StepPlan, StepResult
from nanofw.contracts.requests import Request
from nanofw.contracts.stride import Stride
from nanofw.errors import ExecutorError, NanofwError
from nanofw.plugin_calls import PluginCalls, is_named, number_of

MAX_POOL_TOKENS = (1 << 31) - 1
"""Blocks and slots are numbered by int32."""
INT32 = np.dtype(np.int32)


class ExecutorGuard(PluginCalls):
    """Names an executor in what its methods raise. All of it ends the run, but in `check`.

    Token ids are not looked at: their range is the conformance of the sampler that made them.
    """

    def fail(self, method: str, error: BaseException) -> NoReturn:
        """Raise what a method's error is told as.

        The contract lets a method raise `ExecutorError`: its text says what failed.
        """
        if type(error) is ExecutorError and not is_named(error):
            raise self.error(str(error)) from error
        if isinstance(error, ExecutorError) and type(error) is not ExecutorError:
            raise error  # it carries more than its text
        super().fail(method, error)

    def check(self, function: Callable[..., object], *arguments: Any) -> None:
        """Let it check a request; raises ValueError when the request cannot be served.

        An executor speaks for its components, so the ValueError of one stays as it is.
        """
        try:
            function(*arguments)
        except (ValueError, NanofwError, KeyboardInterrupt):
            raise
        except BaseException as error:  # this request alone is refused
            request: Request = arguments[-1]
            what = self.failure("check", error)
            raise ValueError(f"{what}, for the arguments {request.arguments!r}") from error

    def capacity(self, executor: Executor) -> Capacity:
        """What it can hold."""
        capacity: Any = self.call("capacity", executor.capacity)
        if not isinstance(capacity, Capacity):
            raise self.wrong("capacity", capacity, "a Capacity")
        for name in ("num_blocks", "block_size", "max_in_flight"):
            self.integer(f"{name} of capacity", getattr(capacity, name), 1)
        if capacity.num_blocks * capacity.block_size > MAX_POOL_TOKENS:
            wanted = f"a pool of at most {MAX_POOL_TOKENS:,} tokens"
            raise self.wrong("capacity", capacity, wanted)
        return capacity

    def facts(self, executor: Executor) -> ExecutorFacts:
        """What it tells of itself."""
        facts: Any = self.call("facts", executor.facts)
        if not isinstance(facts, ExecutorFacts):
            raise self.wrong("facts", facts, "ExecutorFacts")
        for name in ("graph_steps", "host_phases", "start_seconds"):
            numbers: Any = getattr(facts, name)
            if not isinstance(numbers, Mapping):
                raise self.wrong(f"{name} of facts", numbers, "numbers by name")
            for number in cast("Mapping[Any, Any]", numbers).values():
                if number_of(number) is None:
                    raise self.wrong(f"{name} of facts", number, "a number")
        if not isinstance(facts.process_ids, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise self.wrong("process_ids of facts", facts.process_ids, "a tuple of numbers")
        return facts

    def can_stride(self, executor: Executor) -> bool:
        """Whether it may take several steps at once."""
        is_own = type(executor).stride is not Executor.stride
        return is_own and speaks_for(executor, "stride", "submit", "collect")

    def stride(
        self, executor: Executor, plan: StepPlan, num_steps: int, until: float, num_in_flight: int
    ) -> Stride | None:
        """Steps taken at once."""
        stride: Any = self.call("stride", executor.stride, plan, num_steps, until)
        if stride is None:
            return None
        if not isinstance(stride, Stride):
            raise self.wrong("stride", stride, "a Stride or None")
        count = len(stride)
        times = (stride.planned, stride.submitted, stride.collected)
        if not num_in_flight < count <= num_steps or any(len(each) != count for each in times):
            wanted = f"from {num_in_flight + 1} to {num_steps} steps with three times each"
            raise self.wrong("stride", stride, wanted)
        if not _is_array(stride.token_ids, np.int32, (count, len(plan.rows))):
            wanted = f"int32[{count}, {len(plan.rows)}]"
            raise self.wrong("token_ids of stride", stride.token_ids, wanted)
        return stride

    def check_result(self, result: StepResult, plan: StepPlan) -> None:
        """Raise ExecutorError when this is not the result of the plan."""
        given: Any = result
        if not isinstance(given, StepResult):
            raise self.wrong("collect", given, "a StepResult")
        count, token_ids = len(plan.sampled_rows), given.token_ids
        is_usual = type(token_ids) is np.ndarray and token_ids.dtype is INT32
        if type(given.step) is not int or given.step != plan.step:
            raise self.wrong("step of collect", given.step, f"{plan.step}, which was due")
        if not (is_usual and token_ids.shape == (count,)) and not _is_array(
            token_ids, np.int32, (count,)
        ):
            raise self.wrong("token_ids of collect", token_ids, f"int32[{count}]")
        if given.failed is not None and not _is_array(given.failed, np.bool_, (count,)):
            raise self.wrong("failed of collect", given.failed, f"bool[{count}] or None")
        if given.logprobs.__class__ is not dict or given.logprobs:
            self._check_logprobs("logprobs of collect", given.logprobs)
        if given.prompt_logprobs.__class__ is not dict or given.prompt_logprobs:
            self._check_logprobs("prompt_logprobs of collect", given.prompt_logprobs)
        if given.embeddings.__class__ is not dict or given.embeddings:
            self._check_embeddings(given.embeddings)
        seconds: Any = given.seconds
        if seconds is not None and not (type(seconds) is float and seconds >= 0.0):
            self._check_seconds(seconds)

    def _check_seconds(self, seconds: object) -> None:
        number = number_of(seconds)
        if number is None or not number >= 0.0:
            raise self.wrong("seconds of collect", seconds, "seconds or None")

    def _check_embeddings(self, embeddings: object) -> None:
        method, wanted = "embeddings of collect", "float32[hidden] by row"
        if not isinstance(embeddings, Mapping):
            raise self.wrong(method, embeddings, wanted)
        for row, value in cast("Mapping[object, object]", embeddings).items():
            size = getattr(value, "size", 0)
            if not size or not _is_array(value, np.float32, (size,)) or number_of(row) is None:
                raise self.wrong(method, value, wanted)

    def _check_logprobs(self, method: str, logprobs: object) -> None:
        wanted = "TokenLogprobs by row"
        if not isinstance(logprobs, Mapping):
            raise self.wrong(method, logprobs, wanted)
        for row, value in cast("Mapping[object, object]", logprobs).items():
            if not isinstance(value, TokenLogprobs) or number_of(row) is None:
                raise self.wrong(method, value, wanted)


def _is_array(array: Any, dtype: type[np.generic], shape: tuple[int, ...]) -> bool:
    found = array
    return isinstance(array, np.ndarray) and found.dtype == dtype and found.shape == shape
