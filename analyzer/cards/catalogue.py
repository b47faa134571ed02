"""The catalogue of cards: ``card_figures.csv``, and the card that a name means.

A figure is in the table because someone read it off a card or a data sheet; ``sources.csv`` says
who. A card whose figures nobody could be named for is left out.
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

_KEPT_BY_DRIVER: Final = {"GDDR": 350, "GDDR+ECC": 500, "HBM": 600}
"""MiB that the driver keeps of each kind of memory before CUDA reports a total: the middle of what
the read cards show on Linux (GDDR 220 to 560 by the driver's age; with ECC 250 to 680 after the
sixteenth that the codes take; HBM 110 to 910)."""

_KEPT_ON_JETSON: Final = 0.05  # the memory is the host's: 4 to 7 % is missing on the read boards

_NEEDED: Final = frozenset(
    {
        *("compute_capability", "sm_count", "clock_mhz", "bandwidth_gb_s", "l2_kib"),
        *("nominal_mib", "memory"),
    }
)
"""Figures that a card has to have."""

_NOISE: Final = re.compile(
    r"nvidia|geforce|tesla|gpu|graphics|generation|edition|workstation|server|card|the|memory"
    r"|hbm\d?e?|gddr\dx?"
)
_VARIANT: Final = re.compile(r"\d+gb|sxm|pcie|nvl|quadro|rtx|gtx")
_SYNONYM: Final = {"mobile": "laptop", "notebook": "laptop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card.

    Attributes:
        id: What the user types: ``a100-80gb-sxm``.
        name: What the driver calls it: ``NVIDIA A100-SXM4-80GB``.
        compute_capability: Major and minor version.
        sm_count: Multiprocessors.
        clock_mhz: The highest clock of the multiprocessors.
        bandwidth_bytes_s: Bytes a second between the chip and its memory.
        l2_bytes: The L2 cache.
        nominal_bytes: The memory on the box.
        memory_kind: ``HBM``, ``GDDR``, ``GDDR+ECC`` (a sixteenth of it holds the codes) or
            ``LPDDR`` (the host's own memory).
        memory_bytes: All that CUDA reports as the card's memory (``cudaMemGetInfo``'s total).
        memory_source: Who read ``memory_bytes``; empty where it is derived from the nominal size.
        specs_source: Who the other figures come from.
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
        """The limits of its compute capability."""
        return ARCHITECTURES[self.compute_capability]

    @property
    def capability_text(self) -> str:
        """``8.0``."""
        return "{}.{}".format(*self.compute_capability)


def all_gpus() -> tuple[Gpu, ...]:
    """Return every card, in the order of the table, by compute capability; the user's own come first.

    Raises:
        InputError: the user's file of cards cannot be used.
    """
    own = cards_in_environment()
    if not own:
        return _catalogue()
    known = {row["id"]: row for row in _rows()}
    mine = tuple(_own(card, known) for card in own)
    ids = {card.id for card in mine}
    return (*mine, *(card for card in _catalogue() if card.id not in ids))


@cache
def _catalogue() -> tuple[Gpu, ...]:
    return tuple(_card(row) for row in _rows())


@cache
def _rows() -> tuple[dict[str, str], ...]:
    text = (files("analyzer.cards") / "card_figures.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def _own(card: UserCard, known: Mapping[str, dict[str, str]]) -> Gpu:
    """Return a card of the user's file.

    Args:
        card: The card.
        known: Rows of the catalogue by id.

    Raises:
        InputError: a figure is missing, or one is of no card that TensorFlow runs on.
    """
    if card.like and card.like not in known:
        close = [name for name in sorted(known) if _words(card.like) <= _words(name)]
        raise InputError(
            f"The card {card.id!r} is like {card.like!r}, which the catalogue lacks.",
            hint=f"Did you mean {' or '.join(close[:3])}?" if close else "`analyze gpus` lists it.",
        )
    row = dict(known.get(card.like, {}))
    if card.nominal_mib is not None or card.memory is not None:
        row["reported_bytes"] = row["reported_source"] = ""
    for name in structs.fields(UserCard):
        value = getattr(card, name.name)
        if name.name != "like" and value not in (None, ""):
            row[name.name] = str(value)
    row |= {"specs_source": "user", "reported_source": "user" if card.reported_bytes else ""}
    row["name"] = card.name or card.id
    row.setdefault("reported_bytes", "")
    missing = [name for name in _rows()[0] if not row.get(name) and name in _NEEDED]
    if missing:
        raise InputError(
            f"The card {card.id!r} lacks {', '.join(missing)}.",
            hint='like = "NAME" takes what is not given from a card of the catalogue.',
        )
    made = _card(row)
    if made.compute_capability not in ARCHITECTURES:
        raise InputError(
            f"The card {card.id!r} has the unknown compute capability {made.capability_text}.",
            hint=f"Known are {', '.join('{}.{}'.format(*one) for one in ARCHITECTURES)}.",
        )
    return made


@cache
def sources() -> dict[str, str]:
    """Return what each source key stands for; ``techpowerup:c2888`` has the key ``techpowerup``."""
    text = (files("analyzer.cards") / "sources.csv").read_text(encoding="utf-8")
    return {row["key"]: row["what"] for row in csv.DictReader(text.splitlines())}


def find_gpu(name: str) -> Gpu:
    """Return the card that ``name`` means.

    Case, spaces, dashes and the vendor's name do not matter: ``a100-80gb``, ``RTX 4090``,
    ``NVIDIA A100-SXM4-80GB`` (as nvidia-smi prints it). A name that fits several variants of a card
    (``a100``: 40 or 80 GB) means the one with the least memory, so that what fits, fits any of them
    (of equals the SXM board); ``gpus_named`` has all.

    Raises:
        InputError: no card has that name; the hint names the nearest.
    """
    return gpus_named(name)[0]


def gpus_named(name: str) -> tuple[Gpu, ...]:
    """Return the cards that ``name`` may mean, the one with the least memory first.

    A file of the user's own cards (``user_cards``) means the first of them.

    Raises:
        InputError: no card has that name; the hint names the nearest.
    """
    if is_card_file(name):
        name = use_card_file(name)
    asked = _words(name)
    exact = [card for card in all_gpus() if name.strip().lower() in (card.id, card.name.lower())]
    if exact:
        return tuple(exact)
    fitting: dict[int, list[Gpu]] = {}
    for card in all_gpus():
        for words in (_words(card.id), _words(card.name)):
            if asked and asked <= words:
                more = sum(1 for word in words - asked if not _VARIANT.fullmatch(word))
                fitting.setdefault(more, []).append(card)
    if not fitting:
        raise InputError(f"No card is called {name!r}.", hint=_nearest(name))
    cards = dict.fromkeys(fitting[min(fitting)])
    return tuple(sorted(cards, key=lambda card: (card.nominal_bytes, "sxm" not in card.id)))


def _card(row: dict[str, str]) -> Gpu:
    nominal_mib, kind = int(row["nominal_mib"]), row["memory"]
    usable_mib = nominal_mib * 15 // 16 if kind == "GDDR+ECC" else nominal_mib
    kept_mib = _KEPT_BY_DRIVER.get(kind) or round(nominal_mib * _KEPT_ON_JETSON)
    derived = (usable_mib - kept_mib) * MIB
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


def _nearest(name: str) -> str:
    """Return a sentence with the names that are written most alike."""
    asked = "-".join(sorted(_words(name)))
    keys = {"-".join(sorted(_words(card.id))): card.id for card in all_gpus()}
    near = [keys[key] for key in difflib.get_close_matches(asked, keys, n=3, cutoff=0.6)]
    if not near:  # h1000: the model's name alone, of which there are several cards
        models = {card.id.split("-")[0]: None for card in all_gpus()} | {
            "-".join(card.id.split("-")[:2]): None for card in all_gpus()
        }
        near = difflib.get_close_matches(name.strip().lower(), models, n=3, cutoff=0.5)
    start = f"Did you mean {' or '.join(near)}? " if near else "For example: t4, a100-80gb, h100. "
    return f"{start}--gpu list shows all."
