"""A card as XLA's compiler wants it told: a ``GpuTargetConfigProto`` in text form.

Field names: ``xla/stream_executor/device_description.proto``. With this text XLA compiles for the
card on a machine that has none.
"""

from __future__ import annotations

from typing import Final

from analyzer.cards.architecture import (
    BLOCK_SHARED_BYTES,
    BLOCK_THREADS,
    GRID_LIMITS,
    SM_REGISTERS,
    WARP_THREADS,
)
from analyzer.cards.catalogue import Gpu

CUDNN_VERSION: Final = (9, 10, 0)
"""cuDNN's version, which XLA asks before it uses some fusions: that of TensorFlow 2.21's wheels for
CUDA (``tensorflow[and-cuda]``: nvidia-cudnn-cu12 9.x)."""


def target_text(gpu: Gpu, *, cudnn: tuple[int, int, int] = CUDNN_VERSION) -> str:
    """Return the description of ``gpu`` as text: the same text for the same card."""
    chip = gpu.architecture
    major, minor = gpu.compute_capability
    extension = "ACCELERATED_FEATURES" if chip.accelerated else "NONE"
    info = [
        f"threads_per_block_limit: {BLOCK_THREADS}",
        f"threads_per_warp: {WARP_THREADS}",
        f"shared_memory_per_block: {BLOCK_SHARED_BYTES}",
        f"shared_memory_per_core: {chip.shared_bytes}",
        f"threads_per_core_limit: {chip.max_threads}",
        f"core_count: {gpu.sm_count}",
        f"fpus_per_core: {chip.fp32_lanes}",
        *(
            f"block_dim_limit_{axis}: {limit}"
            for axis, limit in zip("xyz", GRID_LIMITS, strict=True)
        ),
        f"memory_bandwidth: {gpu.bandwidth_bytes_s}",
        f"l2_cache_size: {gpu.l2_bytes}",
        f"clock_rate_ghz: {gpu.clock_mhz / 1000:g}",
        f"device_memory_size: {gpu.memory_bytes}",
        f"shared_memory_per_block_optin: {chip.block_optin_bytes}",
        f"cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}",
        f"registers_per_core_limit: {SM_REGISTERS}",
        f"registers_per_block_limit: {SM_REGISTERS}",
    ]
    body = "\n".join(f"  {line}" for line in info)
    dnn = " ".join(
        f"{part}: {value}" for part, value in zip(("major", "minor", "patch"), cudnn, strict=True)
    )
    return (
        f"gpu_device_info {{\n{body}\n}}\n"
        'platform_name: "CUDA"\n'
        f"dnn_version_info {{ {dnn} }}\n"
        f'device_description_str: "{gpu.name}"\n'
    )
