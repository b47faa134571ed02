"""The variables of a process that sees simulated cards."""

import os
import platform
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from analyzer.cards.catalogue import Gpu, check_limit, find_gpu, memory_limit
from analyzer.model.contract.child_messages import (
    ASSUMPTIONS,
    BATCH_NORM_RESERVE,
    CONTEXT,
    PRODUCT_WORKSPACE,
    RECURRENT_RESERVE,
    WORKSPACE,
    CaptureOptions,
)
from analyzer.model.errors import InputError
from analyzer.model.machine import cache_folder, count_cores
from analyzer.simulated_card.library_folder import TOOLKIT, make_library_folder
from analyzer.tracing.xla.xla_dumps import path_flag, read_flags

_MOST_CARDS = 16
SHORT_POOL = "SIMULATED_CARD_POOL_MOST"

# XLA compares sizes that only a run knows (``dynamic_padder.cc``); no kernel computes the result.
_WITHOUT_CHECKS = "--xla_gpu_shape_checks=IGNORE"

# LLVM makes the machine code of kernels, which never run, with little effort (``xla.proto``).
_QUICK_KERNELS = "--xla_backend_optimization_level=0"

# XLA runs no trials of the algorithms of products and convolutions (``xla.proto``).
_WITHOUT_TRIALS = "--xla_gpu_autotune_level=0"

# Threads for parallel ops. A machine with a card has more cores than many others; with two threads,
# fewer orders of ops occur.
_FEWEST_THREADS = 8

# assumed: the catalogue has only bandwidths; the clock follows from both
_BUS_BITS = 256


# Memory of a simulated card for a step that does not fit the real one. Its pool grows on demand.
_UNLIMITED_BYTES = 1 << 40

# Free memory of a larger simulated card, until a step needs more. TensorFlow's allocator keeps 8
# bytes of host memory for each 256 of its pool (``AllocationRegion`` in bfc_allocator.h): 4.4 GiB for
# an H200. The size of the pool changes no address, because the allocator takes the smallest chunk
# that fits.
SHORT_BYTES = 16 << 30


def check_platform() -> None:
    """Raise InputError if this machine cannot run simulated cards."""
    machine = platform.machine().lower()
    if sys.platform != "linux" or machine not in ("x86_64", "amd64"):
        raise InputError(
            f"Simulated cards need Linux on x86-64, and this is {sys.platform} on {machine}.",
            hint="analyze estimate --gpu NAME predicts here.",
        )


def check_simulated_card() -> None:
    """Raise InputError if no step can run on a simulated card with this machine and TensorFlow."""
    check_platform()
    with TemporaryDirectory() as own:
        make_library_folder((cache_folder() or Path(own)) / "simulated_card")


def list_cards(text: str) -> tuple[Gpu, ...]:
    """Return the cards of ``t4``, ``t4,a100`` or ``2xt4``, or raise an InputError."""
    cards: list[Gpu] = []
    for part in map(str.strip, text.split(",")):
        if not part:
            raise InputError(
                f"--gpu {text} has an empty name.",
                hint="Write it as t4,a100.",
            )

        count, _, name = part.partition("x")
        if count.strip().isdecimal() and name:
            cards += [find_gpu(name)] * int(count)
        else:
            cards.append(find_gpu(part))

    if not 1 <= len(cards) <= _MOST_CARDS:
        raise InputError(
            f"--gpu {text} names {len(cards)} cards.",
            hint=f"Name 1 to {_MOST_CARDS}.",
        )

    return tuple(cards)


def parse_cards(text: str) -> tuple[Gpu, ...]:
    """Return the cards of a text that can be simulated, or raise an InputError."""
    cards = list_cards(text)
    for card in cards:
        if card.is_amd:
            raise InputError(
                f"Simulated cards are NVIDIA's, and {card.name} is not.",
                hint="`analyze estimate --gpu NAME` predicts for it.",
            )

    return cards


def normalize_cards(text: str) -> str:
    """Return the ids of one card or several, or raise an InputError."""
    return ",".join(card.id for card in list_cards(text))


