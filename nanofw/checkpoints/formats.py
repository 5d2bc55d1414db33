"""What else a folder may hold than a checkpoint of safetensors, by name, and what to do with it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

_CONVERT = "convert it to safetensors with transformers: from_pretrained, then save_pretrained"
_FORMATS: tuple[tuple[str, str, str], ...] = (
    (
        "*.gguf",
        "a GGUF file of llama.cpp",
        "convert it to safetensors with transformers: from_pretrained(folder, gguf_file=...), "
        "then save_pretrained; or take the repository that it was made from",
    ),
    (
        "adapter_config.json",
        "a LoRA or another adapter of PEFT, which is a change to a model and not a model",
        "merge it into its base model with PEFT (merge_and_unload, then save_pretrained)",
    ),
    ("adapter_model.*", "the weights of an adapter of PEFT", "merge it into its base model"),
    ("pytorch_model*.bin*", "pickled weights of PyTorch", _CONVERT),
    (
        "consolidated.*",
        "weights in a publisher's own format",
        "take the folder for transformers",
    ),
    ("model_index.json", "a pipeline of diffusers", "nanofw runs language models"),
    ("tf_model.h5", "weights of TensorFlow", _CONVERT),
    ("flax_model*.msgpack", "weights of Flax", _CONVERT),
    ("*.onnx", "a graph of ONNX", "take the folder that it was made from"),
    ("*.pth", "pickled weights of PyTorch", _CONVERT),
    ("*.ckpt", "a training checkpoint", _CONVERT),
    ("*.npz", "weights of NumPy or MLX", _CONVERT),
)
"""Pattern of a file's name, what it is, and what to do."""
_MOST_FILES = 10_000


def describe(folder: Path) -> str:
    """`"; it holds a GGUF file ..."`, or nothing where no other format is recognised."""
    try:
        names = sorted(path.name for path in islice(folder.iterdir(), _MOST_FILES))
    except OSError:
        return ""
    for pattern, what, advice in _FORMATS:
        found = next((name for name in names if Path(name).match(pattern)), None)
        if found is not None:
            return f"; it holds {found}, {what}: {advice}"
    return ""


def describe_file(path: Path) -> str:
    """What a path to a file instead of a folder is, and what to do."""
    for pattern, what, advice in _FORMATS:
        if path.match(pattern):
            return f"it is {what}: {advice}"
    return "it is a file; model.path is the folder with config.json and the weights"
