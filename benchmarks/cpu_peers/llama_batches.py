"""llama.cpp through the C interface of the package `llama-cpp-py-sync`: many sequences at once.

Greedy, in float32 with a float32 cache. A prompt joins the running sequences as soon as one of
`SEQUENCES` is free, whole, as in a server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp_py_sync._cffi_bindings import get_ffi, get_lib  # pyright: ignore[reportMissingImports]

SEQUENCES = 32
BATCH = 2048  # tokens of one call
FLOAT32 = 0  # of ggml_type


class LlamaBatches:
    """A model and a context of `SEQUENCES` sequences."""

    def __init__(self, file: Path, threads: int, context: int) -> None:
        self._lib: Any = get_lib()
        ffi: Any = get_ffi()
        lib = self._lib
        self._quiet = ffi.callback("void(enum ggml_log_level, const char *, void *)")(
            lambda level, text, data: None
        )
        lib.llama_log_set(self._quiet, ffi.NULL)
        lib.llama_backend_init()
        model = lib.llama_model_load_from_file(str(file).encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx = SEQUENCES * context
        params.n_batch, params.n_ubatch, params.n_seq_max = BATCH, 512, SEQUENCES
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = FLOAT32
        self._context = lib.llama_init_from_model(model, params)
        self._vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        self._memory = lib.llama_get_memory(self._context)
        self._batch = lib.llama_batch_init(BATCH, 0, 1)
        self._ffi = ffi

    def generate(self, prompts: list[list[int]], counts: list[int]) -> list[list[int]]:
        """As many greedy tokens as are asked for, of each prompt."""
        self._lib.llama_memory_clear(self._memory, True)
        outputs: list[list[int]] = [[] for _ in prompts]
        waiting = list(range(len(prompts)))
        free = list(range(SEQUENCES))
        running: dict[int, int] = {}  # request by sequence
        while waiting or running:
            self._batch.n_tokens = 0
            last: dict[int, int] = {}  # sequence by the place of its last token
            for sequence, i in running.items():
                position = len(prompts[i]) + len(outputs[i]) - 1
                last[self._add(sequence, position, outputs[i][-1:])] = sequence
            while waiting and free and self._has_room(prompts[waiting[0]]):
                sequence = free.pop(0)
                running[sequence] = waiting.pop(0)
                last[self._add(sequence, 0, prompts[running[sequence]])] = sequence
            code = self._lib.llama_decode(self._context, self._batch)
            if code != 0:
                raise RuntimeError(f"llama_decode returned {code}")
            for place, sequence in last.items():
                i = running[sequence]
                outputs[i].append(self._best(place))
                if len(outputs[i]) == counts[i]:
                    del running[sequence]
                    free.append(sequence)
                    self._lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return outputs

    def _has_room(self, prompt: list[int]) -> bool:
        return self._batch.n_tokens + len(prompt) <= BATCH

    def _add(self, sequence: int, position: int, tokens: list[int]) -> int:
        """Put tokens of a sequence into the batch; the place of the last, whose logits are read."""
        batch = self._batch
        for offset, token in enumerate(tokens):
            place = batch.n_tokens
            batch.token[place] = token
            batch.pos[place] = position + offset
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = sequence
            batch.logits[place] = offset == len(tokens) - 1
            batch.n_tokens = place + 1
        return batch.n_tokens - 1

    def _best(self, place: int) -> int:
        logits = self._lib.llama_get_logits_ith(self._context, place)
        data = self._ffi.buffer(logits, self._vocab_size * 4)
        return int(np.frombuffer(data, np.float32).argmax())
