"""The cards: what each one is, what TensorFlow may use of its memory, and how XLA is told of it."""

from __future__ import annotations

from analyzer.cards.card_memory import (
    MemoryRange,
    check_limit,
    context_bytes,
    memory_limit,
    process_overhead,
)
from analyzer.cards.catalogue import Gpu, all_gpus, find_gpu, gpus_named
from analyzer.cards.target import target_text

__all__ = [
    "Gpu",
    "MemoryRange",
    "all_gpus",
    "check_limit",
    "context_bytes",
    "find_gpu",
    "gpus_named",
    "memory_limit",
    "process_overhead",
    "target_text",
]
