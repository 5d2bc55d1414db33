"""``python -m tools.train_demo``: from the packages of the text to the model folder.

Every stage leaves its result in the work folder and is skipped when that is there, so the same
command continues after an interruption.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer

from tools.train_demo.bpe import encode_documents, load_or_train
from tools.train_demo.data import Document, Split, load_split
from tools.train_demo.export import export, load_exported
from tools.train_demo.figures import bits_per_byte, sample_figures
from tools.train_demo.settings import Settings, override
from tools.train_demo.train import Run


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_demo", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/train_demo"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds of training")
    parser.add_argument("--measure", type=Path, metavar="FOLDER", help="only measure this model")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", dest="changes")
    return parser.parse_args()


def text_bytes(documents: list[Document]) -> int:
    """Size of the chapters in UTF-8."""
    return sum(len(doc.text.encode()) for doc in documents)


def train_model(arguments: argparse.Namespace, settings: Settings, split: Split) -> Path | None:
    """Train to the end and export; the model folder, or None if the limit came first."""
    path = arguments.work / f"tokenizer-{settings.vocab_size}.json"
    tokenizer = load_or_train(path, split.train, settings.vocab_size)
    train = encode_documents(tokenizer, split.train)
    valid = encode_documents(tokenizer, split.valid)
    run = Run(arguments.work, settings, arguments.device)
    if not run.train(train, valid, text_bytes(split.valid), arguments.limit):
        print("stopped at the limit; the same command continues")
        return None
    folder = arguments.work / "model"
    export(folder, run.model, tokenizer)
    return folder


def measure(folder: Path, settings: Settings, split: Split, device: str) -> dict[str, object]:
    """The figures of an exported model: its bfloat16 weights, widened to float32."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = load_exported(folder, settings, device)
    figures: dict[str, object] = {"settings": vars(settings)}
    # Training text is measured on every 30th chapter.
    parts = {"train": split.train[::30], "valid": split.valid, "test": split.test}
    for name, documents in parts.items():
        ids = encode_documents(tokenizer, documents)
        size = text_bytes(documents)
        figures[name] = {
            "chapters": len(documents),
            "bytes": size,
            "tokens": sum(map(len, ids)),
            "bits_per_byte": round(bits_per_byte(model, ids, size), 4),
        }
    return figures | sample_figures(model, tokenizer, split.train, split.valid + split.test)


def main() -> None:
    """Run all stages that are still to be done."""
    arguments = parse_arguments()
    settings = override(Settings(), arguments.changes)
    split = load_split(arguments.work, settings.seed)
    folder = arguments.measure or train_model(arguments, settings, split)
    if folder is None:
        return
    figures = measure(folder, settings, split, arguments.device)
    report = json.dumps(figures, indent=2)
    (arguments.work / "figures.json").write_text(report + "\n", encoding="utf-8")
    print(report)


if __name__ == "__main__":
    main()
