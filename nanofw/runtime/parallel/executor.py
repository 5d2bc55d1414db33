"""Executor `torch` over several ranks: the side of the engine's process.

Every rank is a process of its own, so the engine plans while they compute. A plan is encoded
once and sent to each; each rank carries out every plan, and rank 0 sends what was sampled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from nanofw.contracts.executor import Executor, ExecutorConfig, ExecutorFacts
from nanofw.contracts.plan import Capacity, HostMasks, StepPlan, StepResult
from nanofw.contracts.requests import Request
from nanofw.errors import ConfigError, ExecutorError
from nanofw.runtime.options import TorchOptions
from nanofw.runtime.parallel.components import component_data
from nanofw.runtime.parallel.group import WorkerGroup
from nanofw.runtime.parallel.messages import (
    Check,
    Checked,
    Done,
    Facts,
    GetFacts,
    Join,
    Listening,
    Masks,
    Ready,
    Reply,
    Start,
    encode,
)
from nanofw.runtime.parallel.patience import Patience
from nanofw.runtime.parallel.transport import Place, ProcessTransport, Transport
from nanofw.runtime.parallel.wire import PlanEncoder, needed

T = TypeVar("T", bound=Reply)


class ParallelExecutor(Executor):
    """Constructed as `ParallelExecutor(options, config)`; returns when every rank is ready.

    Args:
        transport: starts the ranks; None: as processes of this host.

    Attributes:
        ranks: what each rank said when it was ready: weights, memory.
        num_bytes_sent: to each rank, since it was made.
    """

    def __init__(
        self,
        options: TorchOptions | None,
        config: ExecutorConfig,
        transport: Transport | None = None,
    ) -> None:
        self._options = options or TorchOptions.model_validate({})
        check_all_reduce(self._options, config.device)
        self._config, self._size = config, config.tensor_parallel_size
        self._done: list[deque[Done]] = [deque() for _ in range(self._size)]
        chosen = config.components
        needed_by = (
            chosen.required("model"),
            chosen.required("sampler"),
            *chosen.logits_processors,
        )
        self._names = {component.name for component in needed_by}
        self._encoder = PlanEncoder(self._names)
        self._in_flight: deque[int] = deque()
        self._next_step = 0
        self._checked: object = None
        self.num_bytes_sent: int = 0
        if transport is None:
            places = _places(config.device, self._size)
            transport = ProcessTransport(places, self._options.step_timeout_s)
        self._places, self._group = transport.places, WorkerGroup(transport)
        try:
            self.ranks: list[Ready] = self._start()
        except BaseException:
            self._group.close()
            raise
        self._capacity = Capacity(
            num_blocks=min(ready.num_blocks for ready in self.ranks),
            block_size=config.block_size,
            max_in_flight=self.ranks[0].max_in_flight,
        )

    def capacity(self) -> Capacity:
        """The pool's size: that of the rank with the fewest blocks."""
        return self._capacity

    def facts(self) -> ExecutorFacts:
        """As of `TorchExecutor`, asked of rank 0; and the ranks' processes."""
        facts = self.ranks[0].facts
        if self._group.is_open:
            self._group.send(GetFacts(), (0,))
            facts = self._wait_for(Facts, "answer").facts
        return replace(facts, process_ids=tuple(self._group.pids))

    def check_alive(self) -> None:
        """Raise when a rank has failed meanwhile; returns at once."""
        for rank, reply in self._group.receive(0.0):
            if isinstance(reply, Done):
                self._done[rank].append(reply)

    def check(self, request: Request) -> None:
        """Raise ValueError when a component cannot do what is asked."""
        arguments = needed(request.arguments, self._names)
        if not arguments and request.sampling == self._checked:
            return
        try:
            content = encode(Check(request.sampling, arguments))
        except (TypeError, OverflowError) as error:
            raise ValueError(str(error)) from error
        self._group.send_bytes(content, (0,))
        reply = self._wait_for(Checked, "answer")
        if reply.reason is not None:
            raise ValueError(reply.reason)
        if not arguments:
            self._checked = request.sampling

    def submit(self, plan: StepPlan) -> None:
        """Send the plan to every rank."""
        if plan.step != self._next_step:
            raise ExecutorError(f"plan {plan.step} came where plan {self._next_step} was due")
        if len(self._in_flight) >= self._capacity.max_in_flight:
            raise ExecutorError(f"plan {plan.step} is one more than may be in flight: collect")
        content = self._encoder.encode(plan)
        self._next_step += 1
        self._in_flight.append(plan.step)
        self.num_bytes_sent += len(content)
        self._group.send_bytes(content)

    def provide(self, masks: HostMasks) -> None:
        """Send the masks to every rank."""
        self._group.send(Masks(masks))

    def collect(self) -> StepResult:
        """Wait until every rank has done the oldest step."""
        if not self._in_flight:
            raise ExecutorError("collect without a submitted step")
        step = self._in_flight[0]
        self._wait(
            lambda: all(self._done), f"finish step {step}",
            lambda: [rank for rank, done in enumerate(self._done) if not done],
        )  # fmt: skip
        self._in_flight.popleft()
        answers = [done.popleft() for done in self._done]
        return _agreed(step, answers)

    def close(self) -> None:
        """Let the ranks leave. Idempotent."""
        self._group.close()

    def _start(self) -> list[Ready]:
        for rank in range(self._size):
            place = self._places[rank]
            self._group.send(_start_message(self._options, self._config, rank, place), (rank,))
        patience = Patience(self._options.start_timeout_s)
        address = self._wait_for(Listening, "start", "start_timeout_s").address
        self._group.send(Join(address, self._places[0].host), range(1, self._size))
        ready: dict[int, Ready] = {}
        while len(ready) < self._size:
            for rank, reply in self._receive(patience):
                if isinstance(reply, Ready):
                    ready[rank] = reply
            if patience.is_over and len(ready) < self._size:
                late = [rank for rank in range(self._size) if rank not in ready]
                self._group.stalled(late, "get ready", patience.seconds, "start_timeout_s")
        return [ready[rank] for rank in range(self._size)]

    def _wait_for(self, kind: type[T], what: str, option: str = "step_timeout_s") -> T:
        """The next reply of some kind from rank 0."""
        found: list[T] = []

        def see(rank: int, reply: Reply) -> None:
            if isinstance(reply, kind):
                found.append(reply)

        self._wait(lambda: bool(found), what, lambda: [0], see, option)
        return found[0]

    def _wait(
        self,
        is_over: Callable[[], bool],
        what: str,
        late: Callable[[], list[int]],
        see: Callable[[int, Reply], None] | None = None,
        option: str = "step_timeout_s",
    ) -> None:
        """Take replies until `is_over`; the timeout of that option counts from the last reply."""
        patience = Patience(getattr(self._options, option))
        while not is_over():
            replies = self._receive(patience)
            for rank, reply in replies:
                if isinstance(reply, Done):
                    self._done[rank].append(reply)
                elif see is not None:
                    see(rank, reply)
            if replies:
                patience.renew()
            elif patience.is_over:
                self._group.stalled(late(), what, patience.seconds, option)

    def _receive(self, patience: Patience) -> list[tuple[int, Reply]]:
        """Replies of the next slice; with the last one those, too, that came unseen before."""
        replies = self._group.receive(patience.next_slice())
        if not replies:
            patience.end_slice()
            if patience.is_over:
                replies = self._group.receive(0.0)
        return replies


