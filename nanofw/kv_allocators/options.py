"""What the `kv_allocator` section of a configuration may say."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from nanofw.plugins import Options


class PagedOptions(Options):
    """Options of `paged`."""

    block_size: PositiveInt | Literal["auto"] = Field(
        "auto",
        description="Tokens in a block; auto: the attention backend's first choice.",
    )
    num_blocks: PositiveInt | Literal["auto"] = Field(
        "auto",
        description="Blocks in the pool; auto: as many as the executor has memory for.",
    )


class PagedPrefixOptions(PagedOptions):
    """Options of `paged_prefix`: those of `paged`."""
