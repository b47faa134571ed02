"""The user's own cards, from a file: cards or figures that the catalogue lacks.

The environment variable ``TF_MEMORY_ANALYZER_CARDS`` names the file, so that child processes also know
the cards; ``--gpu FILE`` sets it. TOML or JSON::

    [[card]]
    id = "my-rtx"                   # the name for --gpu
    like = "rtx-3090"               # the card with the figures that are not given here
    reported_bytes = 25280643072    # the card's memory as CUDA reports it, if known
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from analyzer.model.errors import InputError

VARIABLE: Final = "TF_MEMORY_ANALYZER_CARDS"
SUFFIXES: Final = (".toml", ".json")

_MOST_FILE_BYTES: Final = 1 << 20

_Id = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]{0,59}$")]
_Positive = Annotated[float, Meta(gt=0, le=1e9)]
_Mib = Annotated[int, Meta(ge=256, le=1 << 24)]


class UserCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One card of the file; its fields are columns of ``card_figures.csv``.

    Attributes:
        id: The name for ``--gpu``.
        like: A card of the catalogue for figures that are not given; empty for none.
        name: The driver's name; the id if empty.
        compute_capability: Such as ``8.6``.
        sm_count: Multiprocessors.
        nominal_mib: The advertised memory.
        memory: Kind of memory.
        reported_bytes: Memory as CUDA reports it; None to derive it from the advertised memory.
    """

    id: _Id
    like: str = ""
    name: Annotated[str, Meta(max_length=120)] = ""
    compute_capability: Annotated[str, Meta(pattern=r"^\d{1,2}\.\d$")] | None = None
    sm_count: Annotated[int, Meta(ge=1, le=4096)] | None = None
    clock_mhz: _Positive | None = None
    bandwidth_gb_s: _Positive | None = None
    l2_kib: _Positive | None = None
    nominal_mib: _Mib | None = None
    memory: Literal["HBM", "GDDR", "GDDR+ECC", "LPDDR"] | None = None
    reported_bytes: Annotated[int, Meta(ge=1 << 28, le=1 << 44)] | None = None


class _CardsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    card: Annotated[tuple[UserCard, ...], Meta(min_length=1, max_length=1000)]


def is_card_file(name: str) -> bool:
    """Return whether the value of ``--gpu`` is the name of a file."""
    return name.strip().lower().endswith(SUFFIXES)


def use_card_file(name: str) -> str:
    """Make a file's cards known to this process and its children; return the first card's id.

    Raises:
        InputError: the file cannot be read, or has an invalid card.
    """
    path = Path(name.strip()).absolute()
    first = load_cards(path)[0].id
    os.environ[VARIABLE] = str(path)
    return first


def cards_in_environment() -> tuple[UserCard, ...]:
    """Return the cards of the file that the environment names; empty if it names none.

    Raises:
        InputError: the file cannot be read, or has an invalid card.
    """
    name = os.environ.get(VARIABLE, "").strip()
    return load_cards(Path(name)) if name else ()


def load_cards(path: Path) -> tuple[UserCard, ...]:
    """Return the cards of a file.

    Raises:
        InputError: the file cannot be read, or has an invalid card.
    """
    if not path.exists():
        raise InputError(f"The file {path} does not exist.", hint="`analyze gpus` lists the cards.")
    decode = msgspec.json.decode if path.suffix.lower() == ".json" else msgspec.toml.decode
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_FILE_BYTES + 1)
        if len(content) > _MOST_FILE_BYTES:
            raise ValueError("it is longer than 1 MiB")
        cards = decode(content, type=_CardsFile).card
        if len({card.id for card in cards}) < len(cards):
            raise ValueError("two cards have the same id")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not a file of cards: {str(error)[:300]}.".replace("..", "."),
            hint='Write tables [[card]] with id = "my-card", like = "rtx-3090" and the other figures.',
        ) from None
    return cards
