"""What every attention backend must keep, for everything that its manifest claims."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import SkipTest

from nanofw.contracts.attention_backend import AttentionBackend, AttentionConfig
from nanofw.narrowing import Claims
from nanofw.testing.class_state import check_class_state, class_state

if TYPE_CHECKING:
    from nanofw.testing.attention_backend_driver import AttentionBackendDriver

HEAD_LAYOUTS = ((4, 2), (2, 2), (8, 1))
"""(query heads, key-value heads): grouped, one to one, one for all."""


class AttentionBackendChecks(ABC):
    """Checks of one attention backend; each `test_` method is one. Subclass it under pytest.

        class TestMyBackend(AttentionBackendChecks):
            capabilities = my_package.manifest.attention_backend().capabilities

            def make(self, config):
                return MyBackend(MyOptions(), config)

    Attributes:
        capabilities: what the manifest claims: `dtypes`, `head_dims`, `block_sizes`,
            `sliding_window`, `soft_cap`, `fused`, `cuda_graph_prefill`. What is not claimed is
            not tried.
        device: where to run.
    """

    capabilities: ClassVar[Claims] = {}
    device: str = "cpu"

    @abstractmethod
    def make(self, config: AttentionConfig) -> AttentionBackend:
        """A fresh backend."""

    def driver(self, num_blocks: int = 24, seed: int = 0, **changes: Any) -> AttentionBackendDriver:
        """A driver of a fresh backend; `changes` are fields of `AttentionConfig`."""
        import torch

        from nanofw.testing.attention_backend_driver import AttentionBackendDriver

        fields: dict[str, Any] = {
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": self.head_dims()[0],
            "num_layers": 1,
            "block_size": self.block_sizes()[0],
            "max_num_seqs": 8,
            "max_num_batched_tokens": 256,
            "dtype": self.dtypes()[0],
            **changes,
        }
        fields["dtype"] = getattr(torch, fields["dtype"])
        fields["sliding_windows"] = fields.get("sliding_windows") or (None,) * fields["num_layers"]
        config = AttentionConfig(
            max_model_len=num_blocks * fields["block_size"],
            device=torch.device(self.device),
            **fields,
        )
        return AttentionBackendDriver(self.make(config), config, num_blocks, seed)

    def dtypes(self) -> tuple[str, ...]:
        """The element types that are claimed."""
        return tuple(self.capabilities.get("dtypes", ("float32",)))

    def head_dims(self) -> tuple[int, ...]:
        """The head sizes that are tried."""
        return _some(self.capabilities.get("head_dims", (64,)), (64, 16, 80))

    def block_sizes(self) -> tuple[int, ...]:
        """The block sizes that are tried."""
        return _some(self.capabilities.get("block_sizes", (16,)), (16, 1, 5))

    def test_every_claimed_shape(self) -> None:
        """Types, head sizes, block sizes and head layouts; prompts, chunks and decodes."""
        shapes: list[dict[str, Any]] = [
            *({"dtype": dtype} for dtype in self.dtypes()),
            *({"head_dim": head_dim} for head_dim in self.head_dims()),
            *({"block_size": size, "num_blocks": 96 // size + 12} for size in self.block_sizes()),
            *({"num_heads": heads, "num_kv_heads": kv} for heads, kv in HEAD_LAYOUTS),
        ]
        for shape in shapes:
            driver = self.driver(**shape)
            for passed in growth(3):
                driver.forward(passed)

    def test_all_types_with_all_head_layouts(self) -> None:
        """Decodes of every claimed type under every head layout."""
        for dtype in self.dtypes():
            for heads, kv_heads in HEAD_LAYOUTS:
                driver = self.driver(dtype=dtype, num_heads=heads, num_kv_heads=kv_heads)
                driver.forward([(0, 19), (1, 2)])
                driver.forward([(0, 1), (1, 1)])

    def test_random_batches(self) -> None:
        """Rows of random lengths, several layers, in random order of single tokens."""
        import numpy as np

        for seed in range(4):
            generator = np.random.default_rng(seed)
            driver = self.driver(num_blocks=40, seed=seed, num_layers=2)
            room = 40 * driver.config.block_size // 5
            for _ in range(6):
                rows = generator.permutation(4)[: generator.integers(1, 5)].tolist()
                passed: list[tuple[int, int]] = []
                for row in rows:
                    left = room - (driver.rows[row].length if row in driver.rows else 0)
                    if left > 0:
                        long = int(generator.integers(1, min(left, 40) + 1))
                        passed.append((row, 1 if generator.random() < 0.5 else long))
                if passed:
                    driver.forward(sorted(passed, key=lambda item: item[1] != 1))

    def test_a_prefix_in_shared_blocks(self) -> None:
        """A row whose first blocks another row wrote attends to them, and both go on."""
        driver = self.driver()
        size = driver.config.block_size
        driver.forward([(0, 2 * size + 1)])
        driver.share(1, source=0, num_blocks=2)
        driver.forward([(0, 1), (1, size + 2)])
        driver.forward([(1, 1), (0, 1)])

    def test_captured_passes_of_any_mix(self) -> None:
        """Where `cuda_graph_prefill` is claimed: prompts, chunks and decodes of a captured pass."""
        if not self.capabilities.get("cuda_graph_prefill"):
            raise SkipTest("`cuda_graph_prefill` is not claimed")
        for seed, size in enumerate(self.block_sizes()):
            windows = (None, 9) if self.capabilities.get("sliding_window") else (None, None)
            driver = self.driver(
                num_blocks=96 // size + 12, seed=seed, block_size=size, num_layers=2,
                sliding_windows=windows,
            )  # fmt: skip
            driver.forward_captured([(0, 23)], 7)
            driver.forward_captured([(0, 1), (1, 5), (2, 1), (3, 17)], 3)
            driver.forward_captured([(0, 1), (2, 1), (3, 1)], 1)
            driver.forward_captured([(3, 1), (1, 2), (0, 4)], 4)
            driver.forward([(0, 1), (1, 1), (2, 1), (3, 1)])

    def test_the_scale_is_that_of_the_model(self) -> None:
        """Scores are multiplied with what `forward` is given, whatever is usual."""
        driver = self.driver()
        driver.scale = 0.3 * driver.scale
        for passed in growth(3):
            driver.forward(passed)

    def test_batches_of_one_shape(self) -> None:
        """Two batches of the same lengths have other blocks."""
        driver = self.driver()
        for _ in range(2):
            driver.forward([(0, 1), (1, 9)] if 0 in driver.rows else [(0, 9)])
            driver.forward([(2, 1), (3, 9)] if 2 in driver.rows else [(2, 9)])
        driver.forward([(0, 1), (1, 1)])
        driver.forward([(2, 1), (3, 1)])

    def test_two_backends_share_nothing(self) -> None:
        """Two in one process, as replicas have them, over pools of their own."""
        first = self.driver(seed=0)
        before = class_state(type(first.backend))
        first.forward([(0, 20)])
        second = self.driver(seed=1)
        second.forward([(0, 30), (1, 30)])
        first.forward([(0, 1)])
        second.forward([(0, 1), (1, 1)])
        check_class_state(before, type(first.backend))

    def test_padded_tokens_write_nothing(self) -> None:
        """B082: slot -1 names no slot, the last of the pool in particular.

        Rows own every slot of the pool; padded tokens carry NaN; afterwards every row attends to
        all that it has.
        """
        driver = self.driver(num_blocks=4)
        size = driver.config.block_size
        driver.forward([(0, 2 * size - 3), (1, 2 * size - 3)])
        for _ in range(3):
            driver.forward([(0, 1), (1, 1)], num_padded=3)
        driver = self.driver(num_blocks=4)
        driver.forward([(0, 2 * size - 3)])
        driver.forward([(0, 1), (1, 2 * size - 2)], num_padded=2)
        driver.forward([(1, 1), (0, 1)], num_padded=1)

    def test_sliding_windows(self) -> None:
        """With `sliding_window`: layers with and without one, shorter and longer than a row."""
        if not self.capabilities.get("sliding_window"):
            raise SkipTest("sliding_window is not claimed")
        windows = (None, 1, 7, 16, 1000)
        for size in self.block_sizes():
            driver = self.driver(
                num_blocks=96 // size + 12,
                block_size=size,
                num_layers=len(windows),
                sliding_windows=windows,
            )
            for passed in growth(3):
                driver.forward(passed)

    def test_capped_scores(self) -> None:
        """With `soft_cap`: scores that it bends, with and without a window."""
        if not self.capabilities.get("soft_cap"):
            raise SkipTest("soft_cap is not claimed")
        windows = (None, 7) if self.capabilities.get("sliding_window") else (None, None)
        driver = self.driver(num_layers=2, sliding_windows=windows, soft_cap=0.5)
        for passed in growth(3):
            driver.forward(passed)

    def test_fused_entry(self) -> None:
        """With `fused`: norm and rotation as the model would do them, then attention."""
        if not self.capabilities.get("fused"):
            raise SkipTest("fused is not claimed")
        for norm in (True, False):
            driver = self.driver(num_layers=2)
            for passed in growth(3):
                driver.forward_fused(passed, norm=norm)

    def test_copied_blocks(self) -> None:
        """A row whose blocks were copied reads the copies."""
        driver = self.driver(num_layers=2)
        size = driver.config.block_size
        driver.forward([(0, 2 * size + 1), (1, size)])
        driver.copy(0)
        driver.forward([(1, 1), (0, 3)])

    def test_the_size_of_a_block(self) -> None:
        """`bytes_per_block` is what a block's keys and values take, padding aside."""
        driver = self.driver(num_layers=3)
        config = driver.config
        elements = 2 * config.num_layers * config.num_kv_heads * config.head_dim
        expected = elements * config.block_size * config.dtype.itemsize
        stated = driver.backend.bytes_per_block()
        assert expected <= stated < 2 * expected, f"{stated} bytes for content of {expected}"


def growth(num_rows: int) -> Iterator[list[tuple[int, int]]]:
    """Passes of (row, tokens): prompts, a chunk beside decodes, its end, decodes."""
    yield [(0, 30), (1, 5)]
    yield [(0, 1), (1, 1), (2, 20)]
    yield [(1, 1), (0, 1), (2, 13)]
    for _ in range(2):
        yield [(row, 1) for row in reversed(range(num_rows))]


def _some(claimed: Any, usual: tuple[int, ...]) -> tuple[int, ...]:
    """A few of the claimed values: all usual ones, where a `"*"` claims everything."""
    if "*" in claimed:
        return usual
    values = tuple(claimed)
    return (
        values if len(values) <= 4 else (values[0], values[1], values[len(values) // 2], values[-1])
    )
