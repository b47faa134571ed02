"""The cards: the catalogue ``card_figures.csv``, the user's prices, and the search by name.

Each figure of the catalogue was read from a card or a data sheet; ``sources.csv`` lists the sources.
"""

import contextlib
import csv
import difflib
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import field

from analyzer.model.errors import InputError

MIB: Final = 1024**2  # bytes
_KIB: Final = 1024  # bytes

_DRIVER_MIB: Final = {"GDDR": 350, "GDDR+ECC": 500, "HBM": 600, "AMD": 16}
"""MiB that the driver reserves, by kind of memory, before CUDA reports a total: the middle of the
measured cards on Linux (GDDR 220 to 560, depending on the driver; with ECC 250 to 680 after the
sixteenth for the codes; HBM 110 to 910; AMD 16 in logs of idle cards by TensorFlow-ROCm)."""

_JETSON_SHARE: Final = (
    0.05  # of the host's memory; 4 to 7 % is missing on the measured boards
)

_NOISE: Final = re.compile(
    r"nvidia|amd|instinct|geforce|tesla|gpu|graphics|generation|edition|workstation|server|card|the|memory"
    r"|hbm\d?e?|gddr\dx?"
)
_VARIANT: Final = re.compile(r"\d+gb|sxm|pcie|nvl|quadro|rtx|gtx")
_SYNONYM: Final = {"mobile": "laptop", "notebook": "laptop"}

_MOST_PRICE: Final = 1e9  # per hour


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
        return round(self.l2_kib * _KIB)

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
    cards = []

    for row in _read_rows("card_figures.csv"):
        figures = row | limits[row["compute_capability"]]
        cards.append(msgspec.convert(figures, Gpu, strict=False))

    return tuple(cards)


def find_gpu(name: str) -> Gpu:
    """Return the card with this name.

    Case, spaces, dashes and the vendor's name are ignored: ``a100-80gb``, ``RTX 4090``,
    ``NVIDIA A100-SXM4-80GB`` (as nvidia-smi prints it). If several variants match (``a100``: 40 or
    80 GB), the one with the least memory is returned (of equals the SXM board).
    """
    return gpus_named(name)[0]


def look_up_gpu(name: str) -> Gpu | None:
    """Return the card with this name, as ``find_gpu`` does; None if there is none."""
    with contextlib.suppress(InputError):
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
        found = matches[min(matches)]
        return tuple(
            sorted(found, key=lambda card: (card.nominal_bytes, "sxm" not in card.id))
        )

    names: dict[str, str] = {}
    for card in reversed(cards):
        first, *rest = card.id.split("-")
        parts = ([first, *rest[:-2]], [first, *rest[:-1]], rest, [first, *rest])
        names |= {"-".join(part): card.id for part in parts if part}

    text = "-".join(name.lower().split())
    near = difflib.get_close_matches(text, names, n=3, cutoff=0.6)
    similar = " or ".join(dict.fromkeys(names[one] for one in near))
    start = (
        f"Did you mean {similar}? " if near else "For example: t4, a100-80gb, h100. "
    )
    raise InputError(
        f"No card is called {name!r}.", hint=f"{start}`analyze gpus list` shows all."
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
        raise InputError(f"{path}: {error.message}", hint=error.hint) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or f"{line[:60]!r} has no price"
        hint = "Write lines such as `t4,0.35`."
        raise InputError(f"{path}: {reason}.", hint=hint) from None

    if not prices:
        raise InputError(
            f"{path} holds no card.", hint="Write lines such as `t4,0.35`."
        )

    return prices
