"""Any decoder of transformers: its modules compute, the run's attention backend attends.

KV lies in pages, requests come and go, prefixes are shared, as with the families that nanofw has
itself; only the layers between the attentions are transformers' own, and slower.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nanofw.contracts.attention_backend import ForwardBatch
from nanofw.contracts.model import Model, ModelConfig
from nanofw.errors import ModelError
from nanofw.models.any_decoder.attention import NAME, AttentionPass, install, register
from nanofw.models.any_decoder.calls import shorten_calls
from nanofw.models.any_decoder.faster import replace_modules
from nanofw.models.any_decoder.reader import load_config
from nanofw.models.any_decoder.split import split_model
from nanofw.models.any_decoder.trial import check_loaded


class _Given(nn.Module):
    """Stands for the body of a model where only its head computes, on hidden states that are given.

    Its output has them, and None for everything else.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last_hidden_state: torch.Tensor | None = None

    @property
    def decoder(self) -> _Given:
        """Where a family calls a part of its body instead."""
        return self

    def forward(self, *args: Any, **kwargs: Any) -> _Output:
        assert self.last_hidden_state is not None
        return _Output(self.last_hidden_state)


class _Output:
    def __init__(self, states: torch.Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.last_hidden_state

    def __getattr__(self, name: str) -> None:
        return None


class TransformersDecoder(Model):
    """Constructed as `TransformersDecoder(options, config)`.

    Raises:
        ModelError: the attention of this architecture cannot be replaced, or several ranks cannot
            share its layers.
    """

    def __init__(self, options: None, config: ModelConfig) -> None:
        self._config = config
        self._folder = Path(config.spec.path)
        spec, ranks = config.spec, config.communicator
        self._state = AttentionPass(
            config.attention_backend, spec.head_dim, spec.num_heads // ranks.size, ranks
        )
        self._class = self._find_class()
        with torch.device("meta"):
            self._body: nn.Module = self._class(self._their_config())
            self._split(self._body)
        self._whole: Any = self._body
        self._given = _Given()
        self._plain_head: nn.Module | None = None

    def parameters(self) -> Iterator[torch.Tensor]:
        """Of body and head, each once."""
        known: set[int] = set()
        for part in (self._body, self._whole):
            for parameter in part.parameters():
                if id(parameter) not in known:
                    known.add(id(parameter))
                    yield parameter

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Let transformers read the folder: it knows how each family keeps its weights."""
        register()
        config = self._config
        model, report = self._class.from_pretrained(
            self._folder, config=self._their_config(), dtype=config.dtype,
            local_files_only=True, output_loading_info=True,
        )  # fmt: skip
        _refuse_incomplete(report, str(self._folder))
        self._split(model)
        model = model.eval().to(config.device)
        install(model, self._state)
        prefix = model.base_model_prefix
        self._whole, self._body = model, getattr(model, prefix)
        replace_modules(model)
        setattr(model, prefix, self._given)
        shorten_calls(self._body)
        states = check_loaded(self._body, self._state, config.spec, config.device)
        self._plain_head = self._find_plain_head(states)

    def forward(self, batch: ForwardBatch, pool: list[Any]) -> torch.Tensor:
        """Hidden states [s, hidden] at `batch.logits_indices`."""
        state = self._state
        state.batch, state.pool = batch, pool
        try:
            states = self._body(
                input_ids=batch.token_ids.long().unsqueeze(0),
                position_ids=batch.positions.unsqueeze(0), use_cache=False,
            ).last_hidden_state[0]  # fmt: skip
        finally:
            state.batch, state.pool = None, []
        return states[batch.logits_indices]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [s, vocabulary] of [s, hidden], with what the family does to them."""
        if self._plain_head is not None:
            return self._plain_head(hidden)
        return self._family_logits(hidden)

    def _family_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self._given.last_hidden_state = hidden.unsqueeze(0)
        try:
            tokens = torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device)
            return self._whole(input_ids=tokens, use_cache=False).logits[0]
        finally:
            self._given.last_hidden_state = None

    @torch.inference_mode()
    def _find_plain_head(self, states: torch.Tensor) -> nn.Module | None:
        """The product with the head, where a family makes its logits of it alone; else None."""
        head = self._whole.get_output_embeddings()
        if head is None or not torch.equal(head(states), self._family_logits(states)):
            return None
        return head

    def _split(self, model: nn.Module) -> None:
        if self._config.communicator.size > 1:
            split_model(model, self._config.spec, self._config.communicator)

    def _their_config(self) -> Any:
        config = load_config(self._folder)
        config._attn_implementation = NAME
        config.use_cache = False
        return config

    def _find_class(self) -> Any:
        auto: Any = importlib.import_module("transformers").AutoModelForCausalLM
        register()
        config = load_config(self._folder)
        found = auto._model_mapping[type(config)]
        if not getattr(found, "_supports_attention_backend", False):
            raise ModelError(
                f"{self._folder}: {found.__name__} has an attention of its own in transformers, "
                "which cannot be replaced; model.name: transformers cannot run it"
            )
        return found


def _refuse_incomplete(report: Any, place: str) -> None:
    """One error for all tensors that are missing, unexpected or of another shape."""
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    lines = [
        f"{len(names)} {kind.removesuffix('_keys')}: {', '.join(names[:8])}"
        for kind in kinds
        if (names := sorted(map(str, report.get(kind) or ())))
    ]
    if lines:
        raise ModelError(
            f"{place}: the tensors do not fit what transformers makes of config.json: "
            f"{'; '.join(lines)}. Check that both belong to the same model"
        )
