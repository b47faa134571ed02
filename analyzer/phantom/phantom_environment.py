"""What a process needs in its environment to see phantom cards instead of the machine's own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from analyzer.cards import Gpu, context_bytes, find_gpu
from analyzer.cards.installed_compiler import find_compiler
from analyzer.model.errors import CompilerUnavailable, InputError
from analyzer.phantom.core_library import check_platform
from analyzer.phantom.library_folder import make_library_folder

SUBFOLDER: Final = "phantom"
_BUS_BITS: Final = 256
"""The catalogue has a card's bandwidth alone: the clock is what gives it with a bus of this width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomOptions:
    """What is assumed of the cards.

    Attributes:
        gpus: The cards, in the order of their numbers.
        memory_bytes: All that CUDA reports of each card's memory; None for the catalogue's figure.
        context_bytes: What the driver's context keeps of it; None for the catalogue's middle figure.
        workspace_bytes: What each of cuDNN's convolution plans asks for.
        product_workspace_bytes: What each of cuBLASLt's products asks for.
        recurrent_reserve: Numbers that cuDNN keeps for each unit, step and row; 0 for its formula.
        batch_norm_reserve_bytes: What each batch normalization keeps.
        kernel_ns: Time that each launch takes on its stream.
    """

    gpus: tuple[Gpu, ...]
    memory_bytes: int | None = None
    context_bytes: int | None = None
    workspace_bytes: int = 0
    product_workspace_bytes: int = 0
    recurrent_reserve: int = 0
    batch_norm_reserve_bytes: int = 0
    kernel_ns: int = 0


def parse_cards(text: str) -> tuple[Gpu, ...]:
    """Return the cards of ``t4``, ``t4,a100`` or ``2xt4``.

    Raises:
        InputError: no card has such a name.
    """
    cards: list[Gpu] = []
    for part in text.split(","):
        count, mark, name = part.strip().partition("x")
        if mark and count.isdecimal():
            cards += [find_gpu(name)] * int(count)
        else:
            cards.append(find_gpu(part.strip()))
    if not 1 <= len(cards) <= 16:
        raise InputError(f"--gpu {text} names {len(cards)} cards.", hint="Name 1 to 16.")
    return tuple(cards)


def make_phantom_environment(
    options: PhantomOptions, cache: Path, own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables to set in a child process, and in no other.

    Args:
        options: The cards.
        cache: The user's cache folder.
        own: The environment to start from; this process' by default.

    Raises:
        InputError: this machine or its TensorFlow cannot have phantom cards.
    """
    check_platform()
    own = os.environ if own is None else own
    folder = make_library_folder(cache / SUBFOLDER)
    path = [str(folder), *filter(None, own.get("LD_LIBRARY_PATH", "").split(os.pathsep))]
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(path),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(options.gpus)))),
        "PHANTOM_CARDS": ";".join(_described(gpu, options) for gpu in options.gpus),
        "PHANTOM_CONVOLUTION_WORKSPACE": str(options.workspace_bytes),
        "PHANTOM_PRODUCT_WORKSPACE": str(options.product_workspace_bytes),
        "PHANTOM_RECURRENT_RESERVE": str(options.recurrent_reserve),
        "PHANTOM_BATCH_NORM_RESERVE": str(options.batch_norm_reserve_bytes),
        "PHANTOM_KERNEL_NS": str(options.kernel_ns),
        "XLA_FLAGS": " ".join(filter(None, (own.get("XLA_FLAGS", ""), _cuda_data()))),
    }


def _described(gpu: Gpu, options: PhantomOptions) -> str:
    """Return a card as ``native/runtime/cards.c`` reads it."""
    chip = gpu.architecture
    memory_khz = round(gpu.bandwidth_bytes_s * 8 / (2 * _BUS_BITS) / 1000)
    total = gpu.memory_bytes if options.memory_bytes is None else options.memory_bytes
    held = context_bytes() if options.context_bytes is None else options.context_bytes
    figures: Sequence[object] = (
        gpu.name.replace(",", " ").replace(";", " "),
        *gpu.compute_capability,
        gpu.sm_count,
        round(gpu.clock_mhz * 1000),
        memory_khz,
        _BUS_BITS,
        gpu.l2_bytes // 1024,
        chip.max_threads,
        chip.max_blocks,
        chip.shared_bytes // 1024,
        chip.block_optin_bytes // 1024,
        total,
        min(held, total),
    )
    return ",".join(map(str, figures))


def _cuda_data() -> str:
    """Return the flag that tells XLA where ``ptxas`` and libdevice are; empty without the extra."""
    try:
        return f"--xla_gpu_cuda_data_dir={find_compiler().cuda}"
    except CompilerUnavailable:
        return ""
