"""GPU cards: their figures, the memory TensorFlow may use, their state, and XLA's compiler for them.

Inputs: a card's name, or the driver of this machine. Outputs: a ``Gpu`` with its figures, sizes with
their sources, NVML readings, and the description of a card for XLA's compiler.
Restrictions: never starts a program, creates a CUDA context or imports TensorFlow.
"""

from __future__ import annotations

from analyzer.cards.card_memory import (
    MemoryRange,
    check_limit,
    context_bytes,
    memory_beside_pool,
    memory_limit,
    process_overhead,
)
from analyzer.cards.catalogue import Gpu, all_gpus, find_gpu, gpus_named
from analyzer.cards.xla_compiler import target_text

__all__ = [
    "Gpu",
    "MemoryRange",
    "all_gpus",
    "check_limit",
    "context_bytes",
    "find_gpu",
    "gpus_named",
    "memory_beside_pool",
    "memory_limit",
    "process_overhead",
    "target_text",
]
