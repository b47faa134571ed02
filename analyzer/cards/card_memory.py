"""How much of a card TensorFlow's allocator may use, and the memory of a process outside its pool."""

from typing import Final

from analyzer.cards.catalogue import Gpu
from analyzer.model.errors import InputError
from analyzer.model.ranges import BoundedBytes, Range
from analyzer.model.units import format_bytes

_MIB: Final = 1024**2  # bytes

_CUDA_CONTEXT: Final = BoundedBytes(320 * _MIB, Range(115 * _MIB, 527 * _MIB))
"""T4 115 to 302 MiB, V100 317, A100-40 352, A100-80 424, RTX 3090 286, H100 444, H200 527 (driver 580).
The card's total minus the free memory that TensorFlow's start-up lines in public logs imply. TensorFlow
computes its limit after the context exists, because ``cudaMemGetInfo`` needs one."""

_HIP_CONTEXT: Final = BoundedBytes(612 * _MIB, Range(0, 1428 * _MIB))
"""The median of the 11 public logs of TensorFlow-ROCm since 2023, with the display (RX 6600 XT 120 MiB,
RX 7600 272, RX 7900 XTX 548 to 612, MI210 1070, MI250X 1192 and 1428, RX 7800 XT 1225, RX 9060 XT 1286);
0 in older ones (RX 5700, RX 6700 XT, MI60)."""

_LIBRARIES_BYTES: Final = 500 * _MIB
"""cuBLAS, cuDNN and loaded kernels (100 to 1000 MiB): openxla/xprof issue 378 (RTX 3090, about 0.9 GiB
with all kernels loaded at once); less with CUDA's lazy loading."""


def check_limit(
    gpu: Gpu, limit_bytes: int | None, context_bytes: int | None = None
) -> None:
    """Refuse a memory limit that is larger than the free memory of an otherwise empty card.

    TensorFlow accepts such a limit (a logical device with its own limit skips
    ``SingleVirtualDeviceMemoryLimit``). Its allocator then asks the driver for a tenth less until it
    gets a region (``BFCAllocator::Extend``), so the pool's size depends on other processes on the card.
    ``context_bytes`` of None stands for the least that was measured.
    """
    context = _context(gpu).range.low if context_bytes is None else context_bytes
    free_bytes = gpu.memory_bytes - context

    if limit_bytes is not None and limit_bytes > free_bytes:
        default = format_bytes(memory_limit(gpu).bytes)
        raise InputError(
            f"--limit {format_bytes(limit_bytes)} exceeds the free memory of {gpu.name} "
            f"({format_bytes(free_bytes)}).",
            hint=f"Omit it for TensorFlow's default there ({default}), or name a larger card.",
        )


def _context(gpu: Gpu) -> BoundedBytes:
    return _HIP_CONTEXT if gpu.is_amd else _CUDA_CONTEXT


def system_reserve(
    free_bytes: int, compute_capability: tuple[int, int], *, tegra: bool = False
) -> int:
    """Return the bytes that TensorFlow leaves to the system.

    From ``MinSystemMemory`` in ``tensorflow/core/common_runtime/gpu/gpu_device.cc``. ``free_bytes`` is
    the free memory once the CUDA context exists; ``tegra`` is a Jetson, whose memory is the host's.
    On an AMD card TensorFlow reads the capability 0.0 (``se::CudaComputeCapability`` of ROCm).
    """
    if free_bytes < 2 << 30:
        return 225 * _MIB
    if tegra:
        return 1 << 30

    return {6: 500, 7: 1050, 8: 1536}.get(max(compute_capability[0], 6), 1800) * _MIB


_DISPLAY_SHARE: Final = 0.1
_MOST_DISPLAY_BYTES: Final = 1200 * _MIB
"""Most memory that a display, Windows or WSL takes, chosen by half of 106 public logs of GeForce and
TITAN cards ("Created device ... with N MB memory"). Of the others and 15 later ones, the range of the
limit contains 64 of 71; other programs on the card explain the rest (1.4 to 4.5 GiB)."""


def usable_memory(gpu: Gpu) -> BoundedBytes:
    """Return the memory of a card that one process can use, CUDA's context included.

    The bounds allow for the total, which depends on the driver (T4: 14918 to 15110 MiB, RTX 4090 24081
    to 24217), more if it was never read from a card, and for a display on cards with such outputs.
    """
    margin = 200 * _MIB if gpu.memory_source else 300 * _MIB
    total = gpu.memory_bytes
    has_display = any(word in gpu.name for word in ("GeForce", "TITAN", "RTX"))
    shared = (
        min(round(_DISPLAY_SHARE * total), _MOST_DISPLAY_BYTES) if has_display else 0
    )
    bounds = Range(total - margin - shared, total + margin)

    return BoundedBytes(total, bounds)


def memory_limit(gpu: Gpu) -> BoundedBytes:
    """Return the ``bytes_limit`` of TensorFlow's allocator.

    The usable memory minus the CUDA context minus the reserve (``SingleVirtualDeviceMemoryLimit``).
    """
    usable, tegra = usable_memory(gpu), gpu.memory_kind == "LPDDR"
    context = _context(gpu)
    free = usable.range - context.range

    expected, low, high = (
        max(0, size - system_reserve(size, gpu.compute_capability, tegra=tegra))
        for size in (usable.bytes - context.bytes, free.low, free.high)
    )
    return BoundedBytes(expected, Range(low, high))


def process_overhead(gpu: Gpu) -> int:
    """Return the bytes of one process outside the pool: context, libraries, cuBLAS' workspace."""
    is_hopper = gpu.compute_capability >= (9, 0)
    workspace_bytes = 32 * _MIB if is_hopper else 8 * _MIB + (128 << 10)

    return _context(gpu).bytes + _LIBRARIES_BYTES + workspace_bytes


def memory_beside_pool(gpu: Gpu) -> int:
    """Return the bytes of ``process_overhead``, at most the part that TensorFlow leaves by default."""
    left_bytes = usable_memory(gpu).bytes - memory_limit(gpu).bytes
    return min(process_overhead(gpu), left_bytes)
