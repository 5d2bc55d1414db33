"""What every model must keep: logits that depend on the tokens before them and on nothing else."""

# transformers and safetensors say little about their types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import atexit
import importlib.util
import json
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast
from unittest import SkipTest

from nanofw.checkpoints.config import read_checkpoint
from nanofw.checkpoints.families import FAMILIES
from nanofw.contracts.attention_backend import AttentionConfig
from nanofw.contracts.communicator import SingleRank
from nanofw.contracts.hooks import hook_problems
from nanofw.contracts.model import Model, ModelConfig
from nanofw.contracts.model_spec import ModelSpec
from nanofw.errors import ModelError
from nanofw.testing.class_state import check_class_state, class_state

if TYPE_CHECKING:
    import torch

    from nanofw.testing.model_driver import ModelDriver

SMALL: Mapping[str, object] = {
    "vocab_size": 128, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32",
    "initializer_range": 0.25, "eos_token_id": 1, "bos_token_id": None, "pad_token_id": None,
}  # fmt: skip
"""A `config.json` in the keys that most families have."""
BLOCK_SIZE, NUM_BLOCKS = 4, 64
FOREIGN = "no.such.tensor"
TOLERANCE = 1e-3
"""Largest difference of two logits that should be equal, as a share of their spread."""


class ModelChecks(ABC):
    """Checks of one model; each `test_` method is one. Subclass it under pytest.

        class TestMyModel(ModelChecks):
            name = "MyForCausalLM"
            config_json = {"hidden_size": 32}

            def make(self, config):
                return MyForCausalLM(MyOptions(), config)

    A small model of this architecture computes prompts in one piece, in chunks, token by token,
    beside others, over shared blocks. Where transformers knows the architecture and is
    installed, weights come from there, and so do the logits that are expected.

    Attributes:
        name: the architecture of its checkpoints.
        config_json: what its `config.json` has beside, or in place of, the usual small values.
        reader: the manifest's `spec`; None: the core reads.
        device: where to run.
    """

    name: str
    config_json: ClassVar[Mapping[str, object]] = {}
    reader: ClassVar[Callable[[Mapping[str, object], Path], ModelSpec] | None] = None
    device: str = "cpu"

    @abstractmethod
    def make(self, config: ModelConfig) -> Model:
        """A fresh model, empty."""

    def tensors(self, spec: ModelSpec) -> dict[str, torch.Tensor] | None:
        """Random tensors of a checkpoint, by name; None: the model fills itself (`load_random`)."""
        theirs = _theirs(json.dumps(self.checkpoint()))
        return None if theirs is None else theirs.tensors

    def expected_logits(
        self, tensors: Mapping[str, torch.Tensor], token_ids: Sequence[int]
    ) -> torch.Tensor | None:
        """float32[t, vocab] of t tokens by another implementation, or None."""
        theirs = _theirs(json.dumps(self.checkpoint()))
        return None if theirs is None else theirs.logits(token_ids)

    def checkpoint(self) -> dict[str, object]:
        """The `config.json`."""
        made = {"architectures": [self.name], **SMALL, **self.config_json}
        model_type = _model_type(cast("list[str]", made["architectures"])[0])
        return made if model_type is None else {"model_type": model_type, **made}

    def spec(self) -> ModelSpec:
        """The description that the model is made with."""
        checkpoint = self.checkpoint()
        folder = _folder(json.dumps(checkpoint))
        reader = type(self).reader  # from the class, where a function is not a method
        return read_checkpoint(folder) if reader is None else reader(checkpoint, folder)

    def driver(self) -> ModelDriver:
        """A driver of a fresh model with weights."""
        import torch

        made, tensors = self.empty(), self.tensors(self.spec())
        torch.manual_seed(0)
        if tensors is None:
            made.model.load_random()
        else:
            made.model.load(iter(tensors.items()))
        return made

    def empty(self) -> ModelDriver:
        """A driver of a fresh model without weights."""
        import torch

        from nanofw.attention_backends.sdpa import SdpaBackend
        from nanofw.testing.model_driver import ModelDriver

        spec = self.spec()
        attention = AttentionConfig(
            num_heads=spec.num_heads, num_kv_heads=spec.num_kv_heads, head_dim=spec.head_dim,
            num_layers=spec.num_layers, block_size=BLOCK_SIZE, max_num_seqs=8,
            max_num_batched_tokens=128, max_model_len=NUM_BLOCKS * BLOCK_SIZE,
            dtype=torch.float32, device=torch.device(self.device),
            sliding_windows=spec.sliding_windows, soft_cap=spec.soft_cap,
        )  # fmt: skip
        backend = SdpaBackend(None, attention)
        config = ModelConfig(
            spec=spec, device=attention.device, dtype=attention.dtype, communicator=SingleRank(),
            attention_backend=backend, max_model_len=spec.max_model_len, name=self.name,
        )  # fmt: skip
        return ModelDriver(self.make(config), backend, attention, NUM_BLOCKS, spec.vocab_size)

    def test_it_keeps_the_form_of_the_contract(self) -> None:
        """It derives from `Model`, and its methods are those of the contract."""
        model = self.driver().model
        what = type(model).__name__
        assert isinstance(model, Model), f"{what} must derive from Model"
        problems = hook_problems(type(model), Model)
        assert not problems, "; ".join(problems)
        model.check(None)

    def test_logits_are_those_of_another_implementation(self) -> None:
        """Of transformers, or of `expected_logits`."""
        tensors = self.tensors(self.spec())
        for length in (1, 9, 40):
            expected = None
            if tensors is not None:
                expected = self.expected_logits(tensors, sequence(length))
            if expected is None:
                raise SkipTest("no other implementation is known; expected_logits() can name one")
            (found,) = self.driver().logits([(0, sequence(length))])
            check_equal(found, expected, f"{length} tokens, and another implementation")

    def test_a_prompt_in_pieces(self) -> None:
        """Chunks of any length, single tokens among them, give the logits of one piece."""
        (whole,) = self.driver().logits([(0, sequence(40))])
        for pieces in ([39, 1], [17, 1, 1, 21], [1] * 12 + [28]):
            driver, at, found = self.driver(), 0, list["torch.Tensor"]()
            for count in pieces:
                found += driver.logits([(0, sequence(40)[at : at + count])])
                at += count
            check_equal(_joined(found), whole, f"in pieces of {pieces}, and at once")

    def test_rows_beside_each_other(self) -> None:
        """A row has the logits that it has alone, in any place of any batch."""
        lengths = {0: 30, 1: 5, 2: 13}
        alone = {
            row: self.driver().logits([(0, sequence(n, row))])[0] for row, n in lengths.items()
        }
        driver = self.driver()
        first = driver.logits([(0, sequence(30)[:29]), (1, sequence(5, 1)[:4])])
        second = driver.logits(
            [(1, sequence(5, 1)[4:]), (0, sequence(30)[29:]), (2, sequence(13, 2))]
        )
        together = {
            0: _joined([first[0], second[1]]),
            1: _joined([first[1], second[0]]),
            2: second[2],
        }
        for row, found in together.items():
            check_equal(found, alone[row], f"row {row} beside others, and alone")

    def test_nothing_comes_from_later_tokens(self) -> None:
        """Logits of a position do not change with what comes after it."""
        (one,) = self.driver().logits([(0, sequence(20))])
        (other,) = self.driver().logits([(0, [*sequence(12), *sequence(8, 3)])])
        check_equal(one[:12], other[:12], "with other tokens after the first 12, and without")

    def test_earlier_tokens_matter(self) -> None:
        """Another token at the beginning changes the logits of the last one."""
        tokens = sequence(20)
        (one,) = self.driver().logits([(0, tokens)])
        (other,) = self.driver().logits([(0, [(tokens[0] + 1) % 97 + 2, *tokens[1:]])])
        moved = float((one[-1] - other[-1]).abs().max())
        assert moved > 0, "the last logits are the same with another first token: nothing attends"

    def test_every_layer_matters(self) -> None:
        """Other weights in any layer give other logits."""
        (before,) = self.driver().logits([(0, sequence(20))])
        moved = list[bool]()
        for layer in range(len(self.driver().layers())):
            driver = self.driver()
            driver.refill(layer)
            (after,) = driver.logits([(0, sequence(20))])
            moved.append(bool((after != before).any()))
        if not any(moved):
            raise SkipTest("the names of its parameters do not say to which layers they belong")
        still = [layer for layer, has_moved in enumerate(moved) if not has_moved]
        assert not still, f"no logit depends on the weights of layer {still[0]}: it is not used"

    def test_the_order_of_tokens_matters(self) -> None:
        """Where positions rotate, a single layer tells two orders of earlier tokens apart."""
        spec, count = self.spec(), len(self.driver().layers())
        ropes = spec.layer_ropes or (spec.rope,) * count
        rotated = [layer for layer in range(count) if ropes[layer]]
        if not rotated:
            raise SkipTest("no layer is known whose positions rotate")
        one, other = sequence(20), sequence(20)
        other[15], other[17] = one[17], one[15]
        for layer in rotated:
            driver = self.driver()
            for each in range(count):
                driver.refill(each) if each == layer else driver.silence(each)
            first, second = driver.logits([(0, one), (1, other)])
            if not (first[-1] - second[-1]).abs().max() <= TOLERANCE / 10 * first[-1].std():
                return  # NaN is the matter of other checks
        raise AssertionError(
            "the last logits stay the same when two earlier tokens change places: no layer sees "
            "batch.positions, though the checkpoint has rotary positions"
        )

    def test_only_what_is_asked_for(self) -> None:
        """Logits of the last token of each row are those of a pass that asks for all."""
        parts = [(0, sequence(7)), (1, sequence(11, 1))]
        whole, last = self.driver().logits(parts), self.driver().logits(parts, only_last=True)
        for row, (every, one) in enumerate(zip(whole, last, strict=True)):
            check_equal(one, every[-1:], f"the last logits of row {row}, alone and with all others")

    def test_padded_tokens_change_nothing(self) -> None:
        """Tokens without a slot, as the replay of a captured step has them."""
        plain, padded = self.driver(), self.driver()
        for driver, num_padded in ((plain, 0), (padded, 3)):
            driver.logits([(0, sequence(9)), (1, sequence(6, 1))])
            found = driver.logits([(0, [5]), (1, [7])], num_padded=num_padded)
            check_equal(
                _joined(found),
                _joined(self._decoded()),
                f"with {num_padded} padded tokens, and without",
            )

    def test_a_prefix_in_shared_blocks(self) -> None:
        """A row that begins with blocks of another has the logits of one that computed them."""
        tokens = sequence(2 * BLOCK_SIZE + 5)
        (whole,) = self.driver().logits([(0, tokens)])
        driver = self.driver()
        driver.logits([(0, sequence(2 * BLOCK_SIZE + 1))])
        driver.share(1, source=0, num_blocks=2)
        (found,) = driver.logits([(1, tokens[2 * BLOCK_SIZE :])])
        check_equal(found, whole[2 * BLOCK_SIZE :], "over shared blocks, and from the beginning")

    def test_two_models_share_nothing(self) -> None:
        """One computes in the middle of the other's request."""
        (whole,) = self.driver().logits([(0, sequence(20))])
        first = self.driver()
        before = class_state(type(first.model))
        found = first.logits([(0, sequence(20)[:15])])
        self.driver().logits([(0, sequence(25, 3))])
        found += first.logits([(0, sequence(20)[15:])])
        check_class_state(before, type(first.model))
        check_equal(_joined(found), whole, "beside another model, and alone")

    def test_checkpoints_that_are_not_whole_are_refused(self) -> None:
        """A tensor that is missing or unexpected is a `ModelError` that names it."""
        tensors = self.tensors(self.spec())
        if tensors is None:
            self._refuse_a_foreign_checkpoint()
            return
        name = sorted(name for name in tensors if tensors[name].dim() > 1)[-1]
        for what, changed in {
            "lacks": {key: value for key, value in tensors.items() if key != name},
            "has in addition": {**tensors, f"{name}.extra": tensors[name]},
        }.items():
            wrong = f"{name}.extra" if what == "has in addition" else name
            try:
                self.empty().model.load(iter(changed.items()))
            except ModelError as error:
                told = str(error)
                assert name.rpartition(".")[0] in told or wrong in told, (
                    f"load() refuses a checkpoint that {what} {wrong!r} without its name: {told}"
                )
            else:
                raise AssertionError(f"load() takes a checkpoint that {what} {wrong!r}")

    def _refuse_a_foreign_checkpoint(self) -> None:
        """What can be asked of every model: not one tensor is its own."""
        import torch

        try:
            self.empty().model.load(iter([(FOREIGN, torch.zeros(1))]))
        except ModelError:
            return
        raise AssertionError(
            f"load() takes a checkpoint whose only tensor is {FOREIGN!r}: it must raise ModelError "
            "with what is missing and what is unexpected"
        )

    def _decoded(self) -> list[torch.Tensor]:
        driver = self.driver()
        driver.logits([(0, sequence(9)), (1, sequence(6, 1))])
        return driver.logits([(0, [5]), (1, [7])])


