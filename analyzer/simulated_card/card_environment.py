"""The environment variables under which a child process sees simulated cards, not the machine's own."""

import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from analyzer.cards import Gpu, context_bytes, find_gpu, memory_limit
from analyzer.model.errors import InputError
from analyzer.model.machine import cache_folder, count_cores
from analyzer.model.xla_flags import path_flag, read_flags
from analyzer.simulated_card.library_folder import TOOLKIT, make_library_folder

_MOST_CARDS: Final = 16
SHORT_POOL: Final = "SIMULATED_CARD_POOL_MOST"
_FEWEST_THREADS: Final = 8
"""Threads for parallel ops. A machine with a card has more cores than many others; with two threads,
fewer orders of ops occur."""
_BUS_BITS: Final = (
    256  # assumed: the catalogue has only bandwidths; the clock follows from both
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCardOptions:
    """The cards by device number, and the assumed needs of CUDA's libraries."""

    gpus: tuple[Gpu, ...]
    pool_bytes: int | None = None  # most free memory that TensorFlow sees; None: all
    memory_bytes: int | None = (
        None  # of each card as CUDA reports it; None: the catalogue's
    )
    context_bytes: int | None = (
        None  # of the driver; None: the catalogue's middle figure
    )
    workspace_bytes: int | None = (
        None  # of each cuDNN plan; None: that of its algorithms
    )
    product_workspace_bytes: int = 0  # of each cuBLASLt product
    recurrent_reserve: int = (
        0  # numbers for each unit, step and row; 0 for cuDNN's formula
    )
    batch_norm_reserve_bytes: int = 0


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
    with tempfile.TemporaryDirectory() as own:
        make_library_folder((cache_folder() or Path(own)) / "simulated_card")


def list_cards(text: str) -> tuple[Gpu, ...]:
    """Return the cards of ``t4``, ``t4,a100`` or ``2xt4``, or raise an InputError."""
    cards: list[Gpu] = []
    for part in map(str.strip, text.split(",")):
        if not part:
            raise InputError(
                f"--gpu {text} has an empty name.", hint="Write it as t4,a100."
            )

        count, _, name = part.partition("x")
        if count.strip().isdecimal() and name:
            cards += [find_gpu(name)] * int(count)
        else:
            cards.append(find_gpu(part))

    if not 1 <= len(cards) <= _MOST_CARDS:
        raise InputError(
            f"--gpu {text} names {len(cards)} cards.", hint=f"Name 1 to {_MOST_CARDS}."
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


def make_card_environment(
    options: SimulatedCardOptions, cache: Path, own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables to set in a child process, or raise an InputError."""
    check_platform()
    own = os.environ if own is None else own
    folder = make_library_folder(cache / "simulated_card")
    toolkit = folder / TOOLKIT
    data_dir = path_flag("--xla_gpu_cuda_data_dir", toolkit)
    variables = {
        "LD_LIBRARY_PATH": _join_path(folder, own.get("LD_LIBRARY_PATH", "")),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(options.gpus)))),
        "SIMULATED_CARDS": ";".join(_encode_card(gpu, options) for gpu in options.gpus),
        "SIMULATED_CARD_PRODUCT_WORKSPACE": str(options.product_workspace_bytes),
        "SIMULATED_CARD_RECURRENT_RESERVE": str(options.recurrent_reserve),
        "SIMULATED_CARD_BATCH_NORM_RESERVE": str(options.batch_norm_reserve_bytes),
        "TF_NUM_INTEROP_THREADS": own.get(
            "TF_NUM_INTEROP_THREADS", str(max(count_cores(), _FEWEST_THREADS))
        ),
        # XLA compiles on many threads, each of which would keep free memory of its own.
        "MALLOC_ARENA_MAX": own.get("MALLOC_ARENA_MAX", "2"),
        "XLA_FLAGS": f"{read_flags(own.get('XLA_FLAGS', ''))} {data_dir}".strip(),
        # Before other folders with ptxas: cuDNN's trials op by op do not read XLA_FLAGS.
        "PATH": _join_path(toolkit / "bin", own.get("PATH", "")),
    }

    if options.workspace_bytes is not None:
        variables["SIMULATED_CARD_CONVOLUTION_WORKSPACE"] = str(options.workspace_bytes)
    if options.pool_bytes is not None:
        variables[SHORT_POOL] = str(options.pool_bytes)

    return variables


def _join_path(first: Path, rest: str) -> str:
    """Return a search path without empty entries, which would stand for the working folder."""
    return os.pathsep.join([str(first), *filter(None, rest.split(os.pathsep))])


def _encode_card(gpu: Gpu, options: SimulatedCardOptions) -> str:
    """Return a card in the format that ``native/runtime/cards.c`` reads."""
    chip = gpu.architecture
    memory_khz = round(gpu.bandwidth_bytes_s * 8 / (2 * _BUS_BITS) / 1000)
    total = gpu.memory_bytes if options.memory_bytes is None else options.memory_bytes
    held = context_bytes() if options.context_bytes is None else options.context_bytes

    figures = (
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