def check_all_reduce(options: TorchOptions, device: str) -> None:
    """Raise ConfigError where the options insist on sums that these devices cannot make."""
    kind = device.partition(":")[0]
    if options.all_reduce == "one_shot" and kind != "cuda":
        raise ConfigError(
            f"one_shot needs NVIDIA GPUs that reach each other's memory, this run's device is "
            f"{kind}; choose auto or collective",
            key="executor.all_reduce",
        )


def _agreed(step: int, answers: list[Done]) -> StepResult:
    """Rank 0's result, if every rank sampled the same."""
    result = answers[0].result
    assert result is not None
    others = [rank for rank, done in enumerate(answers) if done.digest != answers[0].digest]
    if others or any(done.step != step for done in answers):
        raise ExecutorError(
            f"step {step}: ranks {others} sampled other tokens than rank 0: their states have come "
            "apart. Sampler and logits processors must depend on the plan and the logits alone"
        )
    return result


def _start_message(options: TorchOptions, config: ExecutorConfig, rank: int, place: Place) -> Start:
    components = config.components
    return Start(
        rank=rank,
        size=config.tensor_parallel_size,
        device=place.device,
        host=place.host,
        shares_cores=place.shares_cores,
        spec=config.spec,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        memory_utilization=config.memory_utilization,
        overlap=config.overlap,
        cuda_graphs=config.cuda_graphs,
        prefill_graphs=config.prefill_graphs,
        options=options.model_dump(mode="json", include=set(TorchOptions.model_fields)),
        components={
            "model": component_data(components.required("model")),
            "attention_backend": component_data(components.required("attention_backend")),
            "sampler": component_data(components.required("sampler")),
        },
        logits_processors=[component_data(item) for item in components.logits_processors],
    )


def _places(device: str, size: int) -> list[Place]:
    """Neighbouring devices of this host, from the configured one on."""
    kind, _, first = device.partition(":")
    if kind == "cpu":
        return [Place(device=device)] * size
    count = torch.cuda.device_count()
    if kind == "cuda" and int(first or 0) + size > count:
        raise ConfigError(
            f"{size} ranks need {size} devices from {device} on, this machine has {count}",
            key="engine.tensor_parallel_size",
        )
    return [Place(device=f"{kind}:{int(first or 0) + rank}") for rank in range(size)]
