"""Writes the model folder in the format of published Qwen3 checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from tools.train_demo.model import DemoModel
from tools.train_demo.sampling import TEMPERATURE, TOP_P
from tools.train_demo.settings import END_OF_TEXT, Settings

WEIGHTS = "model.safetensors"


def export(folder: Path, model: DemoModel, tokenizer: Tokenizer) -> None:
    """Weights in bfloat16, configuration, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id(END_OF_TEXT)
    assert end is not None
    _write(folder / "config.json", model_config(model.settings, end))
    _write(folder / "generation_config.json", generation_config(end))
    _write(folder / "tokenizer_config.json", tokenizer_config(model.settings.context))


def load_exported(folder: Path, settings: Settings, device: str) -> DemoModel:
    """The exported weights, widened to float32."""
    model = DemoModel(settings)
    state = load_file(folder / WEIGHTS)
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    return model.to(device).eval()


def model_config(settings: Settings, end: int) -> dict[str, object]:
    """The configuration as Qwen3 checkpoints state it."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": end,
        "head_dim": settings.head_dim,
        "hidden_act": "silu",
        "hidden_size": settings.hidden_size,
        "initializer_range": settings.init_std,
        "intermediate_size": settings.intermediate_size,
        "max_position_embeddings": settings.context,
        "model_type": "qwen3",
        "num_attention_heads": settings.num_heads,
        "num_hidden_layers": settings.num_layers,
        "num_key_value_heads": settings.num_kv_heads,
        "pad_token_id": end,
        "rms_norm_eps": settings.norm_eps,
        "rope_scaling": None,
        "rope_theta": settings.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": settings.vocab_size,
    }


def generation_config(end: int) -> dict[str, object]:
    """How the figures of the card were sampled."""
    return {
        "do_sample": True,
        "eos_token_id": end,
        "pad_token_id": end,
        "temperature": TEMPERATURE,
        "top_p": TOP_P,
    }


def tokenizer_config(context: int) -> dict[str, object]:
    """No chat template: this is a base model."""
    return {
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TEXT,
        "model_max_length": context,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
