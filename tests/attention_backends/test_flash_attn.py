"""The backend `flash_attn` where no GPU is: what it finds, what it says, what it prepares.

The modules below stand for wheels: they have the functions that each FlashAttention offers,
and compute nothing.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from nanofw.attention_backends import flash_attn as backend
from nanofw.attention_backends.flash_attn_versions import FlashVersion, find_version
from tests.attention_backends.batches import make_config, make_rows

HOPPER, AMPERE, BLACKWELL = (9, 0), (8, 0), (10, 0)


def module(name: str, *functions: str, **values) -> ModuleType:
    made = ModuleType(name)
    made.__spec__ = __import__("importlib.machinery").machinery.ModuleSpec(name, None)
    for function in functions:
        setattr(made, function, lambda *a, **k: None)
    for key, value in values.items():
        setattr(made, key, value)
    return made


@pytest.fixture
def installed(monkeypatch):
    """A function that puts modules in place of what is installed."""
    names = ("flash_attn", "flash_attn.cute", "flash_attn_interface", "flash_attn_config")

    def install(*modules: ModuleType) -> None:
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)
        for each in modules:
            monkeypatch.setitem(sys.modules, each.__name__, each)

    return install


def version_for(capability: tuple[int, int], wanted: int | None) -> FlashVersion:
    found = find_version(capability, wanted)
    assert isinstance(found, FlashVersion)
    return found


def reason_against(capability: tuple[int, int], wanted: int | None) -> str:
    found = find_version(capability, wanted)
    assert isinstance(found, str)
    return found


def flash_2(**values) -> ModuleType:
    return module("flash_attn", "flash_attn_with_kvcache", "flash_attn_varlen_func", **values)


def flash_3() -> ModuleType:
    return module("flash_attn_interface", "flash_attn_with_kvcache", "get_scheduler_metadata")


def flash_3_flags(**flags) -> ModuleType:
    named = {f"FLASHATTENTION_DISABLE_{key}": value for key, value in flags.items()}
    return module("flash_attn_config", CONFIG={"build_flags": named})


def test_without_any_flash_attention_the_answer_is_an_install_line(installed) -> None:
    installed()
    answer = find_version(HOPPER, None)
    assert isinstance(answer, str)
    assert "FlashAttention-3 is not installed" in answer
    assert "pip install 'nanofw[fa3]'" in answer


def test_the_fastest_that_supports_the_card_is_taken(installed) -> None:
    installed(flash_2(__version__="2.8.3"), flash_3())
    assert version_for(HOPPER, None).number == 3
    assert str(find_version(AMPERE, None)) == "FlashAttention-2 (2.8.3)"
    assert version_for(HOPPER, 2).number == 2


def test_a_version_that_the_card_does_not_support_is_refused_with_those_it_takes(installed) -> None:
    installed(flash_3())
    answer = find_version(AMPERE, 3)
    assert answer == (
        "FlashAttention-3 does not support compute capability 8.0; it takes FlashAttention-2"
    )
    assert "no FlashAttention supports compute capability 7.5" in reason_against((7, 5), None)


def test_a_build_without_paged_kv_is_passed_over_and_said(installed) -> None:
    installed(flash_3(), flash_3_flags(PAGEDKV=True), flash_2())
    assert version_for(HOPPER, None).number == 2
    assert "FlashAttention-3 was built without paged KV" in reason_against(HOPPER, 3)


def test_a_broken_installation_is_told_from_a_missing_one(installed, tmp_path, monkeypatch) -> None:
    installed()
    monkeypatch.delitem(sys.modules, "flash_attn_interface")
    (tmp_path / "flash_attn_interface.py").write_text(
        "raise ImportError('undefined symbol: _ZN3c10')", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    answer = reason_against(HOPPER, None)
    assert "installed but fails to import (undefined symbol: _ZN3c10)" in answer


def test_build_flags_narrow_the_claim(installed) -> None:
    installed(
        flash_3(), flash_3_flags(HDIM96=True, HDIM192=True, HDIM256=True, LOCAL=True, SOFTCAP=True)
    )
    limits: Any = version_for(HOPPER, None).limits
    assert limits["head_dims"] == (64, 80, 96, 112, 128)
    assert limits["sliding_window"] is False
    assert limits["soft_cap"] is False
    installed(flash_3(), flash_3_flags(FP16=True))
    limits: Any = version_for(HOPPER, None).limits
    assert limits["dtypes"] == ("bfloat16",)
    assert "soft_cap" not in limits
    assert "sliding_window" not in limits
    assert 256 in limits["head_dims"]


def test_flash_attention_2_takes_pages_of_256_alone(installed) -> None:
    installed(flash_2())
    assert version_for(AMPERE, None).limits == {"block_sizes": (256,)}


def test_flash_attention_4_is_first_on_blackwell(installed) -> None:
    installed(flash_2(), module("flash_attn.cute", "flash_attn_varlen_func"))
    found = version_for(BLACKWELL, None)
    assert found.number == 4
    assert found.limits["cuda_graph"] is False
    assert found.limits["cuda_graph_prefill"] is False


def test_probe_refuses_a_cpu_in_words() -> None:
    assert backend.probe("cpu", None) == "FlashAttention runs on NVIDIA GPUs, not on 'cpu'"


class Recorder:
    """Stands for `get_scheduler_metadata`: keeps its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple, dict]] = []

    def __call__(self, *positional, **named) -> torch.Tensor:
        self.calls.append((positional, named))
        return torch.tensor(len(self.calls))


