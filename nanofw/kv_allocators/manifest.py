"""The built-in allocators."""

from __future__ import annotations

from nanofw.plugins import Plugin, hookimpl


@hookimpl
def kv_allocator() -> list[Plugin]:
    return [
        Plugin(
            "paged",
            "nanofw.kv_allocators.paged:PagedAllocator",
            api="kv_allocator/2",
            capabilities={"block_sizes": ("*",), "prefix_cache": False},
            summary="blocks from one pool, nothing shared",
        ),
        Plugin(
            "paged_prefix",
            "nanofw.kv_allocators.paged_prefix:PagedPrefixAllocator",
            api="kv_allocator/2",
            capabilities={"block_sizes": ("*",), "prefix_cache": True},
            summary="blocks from one pool, equal prefixes shared and kept",
        ),
    ]
