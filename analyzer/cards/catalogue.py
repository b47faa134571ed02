"""The catalogue of cards, ``card_figures.csv``, and the search for a card by name.

Each figure was read from a card or a data sheet; ``sources.csv`` lists the sources. Cards without a
source are not in the table.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from msgspec import structs

from analyzer.cards.architecture import ARCHITECTURES, Architecture
from analyzer.cards.user_cards import UserCard, cards_in_environment, is_card_file, use_card_file
from analyzer.model.errors import InputError

MIB: Final = 1024**2  # bytes

_DRIVER_MIB: Final = {"GDDR": 350, "GDDR+ECC": 500, "HBM": 600}
"""MiB that the driver reserves, by kind of memory, before CUDA reports a total: the middle of the
measured cards on Linux (GDDR 220 to 560, depending on the driver; with ECC 250 to 680 after the
sixteenth for the codes; HBM 110 to 910)."""

_JETSON_SHARE: Final = 0.05  # of the host's memory; 4 to 7 % is missing on the measured boards

_REQUIRED: Final = (
    *("compute_capability", "sm_count", "clock_mhz", "bandwidth_gb_s", "l2_kib"),
    *("nominal_mib", "memory"),
)
"""Figures that every card needs."""

_NOISE: Final = re.compile(
    r"nvidia|geforce|tesla|gpu|graphics|generation|edition|workstation|server|card|the|memory"
    r"|hbm\d?e?|gddr\dx?"
)
_VARIANT: Final = re.compile(r"\d+gb|sxm|pcie|nvl|quadro|rtx|gtx")
_SEVERAL: Final = re.compile(r"^\s*\d+\s*x\s*(?=\D)|,.*")
_SYNONYM: Final = {"mobile": "laptop", "notebook": "laptop"}


_CLOSE_NUMBERS: Final = 20
"""A model number this far from the user's, or less, is suggested for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card.

    Attributes:
        id: Name for the command line: ``a100-80gb-sxm``.
        name: The driver's name: ``NVIDIA A100-SXM4-80GB``.
        compute_capability: Major and minor version.
        sm_count: Multiprocessors.
        clock_mhz: Highest clock of the multiprocessors.
        bandwidth_bytes_s: Bytes per second between the chip and its memory.
        l2_bytes: L2 cache.
        nominal_bytes: Advertised memory.
        memory_kind: ``HBM``, ``GDDR``, ``GDDR+ECC`` (a sixteenth holds the codes) or ``LPDDR`` (the
            host's memory).
        memory_bytes: The card's memory as CUDA reports it (``cudaMemGetInfo``'s total).
        memory_source: Source of ``memory_bytes``; empty if it is derived from the nominal size.
        specs_source: Source of the other figures.
    """

    id: str
    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    clock_mhz: float
    bandwidth_bytes_s: int
    l2_bytes: int
    nominal_bytes: int
    memory_kind: str
    memory_bytes: int
    memory_source: str
    specs_source: str

    @property
    def architecture(self) -> Architecture:
        """Limits of its compute capability."""
        return ARCHITECTURES[self.compute_capability]

    @property
    def capability_text(self) -> str:
        """``8.0``."""
        return "{}.{}".format(*self.compute_capability)


def all_gpus() -> tuple[Gpu, ...]:
    """Return all cards in the order of the table, the user's own cards first.

    Raises:
        InputError: the user's file of cards is invalid.
    """
    rows = {row["id"]: row for row in _rows()}
    own = tuple(_complete_card(card, rows) for card in cards_in_environment())
    ids = {card.id for card in own}
    return (*own, *(card for card in _catalogue() if card.id not in ids))


@cache
def _catalogue() -> tuple[Gpu, ...]:
    return tuple(_parse_row(row) for row in _rows())


@cache
def _rows() -> tuple[dict[str, str], ...]:
    text = (files("analyzer.cards") / "card_figures.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def _complete_card(card: UserCard, rows: Mapping[str, dict[str, str]]) -> Gpu:
    """Return a card of the user's file, completed from the catalogue's rows by id.

    Raises:
        InputError: a figure is missing or invalid.
    """
    if card.like and card.like not in rows:
        close = [name for name in sorted(rows) if _words(card.like) <= _words(name)]
        raise InputError(
            f"The card {card.id!r} is like {card.like!r}, which is not in the catalogue.",
            hint=f"Did you mean {' or '.join(close[:3])}?" if close else "`analyze gpus` lists it.",
        )
    row = _complete_row(card, dict(rows.get(card.like, {})))
    missing = [name for name in _rows()[0] if not row.get(name) and name in _REQUIRED]
    if missing:
        raise InputError(
            f"The card {card.id!r} lacks {', '.join(missing)}.",
            hint='Add like = "NAME" to take the other figures from a card of the catalogue.',
        )
    gpu = _parse_row(row)
    if gpu.compute_capability not in ARCHITECTURES:
        raise InputError(
            f"The card {card.id!r} has the unknown compute capability {gpu.capability_text}.",
            hint=f"Known are {', '.join('{}.{}'.format(*one) for one in ARCHITECTURES)}.",
        )
    return gpu


def _complete_row(card: UserCard, row: dict[str, str]) -> dict[str, str]:
    """Return the row of a similar card with the user's figures in it."""
    if card.nominal_mib is not None or card.memory is not None:
        row["reported_bytes"] = row["reported_source"] = ""
    given = {name: str(value) for name, value in structs.asdict(card).items() if value}
    row |= {name: value for name, value in given.items() if name != "like"}
    row |= {"specs_source": "user", "reported_source": "user" if card.reported_bytes else ""}
    row["name"] = card.name or card.id
    row.setdefault("reported_bytes", "")
    return row