def made_backend(number: int, recorder: Recorder | None = None, **changes):
    made = backend.FlashAttention.__new__(backend.FlashAttention)
    backend.PagedPool.__init__(made, make_config(dtype=torch.bfloat16, **changes))
    functions = {"get_scheduler_metadata": recorder}
    made.version = FlashVersion(number, module("stand_in", **functions), {})
    return made


def test_scheduler_metadata_is_computed_once_per_window() -> None:
    recorder = Recorder()
    made = made_backend(3, recorder, num_layers=4, sliding_windows=(None, 128, None, 128))
    rows, _ = make_rows([40, 40], 16)
    rows.computed[:] = [7, 20]
    batch = rows.batch([1, 1], [0, 1])
    metadata = made.prepare(batch)
    assert metadata.max_query_len == 1
    assert set(metadata.schedules) == {None, 128}
    assert sorted(named["window_size"] for _, named in recorder.calls) == [(-1, -1), (127, 0)]
    (batch_size, max_query, max_keys, *heads, lengths), named = recorder.calls[0]
    assert (batch_size, max_query, heads) == (2, 1, [4, 2, 64])
    # The bound on keys is the table's width, as the attention call computes it.
    assert max_keys == batch.block_tables.shape[1] * 16
    assert lengths is batch.context_lens
    assert named["cu_seqlens_q"] is None
    assert named["page_size"] == 16


def test_a_mixed_batch_is_one_call_with_the_longest_row() -> None:
    recorder = Recorder()
    made = made_backend(3, recorder)
    rows, _ = make_rows([40, 40], 16)
    rows.computed[0] = 9
    batch = rows.batch([1, 30], [0, 1])
    metadata = made.prepare(batch)
    assert metadata.max_query_len == 30
    assert len(recorder.calls) == 1
    assert recorder.calls[0][1]["cu_seqlens_q"] is batch.query_starts


def test_capped_scores_reach_the_library_and_its_scheduler() -> None:
    recorder, calls = Recorder(), Recorder()
    made = made_backend(3, recorder, soft_cap=30.0)
    library: Any = made.version.module
    library.flash_attn_with_kvcache = lambda *a, **k: (calls(*a, **k), a[0])[1]
    rows, blocks = make_rows([40, 40], 16)
    batch = rows.batch([1, 1], [0, 1])
    batch.attention = made.prepare(batch)
    made.attend(torch.zeros(2, 4, 64), 0, made.allocate(blocks)[0], batch, 0.125)
    assert recorder.calls[0][1]["has_softcap"] is True
    assert calls.calls[0][1]["softcap"] == 30.0


def test_flash_attention_2_gets_prefix_sums_of_the_contexts() -> None:
    made = made_backend(2)
    rows, _ = make_rows([40, 40], 16)
    rows.computed[0] = 9
    metadata = made.prepare(rows.batch([1, 30], [0, 1]))
    assert metadata.key_starts.tolist() == [0, 10, 40]
    assert metadata.key_starts.dtype == torch.int32
    decode = made.prepare(rows.batch([1, 1], [0, 1]))
    assert decode.key_starts is None


def test_pool_pages_lie_as_flash_attention_wants_them() -> None:
    made = made_backend(3, num_layers=2)
    pool = made.allocate(5)
    assert [tuple(kv.shape) for kv in pool] == [(2, 5, 16, 2, 64)] * 2
    assert all(kv.is_contiguous() for kv in pool)
    assert made.bytes_per_block() == 2 * np.prod((2, 16, 2, 64)) * 2
