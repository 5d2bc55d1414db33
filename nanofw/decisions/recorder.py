"""Writes a decision log while an engine runs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

import nanofw
from nanofw.assembly.provenance import commit
from nanofw.assembly.selection import Selection
from nanofw.config.load import plain
from nanofw.contracts.clock import VirtualClock
from nanofw.contracts.observer import StepObserver
from nanofw.contracts.outputs import RequestOutput
from nanofw.contracts.plan import StepPlan, StepResult
from nanofw.contracts.requests import FinishReason, Request, SamplingParams
from nanofw.contracts.stride import Stride
from nanofw.decisions.plans import PlanReader
from nanofw.decisions.records import (
    VERSION,
    CollectedRecord,
    FinishedRecord,
    FinishRequestRecord,
    Record,
    RequestRecord,
    RunRecord,
    SteadyRecord,
    token_bytes,
)
from nanofw.engine.engine import Engine
from nanofw.errors import RequestError

_BUFFER_BYTES = 1 << 18
_MAX_TIMES = 4096
"""So many times at least are gathered before a line of them is written."""
_DEFAULTS: Mapping[str, object] = {
    field.name: getattr(SamplingParams(), field.name) for field in fields(SamplingParams)
}
_VALUES: Callable[[SamplingParams], tuple[object, ...]] = attrgetter(*_DEFAULTS)


@contextmanager
def recording(
    engine: Engine,
    selection: Selection,
    path: Path,
    *,
    arm: str = "",
    point: float | None = None,
    seed: int | None = None,
) -> Generator[None]:
    """Within it, what is decided goes into a file.

    The engine should be fresh: a log that begins in the middle cannot be decided again.

    Args:
        arm, point, seed: of a comparison.
    """
    head = RunRecord(
        version=VERSION,
        made_by=_made_by(),
        config=plain(selection.loaded.config),
        limits=asdict(engine.scheduler.limits),
        overlap=engine.overlap,
        virtual_time=isinstance(engine.clock, VirtualClock),
        arm=arm,
        point=point,
        seed=seed,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = _Writer(file)
        writer.write(head)
        recorder = DecisionRecorder(engine, writer.write)
        try:
            with recorder.watching():
                yield
        finally:
            writer.flush()


@cache
def _made_by() -> str:
    return f"nanofw {nanofw.__version__} ({commit() or 'installed'})"


class _Writer:
    """Lines of JSON, written in pieces."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._buffer = file, bytearray()
        self._encoder = msgspec.json.Encoder(enc_hook=repr)

    def write(self, record: Record) -> None:
        self._encoder.encode_into(record, self._buffer, -1)
        self._buffer += b"\n"
        if len(self._buffer) > _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        self._file.write(self._buffer)
        self._buffer.clear()


class DecisionRecorder(StepObserver):
    """Notes what an engine decides. A steady step costs a microsecond.

    Args:
        write: takes the records, in order.
    """

    def __init__(self, engine: Engine, write: Callable[[Record], None]) -> None:
        self._engine, self._write = engine, write
        self._reader = PlanReader(engine)
        self._journal = engine.scheduler.journal
        self._blocker, self._head = self._journal.blocker, self._journal.head
        self._has_news = True  # something but a steady step happened since the last step
        self._first_steady = self._first_collected = 0
        self._steady, self._collected = array("d"), array("d")

    @contextmanager
    def watching(self) -> Generator[None]:
        """Within it the engine's decisions are noted."""
        self._journal.is_read = True
        try:
            with self._engine.observed_by(self):
                yield
        finally:
            self._journal.is_read = False
            self._end_steady()
            self._write_collected()

    def received(self, request: Request, error: RequestError | None, now: float) -> None:
        self._note(
            RequestRecord(
                id=request.id if error is None else str(request.id),
                now=now,
                prompt=_prompt_bytes(request, error),
                sampling=_sampling(request.sampling),
                arrival=request.arrival,
                client=request.client,
                priority=request.priority,
                deadline=request.deadline,
                expected_output_tokens=request.expected_output_tokens,
                arguments=dict(request.arguments) if request.arguments else {},
                cache_salt=request.cache_salt,
                refused=None if error is None else error.reason,
            )
        )

    def finish_requested(
        self,
        request_id: str,
        reason: FinishReason,
        num_tokens: int | None,
        sample_index: int | None,
        now: float,
    ) -> None:
        self._note(
            FinishRequestRecord(
                id=request_id, reason=reason.value, now=now, num_tokens=num_tokens,
                sample_index=sample_index,
            )
        )  # fmt: skip

    def planned(self, plan: StepPlan | None, now: float) -> None:
        journal = self._journal
        if (  # in most steps: one expression, for its cost
            plan is not None
            and plan.same_rows
            and not self._has_news
            and journal.blocker is self._blocker
            and journal.head is self._head
            and not (journal.keys or journal.preemptions or journal.window)
        ):
            self._steady.append(now)
            return
        self._end_steady()
        self._write(self._reader.record(plan, now))
        if plan is not None:
            self._first_steady = plan.step + 1
        self._blocker, self._head = journal.blocker, journal.head
        self._has_news = plan is None

    def collected(self, plan: StepPlan, result: StepResult, now: float) -> None:
        self._collected.append(now)

    def strode(self, stride: Stride) -> None:
        self._steady.extend(stride.planned)
        self._collected.extend(stride.collected)

    def finished(self, output: RequestOutput) -> None:
        self._note(
            FinishedRecord(
                id=output.id,
                reason=output.finish_reason.value,
                tokens=token_bytes(output.token_ids),
                arrival=output.arrival,
                finished=output.finished,
                scheduled=output.scheduled,
                first_token=output.first_token,
                sample_index=output.sample_index,
                num_cached=output.num_cached_tokens,
                num_preemptions=output.num_preemptions,
                num_recomputed=output.num_recomputed_tokens,
                num_recovered=output.num_recovered_tokens,
                error=output.error,
            )
        )

    def _note(self, record: Record) -> None:
        self._end_steady()
        self._has_news = True
        self._write(record)

    def _end_steady(self) -> None:
        if len(self._collected) >= _MAX_TIMES:
            self._write_collected()
        if self._steady:
            first, planned = self._first_steady, self._steady.tolist()
            self._write(SteadyRecord(first=first, planned=planned))
            self._first_steady += len(planned)
            self._steady = array("d")

    def _write_collected(self) -> None:
        if self._collected:
            first, times = self._first_collected, self._collected.tolist()
            self._write(CollectedRecord(first=first, times=times))
            self._first_collected += len(times)
            self._collected = array("d")


def _prompt_bytes(request: Request, error: RequestError | None) -> bytes:
    """The prompt's tokens; of a request that was refused perhaps none, as they may be nonsense."""
    try:
        ids = np.asarray(request.prompt_token_ids)
    except ValueError:
        ids = np.asarray(None)
    if error is not None and (ids.ndim != 1 or ids.dtype.kind not in "iu"):
        return b""
    return token_bytes(ids)


def _sampling(sampling: SamplingParams) -> dict[str, object]:
    """What is not the default; of a refused request they may be nonsense."""
    if not isinstance(sampling, SamplingParams):  # pyright: ignore[reportUnnecessaryIsInstance]
        return {}
    values = zip(_DEFAULTS, _VALUES(sampling), _DEFAULTS.values(), strict=True)
    return {
        name: value for name, value, default in values if value is not default and value != default
    }
