"""Published figures of accelerators, for the roofline.

Dense peaks without sparsity, from the vendors' data sheets: NVIDIA A10G, A100, H100, H200, B200,
L4, L40S, T4, V100, and the Ampere and Ada whitepapers for the GeForce cards (half precision with
float32 accumulation); AMD Instinct MI300X.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator.

    Attributes:
        half_tflops: peak of bfloat16 and float16 matrix products.
        float_tflops: peak of float32, TF32 off.
        bandwidth: memory bandwidth in GB/s.
        memory: GB (10^9 bytes).
    """

    half_tflops: float
    float_tflops: float
    bandwidth: float
    memory: float

    def peak_flops(self, dtype: str) -> float:
        """FLOP/s for an element type."""
        return 1e12 * (self.float_tflops if dtype == "float32" else self.half_tflops)


DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        "a10g": Device(70, 31.2, 600, 24),
        "a100-40gb": Device(312, 19.5, 1555, 40),
        "a100-80gb": Device(312, 19.5, 2039, 80),
        "b200": Device(2250, 80, 8000, 180),
        "h100-pcie": Device(756, 51, 2000, 80),
        "h100-sxm": Device(989, 67, 3350, 80),
        "h200": Device(989, 67, 4800, 141),
        "l4": Device(121, 30.3, 300, 24),
        "l40s": Device(362, 91.6, 864, 48),
        "mi300x": Device(1307, 163.4, 5300, 192),
        "rtx-3090": Device(71, 35.6, 936, 24),
        "rtx-4090": Device(165, 82.6, 1008, 24),
        "t4": Device(65, 8.1, 320, 16),
        "v100": Device(125, 15.7, 900, 32),
    }
)
