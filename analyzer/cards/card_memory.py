"""How much of a card TensorFlow's allocator may use, and what lies on the card beside its pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from analyzer.cards.catalogue import Gpu
from analyzer.model.errors import InputError
from analyzer.model.units import format_bytes

_MIB: Final = 1024**2  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRange:
    """Bytes that are known within bounds.

    Attributes:
        bytes: The central figure.
        low_bytes: The least that was seen or can be.
        high_bytes: The most.
        source: Where the figures come from, in one line.
    """

    bytes: int
    low_bytes: int
    high_bytes: int
    source: str


_CONTEXT: Final = MemoryRange(
    bytes=320 * _MIB,
    low_bytes=115 * _MIB,
    high_bytes=450 * _MIB,
    source="CUDA context: the card's total less the free memory that TensorFlow's own start-up line "
    "implies, public logs of T4, V100, A100, H100, L4 and RTX 3090",
)
"""T4 115 to 302 MiB, V100 317, A100-40 352, A100-80 424, RTX 3090 286, H100 444. It is in force
before the limit is taken: ``cudaMemGetInfo`` is asked after the context exists."""

_LIBRARIES: Final = MemoryRange(
    bytes=500 * _MIB,
    low_bytes=100 * _MIB,
    high_bytes=1000 * _MIB,
    source="cuBLAS, cuDNN and loaded kernels: openxla/xprof issue 378 (RTX 3090, about 0.9 GiB, all "
    "kernels loaded at once); less with CUDA's lazy loading",
)


def check_limit(gpu: Gpu, limit_bytes: int | None, context_bytes: int | None = None) -> None:
    """Refuse a memory limit that a card cannot keep.

    TensorFlow takes it all the same (``SingleVirtualDeviceMemoryLimit`` is not asked where a logical
    device has a limit): the allocator then asks the driver for nine tenths again and again until it is
    given a region, and for further regions as long as the pool is below the limit
    (``BFCAllocator::Extend``). How large they come out depends on what else is on the card.

    Args:
        gpu: The card.
        limit_bytes: The limit; None for TensorFlow's own.
        context_bytes: What the CUDA context keeps of it; None for the least that was seen.

    Raises:
        InputError: the limit is above what is free on an otherwise empty card.
    """
    held = _CONTEXT.low_bytes if context_bytes is None else context_bytes
    free_bytes = gpu.memory_bytes - held
    if limit_bytes is not None and limit_bytes > free_bytes:
        own = memory_limit(gpu).bytes
        raise InputError(
            f"--limit {format_bytes(limit_bytes)} is more than is free on {gpu.name} "
            f"({format_bytes(free_bytes)}).",
            hint=f"Leave it out for TensorFlow's own limit there ({format_bytes(own)}), or name a "
            "larger card.",
        )


def context_bytes() -> int:
    """Return what a CUDA context keeps of a card before anything is allocated."""
    return _CONTEXT.bytes


def system_reserve(
    free_bytes: int, compute_capability: tuple[int, int], *, tegra: bool = False
) -> int:
    """Return the bytes that TensorFlow leaves to the system.

    ``MinSystemMemory`` in ``tensorflow/core/common_runtime/gpu/gpu_device.cc``: by the free memory,
    then by the compute capability's major version.

    Args:
        free_bytes: Free on the card once the CUDA context exists.
        compute_capability: Major and minor.
        tegra: A Jetson, whose memory is the host's.
    """
    if free_bytes < 2 << 30:
        return 225 * _MIB
    if tegra:
        return 1 << 30
    major = compute_capability[0]
    if major <= 6:
        return 500 * _MIB
    return {7: 1050, 8: 1536}.get(major, 1800) * _MIB


def memory_limit(gpu: Gpu) -> MemoryRange:
    """Return the ``bytes_limit`` of TensorFlow's allocator on an otherwise empty card.

    The card's total, less the CUDA context, less the reserve (``SingleVirtualDeviceMemoryLimit``
    with the default options). The range is that of the context and of the total, which differs by
    driver (T4: 14918 to 15110 MiB, A10 22516 to 22599, RTX 4090 24081 to 24217) and more where
    nobody read it.
    """
    doubt = 200 * _MIB if gpu.memory_source else 300 * _MIB

    def limit(free_bytes: int) -> int:
        tegra = gpu.memory_kind == "LPDDR"
        reserve = system_reserve(free_bytes, gpu.compute_capability, tegra=tegra)
        return max(0, free_bytes - reserve)

    return MemoryRange(
        bytes=limit(gpu.memory_bytes - _CONTEXT.bytes),
        low_bytes=limit(gpu.memory_bytes - _CONTEXT.high_bytes - doubt),
        high_bytes=limit(gpu.memory_bytes - _CONTEXT.low_bytes + doubt),
        source="total less context less TensorFlow's reserve for compute capability "
        + gpu.capability_text,
    )


def process_overhead(gpu: Gpu) -> MemoryRange:
    """Return what one process holds on the card outside the allocator's pool.

    The CUDA context, and what cuBLAS, cuDNN and the loaded kernels take. Not measured for each
    card: a range, to be shown apart from the pool and never added to it in silence.
    """
    workspace = 32 * _MIB if gpu.compute_capability >= (9, 0) else 8 * _MIB + (128 << 10)
    return MemoryRange(
        bytes=_CONTEXT.bytes + _LIBRARIES.bytes + workspace,
        low_bytes=_CONTEXT.low_bytes + _LIBRARIES.low_bytes,
        high_bytes=_CONTEXT.high_bytes + _LIBRARIES.high_bytes + workspace,
        source=f"{_CONTEXT.source}; {_LIBRARIES.source}; cuBLAS' workspace",
    )
