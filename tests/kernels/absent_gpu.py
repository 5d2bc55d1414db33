"""A GPU that is not there, for Triton to compile for."""

from __future__ import annotations

from typing import Any


class AbsentGpu:
    """What Triton asks of a driver."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)
