"""A worker process: one rank of a run. Reads commands in order and carries them out.

Nothing here is imported by the engine's process, and PyTorch is imported only after the watch
over the engine's process has begun.
"""

from __future__ import annotations

import os
import queue
import resource
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from nanofw.errors import NanofwError
from nanofw.runtime.parallel.channel import Channel
from nanofw.runtime.parallel.messages import (
    Check,
    Checked,
    Facts,
    Failed,
    GetFacts,
    Join,
    Listening,
    Masks,
    Plan,
    RankLost,
    Ready,
    Start,
    Stop,
    decode_command,
    encode,
)
from nanofw.runtime.parallel.watch import report_crashes, watch

if TYPE_CHECKING:
    import torch

    from nanofw.contracts.executor import ExecutorConfig
    from nanofw.runtime.communicator import GroupCommunicator
    from nanofw.runtime.executor import TorchExecutor
    from nanofw.runtime.options import TorchOptions


def main(channel_fd: int, stacks_fd: int) -> None:
    """Serve the engine's process until it says `Stop` or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = socket.socket(fileno=channel_fd)
    threading.Thread(target=watch, args=(channel_fd,), daemon=True).start()
    report_crashes(stacks_fd)
    channel = Channel(end)
    try:
        Rank(channel, lambda: os._exit(1)).serve()
    except EOFError:
        os._exit(1)
    except BaseException as error:
        report(channel, error)
        os._exit(1)
    # Other ranks may have left before: nothing that waits for them may run now.
    sys.stderr.flush()
    os._exit(0)


class Connection(Protocol):
    """A rank's end of its connection to the engine's process: a socket, a mailbox."""

    def send(self, content: bytes, /) -> None: ...

    def receive(self) -> bytes: ...


class Rank:
    """One rank: the thread that reads commands, and another that sends results.

    Args:
        channel: to the engine's process.
        leave: called after a failure of the other thread was reported.
    """

    def __init__(self, channel: Connection, leave: Callable[[], object]) -> None:
        self._channel, self._leave = channel, leave
        start = decode_command(channel.receive())
        assert isinstance(start, Start)
        self._rank = start.rank
        self._executor = self._build(start)
        self._submitted: queue.SimpleQueue[None] = queue.SimpleQueue()

    def serve(self) -> None:
        from nanofw.runtime.parallel.wire import PlanDecoder

        decoder = PlanDecoder()
        threading.Thread(target=self._send_results, name="nanofw-results", daemon=True).start()
        while not isinstance(command := decode_command(self._channel.receive()), Stop):
            if isinstance(command, Plan):
                plan = decoder.decode(command)
                self._executor.submit(plan)
                if not len(plan.host_rows):
                    self._submitted.put(None)
            elif isinstance(command, Masks):
                self._executor.provide(command.masks)
                self._submitted.put(None)
            elif isinstance(command, Check):
                self._channel.send(encode(self._check(command)))
            elif isinstance(command, GetFacts):
                self._channel.send(encode(Facts(self._executor.facts())))

    def _send_results(self) -> None:
        """Wait for each step and send what came out, while later ones are being enqueued."""
        from nanofw.runtime.parallel.wire import done_message

        try:
            while True:
                self._submitted.get()
                result = self._executor.collect()
                self._channel.send(encode(done_message(result, whole=self._rank == 0)))
        except BaseException as error:
            report(self._channel, error)
            self._leave()

    def _check(self, command: Check) -> Checked:
        from nanofw.contracts.requests import Request

        request = Request(
            id="", prompt_token_ids=(), sampling=command.sampling, arguments=command.arguments
        )
        try:
            self._executor.check(request)
        except ValueError as error:
            return Checked(str(error))
        return Checked(None)

    def _build(self, start: Start) -> TorchExecutor:
        import torch

        from nanofw.runtime.executor import TorchExecutor
        from nanofw.runtime.options import TorchOptions

        device = torch.device(start.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        elif start.shares_cores:
            torch.set_num_threads(max(1, torch.get_num_threads() // start.size))
        config = _config(start)
        options = TorchOptions.model_validate(start.options)
        communicator = self._join(start, device)
        if options.all_reduce != "collective" and device.type == "cuda":
            communicator = _one_shot(config, options, device, communicator)
        before = _peak_host_bytes()
        executor = TorchExecutor(options, config, communicator)
        self._channel.send(
            encode(
                Ready(
                    num_blocks=executor.capacity().num_blocks,
                    max_in_flight=executor.capacity().max_in_flight,
                    weight_bytes=executor.weight_bytes,
                    host_bytes_before=before,
                    peak_host_bytes=_peak_host_bytes(),
                    facts=executor.facts(),
                )
            )
        )
        return executor

    def _join(self, start: Start, device: torch.device) -> GroupCommunicator:
        from nanofw.runtime import communicator

        if start.rank == 0:
            store, address = communicator.open_store(start.size, device, start.host)
            self._channel.send(encode(Listening(address)))
        else:
            command = decode_command(self._channel.receive())
            assert isinstance(command, Join)
            address = command.address
            store = communicator.join_store(address, start.size, command.host)
        try:
            return communicator.join(start.rank, start.size, device, store, start.host)
        finally:
            if start.rank == 0:
                communicator.leave_store(address)


def _one_shot(
    config: ExecutorConfig, options: TorchOptions, device: torch.device, usual: GroupCommunicator
) -> GroupCommunicator:
    """Sums in one kernel, of as many rows as a captured step has; `usual` where it cannot be."""
    import torch

    from nanofw.errors import ConfigError
    from nanofw.runtime.graphs.sizes import largest_prefill
    from nanofw.runtime.one_shot import OneShotCommunicator

    dtype = getattr(torch, config.spec.dtype)
    num_rows = max(config.max_num_seqs, largest_prefill(options, config))
    stream = (config.spec.hidden_size, num_rows)
    try:
        return OneShotCommunicator(usual.rank, usual.size, device, dtype, stream)
    except ConfigError as error:
        if options.all_reduce == "one_shot":
            raise
        if usual.rank == 0:
            warnings.warn(f"sums over ranks go the usual way: {error}", stacklevel=2)
        return usual


def _config(start: Start) -> ExecutorConfig:
    from nanofw.contracts.clock import RealClock
    from nanofw.contracts.executor import Components, ExecutorConfig
    from nanofw.runtime.parallel.components import load_component

    components = Components(
        **{kind: load_component(data) for kind, data in start.components.items()},
        logits_processors=tuple(load_component(data) for data in start.logits_processors),
    )
    return ExecutorConfig(
        spec=start.spec,
        block_size=start.block_size,
        num_blocks=start.num_blocks,
        max_num_seqs=start.max_num_seqs,
        max_num_batched_tokens=start.max_num_batched_tokens,
        max_model_len=start.max_model_len,
        clock=RealClock(),
        components=components,
        tensor_parallel_size=start.size,
        memory_utilization=start.memory_utilization,
        device=start.device,
        overlap=start.overlap,
        cuda_graphs=start.cuda_graphs,
        prefill_graphs=start.prefill_graphs,
    )


def report(channel: Connection, error: BaseException) -> None:
    """Say why this rank ends."""
    is_ours = isinstance(error, NanofwError)
    causes = [error, error.__cause__]
    failed = Failed(
        error=type(error).__name__ if is_ours else "",
        message=str(error) if is_ours else f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
        is_echo=any(isinstance(cause, RankLost) for cause in causes),
    )
    try:
        channel.send(encode(failed))
    except OSError:
        traceback.print_exception(error)


def _peak_host_bytes() -> int:
    """The largest resident set that this process has had, pages of mapped files included."""
    try:  # `ru_maxrss` counts what the engine's process had when it made this one
        with open("/proc/self/status", encoding="ascii") as status:
            fields = dict(line.split(":", 1) for line in status if ":" in line)
        return int(fields["VmHWM"].split()[0]) * 1024
    except (OSError, KeyError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
