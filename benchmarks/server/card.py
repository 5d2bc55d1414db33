"""The same requests through `LLM`, through `AsyncLLM` as streams, and over HTTP as streams.

    python -m benchmarks.server.card MODEL [KEY=VALUE ...] [--requests 256] [--rounds 3]
        [--json FILE]

The workload is that of nano-vllm's bench.py: 256 prompts and outputs of 100 to 1,024 tokens, all at
once. Each way is a process with an engine of its own on the same device, all open at once and used
in turn, so give each a third of the memory (`engine.memory_utilization=0.3`). The clients over HTTP
are processes of their own. A small pass before the first round is not counted; each round has other
tokens, so no prefix is cached. The last lines are the ratios to `AsyncLLM`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from benchmarks.server.clients import TOKEN
from benchmarks.server.serving import serving
from nanofw import LLM, AsyncLLM, SamplingParams
from nanofw.assembly.provenance import commit, machine

NUM_CLIENTS = 2
TEMPERATURE = 0.6
Requests = list[tuple[list[int], int]]


def workload(num_requests: int, longest: int, number: int, vocabulary: int) -> Requests:
    """Prompts, and how many tokens each gets; rounds differ in the tokens of the prompts alone."""
    dice, shortest = random.Random(0), min(100, longest)
    prompts = [
        [dice.randint(0, vocabulary - 1) for _ in range(dice.randint(shortest, longest))]
        for _ in range(num_requests)
    ]
    outputs = [dice.randint(shortest, longest) for _ in range(num_requests)]
    moved = [[(token + 17 * number) % vocabulary for token in prompt] for prompt in prompts]
    return list(zip(moved, outputs, strict=True))


def sampling(num_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=TEMPERATURE, max_tokens=num_tokens, ignore_eos=True)


def through_llm(words: list[str]) -> Callable[[Requests], dict[str, float]]:
    llm = LLM.from_config(None, *words)

    def serve(requests: Requests) -> dict[str, float]:
        begin = time.monotonic()
        results = llm.generate(
            [prompt for prompt, _ in requests], [sampling(count) for _, count in requests]
        )
        tokens = sum(result.num_output_tokens for result in results)
        return {"begin": begin, "end": time.monotonic(), "tokens": tokens}

    return serve


def through_async(words: list[str]) -> Callable[[Requests], dict[str, float]]:
    llm, loop = AsyncLLM.from_config(None, *words), asyncio.new_event_loop()

    async def one(prompt: list[int], count: int) -> int:
        events = llm.generate(prompt, sampling(count))
        return sum([len(event.token_ids) async for event in events])

    async def all_of(requests: Requests) -> int:
        return sum(await asyncio.gather(*[one(*request) for request in requests]))

    def serve(requests: Requests) -> dict[str, float]:
        begin = time.monotonic()
        tokens = loop.run_until_complete(all_of(requests))
        return {"begin": begin, "end": time.monotonic(), "tokens": tokens}

    return serve


class Answer(asyncio.Protocol):
    """One request on a connection of its own, and the tokens of its answer."""

    def __init__(self, request: bytes) -> None:
        self._request, self._tail, self.tokens = request, b"", 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.tokens and not self._tail and not data.startswith(b"HTTP/1.1 200"):
            self.done.set_exception(SystemExit(f"the server answers: {data[:500]!r}"))
        data = self._tail + data
        self.tokens += data.count(TOKEN)
        self._tail = data[1 - len(TOKEN) :]
        if data.endswith(b"\r\n0\r\n\r\n"):
            self._transport.close()
            self.done.set_result(None)


def over_http(words: list[str]) -> Callable[[Requests], dict[str, float]]:
    """Every `NUM_CLIENTS`th request, from the one that `words` names after the URL."""
    place, share = urlsplit(words[0]), int(words[1])

    async def all_of(bodies: list[bytes]) -> int:
        loop, host, port = asyncio.get_running_loop(), place.hostname or "", place.port or 80
        made = [
            await loop.create_connection(lambda b=body: Answer(b), host, port) for body in bodies
        ]
        await asyncio.gather(*[answer.done for _, answer in made])
        return sum(answer.tokens for _, answer in made)

    def serve(requests: Requests) -> dict[str, float]:
        mine = [request_of(*request) for request in requests[share::NUM_CLIENTS]]
        begin = time.monotonic()
        tokens = asyncio.run(all_of(mine))
        return {"begin": begin, "end": time.monotonic(), "tokens": tokens}

    return serve


def request_of(prompt: list[int], count: int) -> bytes:
    body = json.dumps({
        "prompt": prompt, "max_tokens": count, "ignore_eos": True, "temperature": TEMPERATURE,
        "return_token_ids": True, "stream": True,
    }).encode()  # fmt: skip
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


WAYS = {"llm": through_llm, "async_llm": through_async, "http": over_http}


def worker(way: str, words: list[str]) -> None:
    """Serve a workload for each line of standard input: requests, longest, round, vocabulary."""
    serve = WAYS[way](words)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(serve(workload(*map(int, line.split())))), flush=True)


class Way:
    """One way: its processes, which share the requests."""

    def __init__(self, way: str, arguments: list[list[str]]) -> None:
        command = [sys.executable, "-m", "benchmarks.server.card", "--worker", way]
        self._processes = [
            subprocess.Popen(
                [*command, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for words in arguments
        ]
        for process in self._processes:
            self._line(process)

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("a process of the benchmark ended; standard error says why")
        return line

    def serve(self, *workload: int) -> dict[str, float]:
        """A pass, and its tokens per second."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(" ".join(map(str, workload)) + "\n")
            process.stdin.flush()
        found: list[dict[str, float]] = [json.loads(self._line(p)) for p in self._processes]
        seconds = max(f["end"] for f in found) - min(f["begin"] for f in found)
        tokens = sum(f["tokens"] for f in found)
        return {"seconds": seconds, "tokens": tokens, "tokens_per_s": tokens / seconds}

    def close(self) -> None:
        for process in self._processes:
            process.communicate(timeout=60)


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("words", nargs="*", help="KEY=VALUE of the engines")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    words = [f"model.path={options.model}", *options.words]
    rounds: list[dict[str, Any]] = []
    record = {
        "benchmark": "server/card", "command": " ".join(sys.argv[1:]), "commit": commit(),
        "machine": machine(), "rounds": rounds,
    }  # fmt: skip
    with ExitStack() as stack:
        ways = {name: Way(name, [words]) for name in ("llm", "async_llm")}
        server = stack.enter_context(serving([*words, "server.log_requests=false"]))
        ways["http"] = Way("http", [[server.url, str(n)] for n in range(NUM_CLIENTS)])
        for way in ways.values():
            stack.callback(way.close)
            way.serve(min(32, options.requests), min(64, options.longest), 0, options.vocabulary)
        for number in range(options.rounds):
            before = server.cpu_s()
            found = {
                name: way.serve(options.requests, options.longest, number + 1, options.vocabulary)
                for name, way in ways.items()
            }
            found["http"]["server_cpu_s"] = server.cpu_s() - before
            rounds.append(found)
            texts = [f"{name} {one['tokens_per_s']:.0f}" for name, one in found.items()]
            print(f"round {number + 1}, tokens/s: {', '.join(texts)}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name in ("llm", "http"):
        ratios = [r[name]["tokens_per_s"] / r["async_llm"]["tokens_per_s"] for r in rounds]
        print(
            f"{name} / async_llm: {', '.join(f'{ratio:.3f}' for ratio in ratios)}; median "
            f"{median(ratios):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
