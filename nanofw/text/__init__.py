"""Text at the edge: tokenizer, chat template, incremental detokenization, stop strings.

The engine knows token ids only. Nothing here imports torch or transformers.
"""

from __future__ import annotations

from nanofw.text.chat import ChatTemplate
from nanofw.text.stop import StopStrings
from nanofw.text.stream import TextStream
from nanofw.text.tokenizer import Tokenizer, load_tokenizer

__all__ = ["ChatTemplate", "StopStrings", "TextStream", "Tokenizer", "load_tokenizer"]
