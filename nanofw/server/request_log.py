"""A line of JSON for each request that ended. No prompts, no answers, no keys."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from nanofw.llm.results import RequestResult

logger: logging.Logger = logging.getLogger("nanofw.server.requests")


def log_to_stderr() -> None:
    """Write the lines as they are to standard error."""
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def log_request(facts: dict[str, object], results: Sequence[RequestResult], total_s: float) -> None:
    """Write the line of a request.

    Args:
        facts: what is known of it without its results.
        results: of its prompts, as far as they ended.
        total_s: from its head to the end of its answer.
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    record: dict[str, object] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **facts,
        "total_s": round(total_s, 6),
    }
    if results:
        record |= {
            "prompt_tokens": sum(len(result.prompt_token_ids) for result in results),
            "cached_tokens": sum(result.num_cached_tokens for result in results),
            "output_tokens": sum(result.num_output_tokens for result in results),
            "preemptions": sum(result.num_preemptions for result in results),
            "finish_reason": str(results[0].finish_reason),
        }
        timings = results[0].timings
        if timings is not None:
            for name in ("queue_s", "ttft_s", "e2e_s"):
                seconds: float | None = getattr(timings, name)
                record[name] = None if seconds is None else round(seconds, 6)
    logger.info(msgspec.json.encode(record).decode())