@cache
def sources() -> dict[str, str]:
    """Return the sources by key; ``techpowerup:c2888`` has the key ``techpowerup``."""
    text = (files("analyzer.cards") / "sources.csv").read_text(encoding="utf-8")
    return {row["key"]: row["what"] for row in csv.DictReader(text.splitlines())}


def find_gpu(name: str) -> Gpu:
    """Return the card with this name.

    Case, spaces, dashes and the vendor's name are ignored: ``a100-80gb``, ``RTX 4090``,
    ``NVIDIA A100-SXM4-80GB`` (as nvidia-smi prints it). If several variants match (``a100``: 40 or
    80 GB), the one with the least memory is returned (of equals the SXM board); ``gpus_named`` returns
    all.

    Raises:
        InputError: no card has this name; the hint lists similar ones.
    """
    return gpus_named(name)[0]


def gpus_named(name: str) -> tuple[Gpu, ...]:
    """Return the cards that match a name, the one with the least memory first.

    The name of a file of the user's own cards (``user_cards``) stands for its first card.

    Raises:
        InputError: no card has this name; the hint lists similar ones.
    """
    if is_card_file(name):
        name = use_card_file(name)
    wanted = _words(name)
    exact = [card for card in all_gpus() if name.strip().lower() in (card.id, card.name.lower())]
    if exact:
        return tuple(exact)
    matches: dict[int, list[Gpu]] = {}
    for card in all_gpus():
        for words in (_words(card.id), _words(card.name)):
            if wanted and wanted <= words:
                more = sum(1 for word in words - wanted if not _VARIANT.fullmatch(word))
                matches.setdefault(more, []).append(card)
    if not matches and (several := _SEVERAL.search(name)):
        raise InputError(
            f"{name!r} names several cards, and this command takes one.",
            hint=f"--gpu {name.replace(several[0], '', 1).partition(',')[0].strip()} is for one "
            f"replica; `analyze trace TARGET --gpu {name}` runs all on simulated cards.",
        )
    if not matches:
        raise InputError(f"No card is called {name!r}.", hint=_suggest(name))
    cards = dict.fromkeys(matches[min(matches)])
    return tuple(sorted(cards, key=lambda card: (card.nominal_bytes, "sxm" not in card.id)))


def _parse_row(row: dict[str, str]) -> Gpu:
    nominal_mib, kind = int(row["nominal_mib"]), row["memory"]
    usable_mib = nominal_mib * 15 // 16 if kind == "GDDR+ECC" else nominal_mib
    driver_mib = _DRIVER_MIB.get(kind) or round(nominal_mib * _JETSON_SHARE)
    derived = (usable_mib - driver_mib) * MIB
    major, minor = row["compute_capability"].split(".")
    return Gpu(
        id=row["id"],
        name=row["name"],
        compute_capability=(int(major), int(minor)),
        sm_count=int(row["sm_count"]),
        clock_mhz=float(row["clock_mhz"]),
        bandwidth_bytes_s=round(float(row["bandwidth_gb_s"]) * 1e9),
        l2_bytes=round(float(row["l2_kib"]) * 1024),
        nominal_bytes=nominal_mib * MIB,
        memory_kind=kind,
        memory_bytes=int(row["reported_bytes"] or derived),
        memory_source=row["reported_source"],
        specs_source=row["specs_source"],
    )


def _words(name: str) -> frozenset[str]:
    """Split a name into its words: ``RTX4070Ti 16G`` is rtx, 4070, ti, 16gb."""
    text = name.lower().replace("max-q", "maxq")
    text = re.sub(r"(\d)\s*(?:gib|gb|g)\b(?!\.)", r"\1gb", text)
    text = re.sub(r"\b(rtx|gtx|quadro|titan|tesla|geforce|nvidia|jetson)(?=[a-z]?\d)", r"\1 ", text)
    text = re.sub(r"(?<=\d)(ti|super|laptop)\b", r" \1", text)
    text = re.sub(r"\bsxm\d\b", "sxm", text)
    text = re.sub(r"\b(a100|h100|h200|v100|p100)(?=\d+gb|sxm|pcie)", r"\1 ", text)
    words = (_SYNONYM.get(word, word) for word in re.split(r"[^a-z0-9.]+", text))
    return frozenset(word for word in words if word and not _NOISE.fullmatch(word))


def _suggest(name: str) -> str:
    """Return a hint with similar names."""
    number = re.search(r"\d{3,}", name)
    if number:  # 4091: the card with the closest number
        numbers = {
            int(word): card.id
            for card in sorted(all_gpus(), key=lambda card: -len(card.id))
            for word in card.id.split("-")
            if word.isdigit()
        }
        closest = min(numbers, key=lambda one: abs(one - int(number[0])))
        if abs(closest - int(number[0])) <= _CLOSE_NUMBERS:
            return f"Did you mean {numbers[closest]}? --gpu list shows all."
    wanted = "-".join(sorted(_words(name)))
    keys = {"-".join(sorted(_words(card.id))): card.id for card in all_gpus()}
    near = [keys[key] for key in difflib.get_close_matches(wanted, keys, n=3, cutoff=0.6)]
    if not near:  # h1000: compare with model names alone
        models = {card.id.split("-")[0]: None for card in all_gpus()} | {
            "-".join(card.id.split("-")[:2]): None for card in all_gpus()
        }
        near = difflib.get_close_matches(name.strip().lower(), models, n=3, cutoff=0.5)
    start = f"Did you mean {' or '.join(near)}? " if near else "For example: t4, a100-80gb, h100. "
    return f"{start}--gpu list shows all."
