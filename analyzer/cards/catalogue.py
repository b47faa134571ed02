"""The cards: the catalogue ``card_figures.csv``, the user's prices, and the search by name.

Each figure of the catalogue was read from a card or a data sheet; ``sources.csv`` lists the sources. A
part of a card's memory is for TensorFlow's allocator, another for the process outside its pool.
"""

import csv
import re
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import field

from analyzer.model.errors import InputError, suggest_names
from analyzer.model.units import BoundedBytes, Range, format_bytes

MIB = 1024**2  # bytes

# MiB that the driver reserves, by kind of memory, before CUDA reports a total: the middle of the
# measured cards on Linux (GDDR 220 to 560, depending on the driver; with ECC 250 to 680 after the
# sixteenth for the codes; HBM 110 to 910; AMD 16 in logs of idle cards by TensorFlow-ROCm).
_DRIVER_MIB = {"GDDR": 350, "GDDR+ECC": 500, "HBM": 600, "AMD": 16}

# of the host's memory; 4 to 7 % is missing on the measured boards
_JETSON_SHARE = 0.05

_NOISE = re.compile(
    r"nvidia|amd|instinct|geforce|tesla|gpu|graphics|generation|edition|workstation|server|card|the|memory"
    r"|hbm\d?e?|gddr\dx?"
)
_VARIANT = re.compile(r"\d+gb|sxm|pcie|nvl|quadro|rtx|gtx")
_SYNONYM = {"mobile": "laptop", "notebook": "laptop"}

_MOST_PRICE = 1e9  # per hour


