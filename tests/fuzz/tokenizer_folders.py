"""Random tokenizer files of a folder, read by nanofw and by transformers.

`python -m tests.fuzz.tokenizer_folders FIRST COUNT`: the seeds from `FIRST` on.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.text.conftest import byte_level, sentencepiece

TOKENS = ("<|im_start|>", "<|im_end|>", "<s>", "</s>", "<pad>", "<tool>", "king", "<think>")
TEXT = "<s>Once <|im_start|> upon<|im_end|>a <tool>time <think> king </s><pad><unk>"
NAMED = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "image_token")


def random_files(seed: int) -> dict[str, Any]:
    """By name what is in each file of a folder."""
    rng = random.Random(seed)
    tokenizer = json.loads((byte_level if rng.random() < 0.7 else sentencepiece)().to_str())
    if rng.random() < 0.5:
        tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if rng.random() < 0.8]
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name in NAMED:
        if rng.random() < 0.4:
            config[name] = rng.choice(TOKENS)
    if rng.random() < 0.4:
        chosen = rng.sample(TOKENS, rng.randrange(1, 5))
        config["added_tokens_decoder"] = {
            str(500 + place): {"content": text, **_flags(rng)} for place, text in enumerate(chosen)
        }
    for key in ("additional_special_tokens", "extra_special_tokens"):
        if rng.random() < 0.25:
            config[key] = rng.sample(TOKENS, rng.randrange(3))
    files: dict[str, Any] = {"tokenizer.json": tokenizer, "tokenizer_config.json": config}
    if rng.random() < 0.3:
        files["added_tokens.json"] = {
            text: 600 + place for place, text in enumerate(rng.sample(TOKENS, 2))
        }
    if rng.random() < 0.3:
        files["special_tokens_map.json"] = {"eos_token": rng.choice(TOKENS)}
    return files


def _flags(rng: random.Random) -> dict[str, bool]:
    names = ("lstrip", "rstrip", "normalized", "single_word", "special")
    return {name: rng.random() < 0.4 for name in names}


def write(folder: Path, files: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def read_here(folder: Path) -> dict[str, Any]:
    """Ids and texts that nanofw makes with the folder."""
    from nanofw.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    return {
        "ids": ids,
        "text": tokenizer.decode(ids, skip_special_tokens=False),
        "without_special": tokenizer.decode(ids),
        "size": tokenizer.vocab_size,
        "eos": next(iter(tokenizer.eos_token_ids), None),
        "bos": tokenizer.bos_token_id,
    }


def read_there(folder: Path) -> dict[str, Any]:
    """The same from transformers."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    plain = {"clean_up_tokenization_spaces": False}
    return {
        "ids": ids,
        "text": tokenizer.decode(ids, skip_special_tokens=False, **plain),
        "without_special": tokenizer.decode(ids, skip_special_tokens=True, **plain),
        "size": len(tokenizer),
        "eos": tokenizer.eos_token_id,
        "bos": tokenizer.bos_token_id,
    }


def difference(folder: Path, seed: int) -> str | None:
    """What differs; None: nothing."""
    write(folder, random_files(seed))
    ours, theirs = read_here(folder), read_there(folder)
    if ours == theirs:
        return None
    names = [name for name in ours if ours[name] != theirs[name]]
    return "; ".join(f"{name} here {ours[name]!r}, there {theirs[name]!r}" for name in names)


def main() -> None:
    first, count = map(int, sys.argv[1:3])
    num_different = 0
    with tempfile.TemporaryDirectory() as parent:
        for seed in range(first, first + count):
            found = difference(Path(parent, str(seed)), seed)
            if found:
                num_different += 1
                print(f"seed {seed}: {found}")
    print(f"{count} tokenizer folders, {num_different} read differently")
    sys.exit(num_different > 0)


if __name__ == "__main__":
    main()