def find_smallest_card(text: str) -> Gpu:
    """Return the card with the least memory of the named ones, or raise an InputError."""
    return min(list_cards(text), key=lambda card: memory_limit(card).bytes)


def make_card_environment(options: CaptureOptions, cache: Path) -> dict[str, str]:
    """Return the variables of a child process that sees the simulated cards ``options.gpu``.

    InputError if this machine cannot run simulated cards, or if they are smaller than the limit.
    """
    check_platform()
    assumed = {one.name: options.assume.get(one.name, one.usual) for one in ASSUMPTIONS}
    context_bytes = assumed[CONTEXT.name]
    cards = []

    for gpu in parse_cards(options.gpu):
        check_limit(gpu, options.memory_limit_bytes, context_bytes)
        room_bytes = _UNLIMITED_BYTES if options.is_unlimited else gpu.memory_bytes
        cards.append(encode_card(gpu, room_bytes, context_bytes))

    own = os.environ
    folder = make_library_folder(cache / "simulated_card")
    toolkit = folder / TOOLKIT
    data_dir = path_flag("--xla_gpu_cuda_data_dir", toolkit)
    given = read_flags(own.get("XLA_FLAGS", ""))
    flags = [given, data_dir, _WITHOUT_CHECKS, _QUICK_KERNELS]
    if options.skips_trials:
        flags.append(_WITHOUT_TRIALS)

    threads = max(count_cores(), _FEWEST_THREADS)

    variables = {
        "LD_LIBRARY_PATH": _join_path(folder, own.get("LD_LIBRARY_PATH", "")),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(cards)))),
        "SIMULATED_CARDS": ";".join(cards),
        "SIMULATED_CARD_PRODUCT_WORKSPACE": str(assumed[PRODUCT_WORKSPACE.name]),
        "SIMULATED_CARD_RECURRENT_RESERVE": str(assumed[RECURRENT_RESERVE.name]),
        "SIMULATED_CARD_BATCH_NORM_RESERVE": str(assumed[BATCH_NORM_RESERVE.name]),
        "TF_NUM_INTEROP_THREADS": own.get("TF_NUM_INTEROP_THREADS", str(threads)),
        # XLA compiles on many threads, each of which would keep free memory of its own.
        "MALLOC_ARENA_MAX": own.get("MALLOC_ARENA_MAX", "2"),
        "XLA_FLAGS": " ".join(filter(None, flags)),
        # Before other folders with ptxas: cuDNN's trials op by op do not read XLA_FLAGS.
        "PATH": _join_path(toolkit / "bin", own.get("PATH", "")),
    }

    if WORKSPACE.name in options.assume:
        workspace_bytes = options.assume[WORKSPACE.name]
        variables["SIMULATED_CARD_CONVOLUTION_WORKSPACE"] = str(workspace_bytes)

    if options.has_short_pool:
        variables[SHORT_POOL] = str(SHORT_BYTES)

    return variables


def _join_path(first: Path, rest: str) -> str:
    """Return a search path without empty entries, which would stand for the working folder."""
    return os.pathsep.join([str(first), *filter(None, rest.split(os.pathsep))])


def encode_card(gpu: Gpu, room_bytes: int, context_bytes: int) -> str:
    """Return a card in the format that ``native/runtime/cards.c`` reads.

    A process may take ``room_bytes``; XLA plans for the memory of the card itself.
    """
    memory_khz = round(gpu.bandwidth_bytes_s * 8 / (2 * _BUS_BITS) / 1000)

    figures = (
        gpu.name.replace(",", " ").replace(";", " "),
        *gpu.compute_capability,
        gpu.sm_count,
        round(gpu.clock_mhz * 1000),
        memory_khz,
        _BUS_BITS,
        gpu.l2_bytes // 1024,
        gpu.max_threads,
        gpu.max_blocks,
        gpu.shared_bytes // 1024,
        gpu.block_optin_bytes // 1024,
        gpu.memory_bytes,
        room_bytes,
        min(context_bytes, room_bytes),
    )

    return ",".join(map(str, figures))