def _read_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a table of the package, without empty cells."""
    rows = csv.DictReader(
        (files("analyzer.cards") / name).read_text("utf-8").splitlines()
    )
    return [{name: value for name, value in row.items() if value} for row in rows]


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One card; the fields are the columns of both tables.

    All cards of one compute capability share the limits of a multiprocessor: CUDA C++ Programming Guide,
    table "Technical Specifications per Compute Capability" and the section of each architecture; the
    descriptions that XLA embeds agree.
    """

    # for the command line (``a100-80gb-sxm``), and the driver's (``NVIDIA A100-SXM4-80GB``)
    id: str
    name: str
    capability_text: str = field(name="compute_capability")
    sm_count: int  # multiprocessors, and their highest clock
    clock_mhz: float
    bandwidth_gb_s: float  # between the chip and its memory
    l2_kib: float
    nominal_mib: int  # advertised memory
    # ``GDDR+ECC``: a sixteenth holds the codes. ``LPDDR``: the host's memory.
    memory_kind: Literal["HBM", "GDDR", "GDDR+ECC", "LPDDR"] = field(name="memory")
    # the memory as CUDA reports it; None to derive it from the advertised memory
    reported_bytes: int | None = None
    # source of ``reported_bytes``; empty without
    memory_source: str = field(name="reported_source", default="")
    specs_source: str = ""  # source of the other figures
    # of one multiprocessor
    fp32_lanes: int  # single-precision operations per clock
    max_threads: int  # most resident threads and blocks
    max_blocks: int
    shared_bytes: int  # shared memory, and the part that one block may opt in to
    block_optin_bytes: int

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Major and minor version."""
        major, _, minor = self.capability_text.partition(".")
        return int(major), int(minor)

    @property
    def is_amd(self) -> bool:
        """Whether TensorFlow uses it by ROCm, which knows no compute capability."""
        return self.compute_capability == (0, 0)

    @property
    def bandwidth_bytes_s(self) -> int:
        """Bytes per second between the chip and its memory."""
        return round(self.bandwidth_gb_s * 1e9)

    @property
    def l2_bytes(self) -> int:
        """L2 cache."""
        return round(self.l2_kib * 1024)

    @property
    def nominal_bytes(self) -> int:
        """Advertised memory."""
        return self.nominal_mib * MIB

    @property
    def memory_bytes(self) -> int:
        """The card's memory as CUDA reports it (``cudaMemGetInfo``'s total)."""
        if self.reported_bytes is not None:
            return self.reported_bytes

        has_codes = self.memory_kind == "GDDR+ECC"
        usable_mib = self.nominal_mib * 15 // 16 if has_codes else self.nominal_mib
        kind = "AMD" if self.is_amd else self.memory_kind
        driver_mib = _DRIVER_MIB.get(kind) or round(self.nominal_mib * _JETSON_SHARE)

        return (usable_mib - driver_mib) * MIB


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """Return all cards in the order of the table."""
    limits = {row["compute_capability"]: row for row in _read_rows("architectures.csv")}
    figures = [
        row | limits[row["compute_capability"]]
        for row in _read_rows("card_figures.csv")
    ]

    return msgspec.convert(figures, tuple[Gpu, ...], strict=False)


def find_gpu(name: str) -> Gpu:
    """Return the card with this name.

    Case, spaces, dashes and the vendor's name are ignored: ``a100-80gb``, ``RTX 4090``,
    ``NVIDIA A100-SXM4-80GB`` (as nvidia-smi prints it). If several variants match (``a100``: 40 or
    80 GB), the one with the least memory is returned (of equals the SXM board).
    """
    return gpus_named(name)[0]


def look_up_gpu(name: str) -> Gpu | None:
    """Return the card with this name, as ``find_gpu`` does; None if there is none."""
    with suppress(InputError):
        return find_gpu(name)
    return None


def gpus_named(name: str) -> tuple[Gpu, ...]:
    """Return the cards that match a name, the one with the least memory first.

    An unknown name is an ``InputError`` that lists similar ones.
    """
    cards = all_gpus()

    exact = [
        card for card in cards if name.strip().lower() in (card.id, card.name.lower())
    ]
    if exact:
        return tuple(exact)

    wanted = _words(name)
    matches: dict[int, dict[Gpu, None]] = {}

    for card in cards:
        size = f"{round(card.nominal_bytes / (1 << 30))}gb"  # as in "T4 16GB"
        for words in (_words(f"{card.id} {size}"), _words(f"{card.name} {size}")):
            if wanted and wanted <= words:
                more = sum(not _VARIANT.fullmatch(word) for word in words - wanted)
                matches.setdefault(more, {})[card] = None

    if matches:
        return tuple(
            sorted(
                matches[min(matches)],
                key=lambda card: (card.nominal_bytes, "sxm" not in card.id),
            )
        )

    text = "-".join(name.lower().split())
    similar = suggest_names(text, [card.id for card in cards])
    start = similar or "For example: t4, a100-80gb, h100."
    raise InputError(
        f"No card is called {name!r}.",
        f"{start} `analyze gpus list` shows all.",
    )


def _words(name: str) -> frozenset[str]:
    """Split a name into its words: ``RTX4070Ti 16G`` is rtx, 4070, ti, 16gb."""
    text = name.lower().replace("max-q", "maxq")
    text = re.sub(r"(\d)\s*(?:gib|gb|g)\b(?!\.)", r"\1gb", text)
    text = re.sub(
        r"\b([rg]t?x|quadro|titan|tesla|geforce|nvidia|jetson)(?=[a-z]?\d)",
        r"\1 ",
        text,
    )

    text = re.sub(r"(?<=\d)(ti|super|laptop|xtx|xt|gre)\b", r" \1", text)
    text = re.sub(r"\bsxm\d\b", "sxm", text)
    text = re.sub(r"\b(a100|h100|h200|v100|p100)(?=\d+gb|sxm|pcie)", r"\1 ", text)
    words = (_SYNONYM.get(word, word) for word in re.split(r"[^a-z0-9.]+", text))

    return frozenset(word for word in words if word and not _NOISE.fullmatch(word))


def read_prices(path: Path) -> dict[Gpu, float]:
    """Return the price per hour of each card of a CSV table, the lowest if a card has several rows."""
    prices: dict[Gpu, float] = {}
    line = ""

    try:
        for line in path.read_text("utf-8-sig").splitlines():
            name, _, rest = line.partition(",")
            if not line.strip(", ") or name.strip().lower() in ("card", "gpu"):
                continue

            price = float(rest.partition(",")[0])
            if not 0 <= price <= _MOST_PRICE:
                raise ValueError

            gpu = find_gpu(name)
            prices[gpu] = min(price, prices.get(gpu, price))
    except InputError as error:
        raise InputError(f"{path}: {error.message}", error.hint) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"{line[:60]!r} has no price"
        raise InputError(
            f"{path}: {reason}.", "Write lines such as `t4,0.35`."
        ) from None

    if not prices:
        raise InputError(
            f"{path} holds no card.",
            "Write lines such as `t4,0.35`.",
        )

    return prices


# T4 115 to 302 MiB, V100 317, A100-40 352, A100-80 424, RTX 3090 286, H100 444, H200 527 (driver
# 580). The card's total minus the free memory that TensorFlow's start-up lines in public logs imply.
# TensorFlow computes its limit after the context exists, because ``cudaMemGetInfo`` needs one.
_CUDA_CONTEXT = BoundedBytes(320 * MIB, Range(115 * MIB, 527 * MIB))

# The median of the 11 public logs of TensorFlow-ROCm since 2023, with the display (RX 6600 XT 120
# MiB, RX 7600 272, RX 7900 XTX 548 to 612, MI210 1070, MI250X 1192 and 1428, RX 7800 XT 1225, RX 9060
# XT 1286); 0 in older ones (RX 5700, RX 6700 XT, MI60).
_HIP_CONTEXT = BoundedBytes(612 * MIB, Range(0, 1428 * MIB))

# cuBLAS, cuDNN and loaded kernels (100 to 1000 MiB): openxla/xprof issue 378 (RTX 3090, about 0.9 GiB
# with all kernels loaded at once); less with CUDA's lazy loading.
_LIBRARIES_BYTES = 500 * MIB


def check_limit(
    gpu: Gpu,
    limit_bytes: int | None,
    context_bytes: int | None = None,
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
            f"Omit it for TensorFlow's default there ({default}), or name a larger card.",
        )


def _context(gpu: Gpu) -> BoundedBytes:
    return _HIP_CONTEXT if gpu.is_amd else _CUDA_CONTEXT


def system_reserve(
    free_bytes: int,
    compute_capability: tuple[int, int],
    *,
    tegra: bool = False,
) -> int:
    """Return the bytes that TensorFlow leaves to the system.

    From ``MinSystemMemory`` in ``tensorflow/core/common_runtime/gpu/gpu_device.cc``. ``free_bytes`` is
    the free memory once the CUDA context exists; ``tegra`` is a Jetson, whose memory is the host's.
    On an AMD card TensorFlow reads the capability 0.0 (``se::CudaComputeCapability`` of ROCm).
    """
    if free_bytes < 2 << 30:
        return 225 * MIB
    if tegra:
        return 1 << 30

    return {6: 500, 7: 1050, 8: 1536}.get(max(compute_capability[0], 6), 1800) * MIB


# Most memory that a display, Windows or WSL takes, chosen by half of 106 public logs of GeForce and
# TITAN cards ("Created device ... with N MB memory"). Of the others and 15 later ones, the range of
# the limit contains 64 of 71; other programs on the card explain the rest (1.4 to 4.5 GiB).
_DISPLAY_SHARE = 0.1
_MOST_DISPLAY_BYTES = 1200 * MIB


def usable_memory(gpu: Gpu) -> BoundedBytes:
    """Return the memory of a card that one process can use, CUDA's context included.

    The bounds allow for the total, which depends on the driver (T4: 14918 to 15110 MiB, RTX 4090 24081
    to 24217), more if it was never read from a card, and for a display on cards with such outputs.
    """
    margin = 200 * MIB if gpu.memory_source else 300 * MIB
    total = gpu.memory_bytes

    has_display = any(word in gpu.name for word in ("GeForce", "TITAN", "RTX"))
    shared = (
        min(round(_DISPLAY_SHARE * total), _MOST_DISPLAY_BYTES) if has_display else 0
    )

    return BoundedBytes(total, Range(total - margin - shared, total + margin))


def memory_limit(gpu: Gpu) -> BoundedBytes:
    """Return the ``bytes_limit`` of TensorFlow's allocator.

    The usable memory minus the CUDA context minus the reserve (``SingleVirtualDeviceMemoryLimit``).
    """
    usable = usable_memory(gpu)
    tegra = gpu.memory_kind == "LPDDR"
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
    workspace_bytes = 32 * MIB if is_hopper else 8 * MIB + (128 << 10)

    return _context(gpu).bytes + _LIBRARIES_BYTES + workspace_bytes


def memory_beside_pool(gpu: Gpu) -> int:
    """Return the bytes of ``process_overhead``, at most the part that TensorFlow leaves by default."""
    left_bytes = usable_memory(gpu).bytes - memory_limit(gpu).bytes
    return min(process_overhead(gpu), left_bytes)
