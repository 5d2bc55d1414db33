"""The tokenizer: byte-level BPE, so that every text survives encoding and decoding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tools.train_demo.data import Document
from tools.train_demo.settings import END_OF_TEXT


def train_tokenizer(documents: list[Document], vocab_size: int) -> Tokenizer:
    """Learn merges from the training chapters; the end of text gets id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((doc.text for doc in documents), trainer)
    return tokenizer


def load_or_train(path: Path, documents: list[Document], vocab_size: int) -> Tokenizer:
    """The tokenizer kept at ``path``, made on first use."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        train_tokenizer(documents, vocab_size).save(str(path))
    tokenizer = Tokenizer.from_file(str(path))
    if tokenizer.get_vocab_size() != vocab_size:
        raise SystemExit(f"{path.name} has {tokenizer.get_vocab_size()} tokens, not {vocab_size}")
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: list[Document]) -> list[np.ndarray]:
    """The ids of each chapter, the end of text after them."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    encodings = tokenizer.encode_batch([doc.text for doc in documents])
    return [np.array([*encoding.ids, end], dtype=np.int64) for encoding in encodings]