def sequence(length: int, number: int = 0) -> list[int]:
    """Made-up token ids; those of another number are others."""
    return [(17 * i * i + 5 * i + 3 + 11 * number) % 97 + 2 for i in range(length)]


def check_equal(found: torch.Tensor, expected: torch.Tensor, how: str) -> None:
    """Logits are equal but for rounding."""
    error = (found - expected).abs().max() / expected.std()
    assert error <= TOLERANCE, (  # not `error > ...`: NaN must fail
        f"logits {how}, differ by {float(error):.2g} of their spread ({TOLERANCE:.0e} is allowed)"
    )


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    import torch

    return torch.cat(list(parts))


@lru_cache
def _folder(checkpoint: str) -> Path:
    """A folder with that `config.json`, which is there until the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="nanofw-model-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "config.json").write_text(checkpoint, encoding="utf-8")
    return folder


@lru_cache
def _model_type(architecture: str) -> str | None:
    """What transformers calls the family; None: it does not know it, or is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
    found = [kind for kind, name in names if name == architecture]
    own = FAMILIES[architecture].model_types if architecture in FAMILIES else ()
    return next((kind for kind in found if kind in own), found[0] if found else None)


class _Theirs:
    """The model that transformers makes of a `config.json`, with random weights."""

    def __init__(self, folder: Path) -> None:
        import torch
        from safetensors.torch import load_file
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        self._model.float()
        with tempfile.TemporaryDirectory() as saved:  # names in files are not always those inside
            self._model.save_pretrained(saved)
            self.tensors: dict[str, torch.Tensor] = load_file(f"{saved}/model.safetensors")

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """float32[t, vocab]."""
        import torch

        with torch.inference_mode():
            return self._model(torch.tensor([list(token_ids)]), use_cache=False).logits[0]


@lru_cache
def _theirs(checkpoint: str) -> _Theirs | None:
    if "model_type" not in json.loads(checkpoint):
        return None
    return _Theirs(_folder(checkpoint))
