"""A small share of the fuzzer of tokenizer files; `make fuzz` reads many more."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.tokenizer_folders import difference


def test_tokenizer_files_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    found = {seed: difference(tmp_path / str(seed), seed) for seed in range(30)}
    assert not {seed: text for seed, text in found.items() if text is not None}
