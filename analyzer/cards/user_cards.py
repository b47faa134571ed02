"""Cards of the user's own, from a file: what the catalogue lacks, or has other figures of.

The environment variable ``TF_MEMORY_ANALYZER_CARDS`` names the file, so that the processes that capture
know the cards too; ``--gpu FILE`` sets it. TOML or JSON::

    [[card]]
    id = "my-rtx"                   # what --gpu takes
    like = "rtx-3090"               # figures that are not given are this card's
    reported_bytes = 25280643072    # what CUDA reports as the card's memory, where it is known
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from analyzer.model.errors import InputError

VARIABLE: Final = "TF_MEMORY_ANALYZER_CARDS"
SUFFIXES: Final = (".toml", ".json")

_MOST_FILE_BYTES: Final = 1 << 20

_Id = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]{0,59}$")]
_Some = Annotated[float, Meta(gt=0, le=1e9)]
_Mib = Annotated[int, Meta(ge=256, le=1 << 24)]


class UserCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One card of a file; the fields are those of ``card_figures.csv``.

    Attributes:
        id: What ``--gpu`` takes.
        like: A card of the catalogue whose figures are taken where none is given; empty for none.
        name: What the driver calls it; the id where none is given.
        compute_capability: Such as ``8.6``.
        sm_count: Multiprocessors.
        clock_mhz, bandwidth_gb_s, l2_kib: Clock, bandwidth of the memory, second-level cache.
        nominal_mib: The memory on the box.
        memory: Its kind.
        reported_bytes: What CUDA reports as the card's memory; None where it is derived.
    """

    id: _Id
    like: str = ""
    name: Annotated[str, Meta(max_length=120)] = ""
    compute_capability: Annotated[str, Meta(pattern=r"^\d{1,2}\.\d$")] | None = None
    sm_count: Annotated[int, Meta(ge=1, le=4096)] | None = None
    clock_mhz: _Some | None = None
    bandwidth_gb_s: _Some | None = None
    l2_kib: _Some | None = None
    nominal_mib: _Mib | None = None
    memory: Literal["HBM", "GDDR", "GDDR+ECC", "LPDDR"] | None = None
    reported_bytes: Annotated[int, Meta(ge=1 << 28, le=1 << 44)] | None = None


class _CardsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    card: Annotated[tuple[UserCard, ...], Meta(min_length=1, max_length=1000)]


def is_card_file(name: str) -> bool:
    """Say whether what ``--gpu`` was given names a file of cards."""
    return name.strip().lower().endswith(SUFFIXES)


def use_card_file(name: str) -> str:
    """Let the file's cards be known here and to all that is started; return the first one's id.

    Raises:
        InputError: the file cannot be read, or says something that is no card.
    """
    path = Path(name.strip()).absolute()
    first = read_cards(path)[0].id
    os.environ[VARIABLE] = str(path)
    return first


def cards_in_environment() -> tuple[UserCard, ...]:
    """Return the cards of the file that the environment names; none where it names none.

    Raises:
        InputError: the file cannot be read, or says something that is no card.
    """
    named = os.environ.get(VARIABLE, "").strip()
    return read_cards(Path(named)) if named else ()


def read_cards(path: Path) -> tuple[UserCard, ...]:
    """Return the cards of a file.

    Raises:
        InputError: it cannot be read, or says something that is no card.
    """
    if not path.exists():
        raise InputError(f"There is no file {path}.", hint="`analyze gpus` lists the cards.")
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_FILE_BYTES + 1)
        if len(content) > _MOST_FILE_BYTES:
            raise ValueError("it is longer than 1 MiB")
        cards = msgspec.convert(_plain(path, content), _CardsFile).card
        ids = [card.id for card in cards]
        if len(set(ids)) < len(ids):
            raise ValueError("two cards have one id")
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is no file of cards: {str(error)[:300]}.".replace("..", "."),
            hint='It holds tables [[card]] with id = "my-card", like = "rtx-3090" and what differs.',
        ) from None
    return cards


def _plain(path: Path, content: bytes) -> Any:
    if path.suffix.lower() == ".json":
        return msgspec.json.decode(content)
    if sys.version_info < (3, 11):
        raise ValueError("TOML is read from Python 3.11 on; write it as JSON")
    import tomllib

    return tomllib.loads(content.decode("utf-8"))
