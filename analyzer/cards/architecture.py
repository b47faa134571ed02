"""Limits that all cards of one compute capability share.

Source: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability" and the
section of each architecture; the descriptions that XLA embeds agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KIB: Final = 1024  # bytes

WARP_THREADS: Final = 32
BLOCK_THREADS: Final = 1024  # at most
BLOCK_SHARED_BYTES: Final = 48 * KIB  # without opting in to more
SM_REGISTERS: Final = 64 * KIB  # 32-bit registers of one multiprocessor, and of one block
GRID_LIMITS: Final = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True, slots=True)
class Architecture:
    """Limits of one multiprocessor.

    Attributes:
        name: NVIDIA's name of the architecture.
        fp32_lanes: Single-precision operations per clock.
        max_threads, max_blocks: Most resident threads and blocks.
        shared_bytes, block_optin_bytes: Shared memory, and the part that one block may opt in to.
        accelerated: Whether it has instructions for its own target only (``sm_90a``).
    """

    name: str
    fp32_lanes: int
    max_threads: int
    max_blocks: int
    shared_bytes: int
    block_optin_bytes: int
    accelerated: bool = False


ARCHITECTURES: Final[dict[tuple[int, int], Architecture]] = {
    (6, 0): Architecture("Pascal", 64, 2048, 32, 64 * KIB, 48 * KIB),
    (6, 1): Architecture("Pascal", 128, 2048, 32, 96 * KIB, 48 * KIB),
    (7, 0): Architecture("Volta", 64, 2048, 32, 96 * KIB, 96 * KIB),
    (7, 5): Architecture("Turing", 64, 1024, 16, 64 * KIB, 64 * KIB),
    (8, 0): Architecture("Ampere", 64, 2048, 32, 164 * KIB, 163 * KIB),
    (8, 6): Architecture("Ampere", 128, 1536, 16, 100 * KIB, 99 * KIB),
    (8, 7): Architecture("Ampere", 128, 1536, 16, 164 * KIB, 163 * KIB),
    (8, 9): Architecture("Ada Lovelace", 128, 1536, 24, 100 * KIB, 99 * KIB),
    (9, 0): Architecture("Hopper", 128, 2048, 32, 228 * KIB, 227 * KIB, accelerated=True),
    (10, 0): Architecture("Blackwell", 128, 2048, 32, 228 * KIB, 227 * KIB, accelerated=True),
    (10, 3): Architecture("Blackwell", 128, 2048, 32, 228 * KIB, 227 * KIB, accelerated=True),
    (12, 0): Architecture("Blackwell", 128, 1536, 24, 100 * KIB, 99 * KIB, accelerated=True),
}
