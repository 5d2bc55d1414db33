"""Continuous batching in plain Python: one server, first come first served, paged KV.

It shares no code with nanofw. It knows chunked prefill mixed with decodes, one partial prefill at
a time, a watermark on admissions, and preemption by recompute of the latest arrival.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Sizes of the server, and what a step costs in seconds."""

    rows: int
    budget: int
    num_blocks: int
    block_size: int
    chunk: int | None
    per_step: float
    per_token: float
    watermark: float = 0.01


@dataclass(slots=True)
class Job:
    """A request: what it asks for, where it is, and when things happened."""

    number: int
    arrival: float
    num_prompt: int
    num_output: int
    known: int = 0
    computed: int = 0
    blocks: int = 0
    was_preempted: bool = False
    num_preemptions: int = 0
    scheduled: float = math.nan
    first_token: float = math.nan
    finished: float = math.nan

    @property
    def place(self) -> tuple[float, bool, int]:
        """Smaller is served first."""
        return self.arrival, not self.was_preempted, self.number


@dataclass(slots=True)
class Server:
    """The state between steps. Rows are lists of jobs in order of admission."""

    machine: Machine
    waiting: list[tuple[tuple[float, bool, int], Job]] = field(default_factory=list)
    prefilling: list[Job] = field(default_factory=list)
    decoding: list[Job] = field(default_factory=list)
    free: int = 0

    def needed(self, tokens: int) -> int:
        return -(-tokens // self.machine.block_size)

    def push(self, job: Job) -> None:
        heapq.heappush(self.waiting, (job.place, job))

    def grow(self) -> bool:
        """A token's room for each decoding job; whether one had to give way."""
        gave_way = False
        while True:
            short = [job for job in self.decoding if self.needed(job.computed + 1) > job.blocks]
            if len(short) <= self.free:
                break
            victim = max(self.prefilling + self.decoding, key=lambda job: job.place)
            (self.prefilling if victim in self.prefilling else self.decoding).remove(victim)
            self.free += victim.blocks
            victim.blocks = victim.computed = 0
            victim.was_preempted = gave_way = True
            victim.num_preemptions += 1
            self.push(victim)
        for job in short:
            job.blocks += 1
        self.free -= len(short)
        return gave_way

    def chunks(self, closed: bool, now: float) -> list[tuple[Job, int]]:
        """Prefill of this step: what goes on, then new jobs in their order."""
        machine, left = self.machine, self.machine.budget - len(self.decoding)
        plan: list[tuple[Job, int]] = []
        for job in self.prefilling:
            if left > 0:
                count = min(job.known - job.computed, left, machine.chunk or left)
                plan.append((job, count))
                left -= count
        num_partial = sum(job.computed + count < job.known for job, count in plan)
        num_partial += len(self.prefilling) - len(plan)
        num = len(self.prefilling) + len(self.decoding)
        while self.waiting and not closed and left > 0 and num < machine.rows:
            job = self.waiting[0][1]
            blocks, count = self.needed(job.known), min(job.known, left, machine.chunk or left)
            spare = self.free - (machine.watermark * machine.num_blocks if num else 0)
            if blocks > spare or (count < job.known and num_partial):
                break
            heapq.heappop(self.waiting)
            job.blocks = blocks
            self.free -= blocks
            if math.isnan(job.scheduled):
                job.scheduled = now
            self.prefilling.append(job)
            plan.append((job, count))
            num_partial += count < job.known
            left, num = left - count, num + 1
        return plan

    def finish_step(self, plan: list[tuple[Job, int]], now: float) -> None:
        """Every decoding job has a token more, and every job whose prompt is done."""
        for job in self.decoding:
            job.computed += 1
        sampled = list(self.decoding)
        for job, count in plan:
            job.computed += count
            if job.computed == job.known:
                self.prefilling.remove(job)
                self.decoding.append(job)
                sampled.append(job)
        for job in sampled:
            job.known += 1
            if math.isnan(job.first_token):
                job.first_token = now
            if job.known == job.num_prompt + job.num_output:
                job.finished = now
                self.decoding.remove(job)
                self.free += job.blocks


def simulate(machine: Machine, jobs: Sequence[Job]) -> int:
    """Serve the jobs, given by arrival, and note when things happen. Returns the steps taken."""
    server = Server(machine, free=machine.num_blocks)
    now, next_job, num_steps = 0.0, 0, 0
    while True:
        while next_job < len(jobs) and jobs[next_job].arrival <= now:
            jobs[next_job].known = jobs[next_job].num_prompt
            server.push(jobs[next_job])
            next_job += 1
        closed = server.grow()
        plan = server.chunks(closed, now)
        tokens = len(server.decoding) + sum(count for _, count in plan)
        if tokens:
            now += machine.per_step + machine.per_token * tokens
            server.finish_step(plan, now)
            num_steps += 1
        elif next_job < len(jobs):
            now = jobs[next_job].arrival
        else:
            return num_steps
