"""The figures of the model card: bits per byte, known words, verbatim runs."""

from __future__ import annotations

import statistics
from collections import defaultdict

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional as F

from tools.train_demo.data import Document, word_runs, words
from tools.train_demo.model import DemoModel
from tools.train_demo.sampling import TEMPERATURE, TOP_P, continuations
from tools.train_demo.settings import SAMPLE_PROMPTS

SAMPLES_PER_PROMPT = 32
SAMPLE_TOKENS = 256
SEED_WORDS = 4  # runs shorter than this are not looked for
LOOP_WORDS = 5  # a text that has the same run of so many words again repeats itself


@torch.no_grad()
def bits_per_byte(model: DemoModel, documents: list[np.ndarray], size: int) -> float:
    """Bits that the model needs per byte of text, every chapter on its own.

    A chapter is read after an end of text and closes with one, which is counted. Chapters longer
    than the context are cut, and each piece starts anew.
    """
    model.eval()
    device = next(model.parameters()).device
    nats = 0.0
    for document in documents:
        for start in range(0, len(document), model.settings.context):
            piece = torch.from_numpy(document[start : start + model.settings.context]).to(device)
            first = document[-1] if start == 0 else document[start - 1]
            inputs = torch.cat((piece.new_tensor([int(first)]), piece[:-1]))
            logits = model(inputs[None])[0].float()
            nats += F.cross_entropy(logits, piece, reduction="sum").item()
    return nats / np.log(2) / size


class Copies:
    """Finds the longest run of words that a text shares with the training text."""

    def __init__(self, documents: list[Document]) -> None:
        self.source = [word for doc in documents for word in [*words(doc.text), ""]]
        self.places = defaultdict(list)
        for place in range(len(self.source) - SEED_WORDS):
            self.places[tuple(self.source[place : place + SEED_WORDS])].append(place)

    def longest(self, text: str) -> str:
        """The longest run found in the training text, as lower-case words; may be empty."""
        own, best = words(text), []
        for start in range(len(own)):
            # Only a run that is longer than the best one so far matters.
            for place in self.places.get(tuple(own[start : start + SEED_WORDS]), ()):
                length = self._length(own, start, place)
                if length > len(best):
                    best = own[start : start + length]
        return " ".join(best)

    def _length(self, own: list[str], start: int, place: int) -> int:
        length = SEED_WORDS
        while (
            start + length < len(own)
            and place + length < len(self.source)
            and own[start + length] == self.source[place + length]
        ):
            length += 1
        return length


def known_share(texts: list[str], vocabulary: set[str]) -> float:
    """The share of running words that occur in the training text."""
    running = [word for text in texts for word in words(text)]
    return sum(word in vocabulary for word in running) / max(1, len(running))


def repeated_share(text: str) -> float:
    """The share of a text's runs of five words that stood in it before."""
    runs = word_runs(words(text), LOOP_WORDS)
    return 1 - len(set(runs)) / max(1, len(runs))


def whole_words(text: str, ended: bool) -> str:
    """The text without its last word if the length limit may have cut that."""
    return text if ended else text.rsplit(maxsplit=1)[0]


def sample_figures(
    model: DemoModel, tokenizer: Tokenizer, train: list[Document], held_out: list[Document]
) -> dict[str, object]:
    """Draw texts and say how they relate to the training text; held-out text for comparison."""
    drawn = {
        prompt: continuations(model, tokenizer, prompt, SAMPLES_PER_PROMPT, SAMPLE_TOKENS, index)
        for index, prompt in enumerate(SAMPLE_PROMPTS)
    }
    samples = [sample for several in drawn.values() for sample in several]
    texts = [whole_words(*sample) for sample in samples]
    vocabulary = {word for doc in train for word in words(doc.text)}
    copies = Copies(train)
    return {
        "temperature": TEMPERATURE,
        "top_p": TOP_P,
        "samples": len(samples),
        "ended_by_themselves": sum(ended for _, ended in samples),
        "of_sampled_text": _compare(texts, vocabulary, copies),
        "of_held_out_text": _compare([_excerpt(doc) for doc in held_out], vocabulary, copies),
        "unknown_words": sorted({w for text in texts for w in words(text)} - vocabulary),
        "texts": [
            {"prompt": prompt, "text": text}
            for prompt, several in drawn.items()
            for text, _ in several[:3]
        ],
    }


def _compare(texts: list[str], vocabulary: set[str], copies: Copies) -> dict[str, object]:
    runs = [copies.longest(text) for text in texts]
    lengths = [len(run.split()) for run in runs]
    longest = max(runs, key=lambda run: len(run.split()))
    return {
        "words": sum(len(words(text)) for text in texts),
        "known_word_share": round(known_share(texts, vocabulary), 4),
        "longest_verbatim_run": longest,
        "longest_verbatim_run_words": max(lengths),
        "longest_verbatim_run_characters": len(longest),
        "median_longest_run_words": statistics.median(lengths),
        "repeated_share": round(statistics.mean(map(repeated_share, texts)), 4),
    }


def _excerpt(document: Document) -> str:
    """As much of a held-out chapter as a sample has, for a fair comparison."""
    return " ".join(document.text.split()[:200])
