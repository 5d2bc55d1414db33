"""nanofw: an LLM inference framework in which every decision is a plugin."""

from __future__ import annotations

__version__ = "0.1.0"
