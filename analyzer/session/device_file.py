"""The JSON document of ``analyze device``: a card's memory in parts."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from analyzer.model.contract.device_figures import AllocatorFigures
from analyzer.model.contract.fields import ReportRecord
from analyzer.model.contract.report.writing import build_schema
from analyzer.session.device_switches import Switch

DEVICE_VERSION: Final = 1

Source = Literal["tensorflow", "driver", "difference", "predicted", "reports"]


class CardPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a card's memory.

    Attributes:
        id: Stable name of the part.
        low_bytes, high_bytes: Its size; different if it is known within bounds only.
        source: Source of the figure.
        note: A remark for the reader.
    """

    id: str
    what: str
    low_bytes: int
    high_bytes: int
    source: Source
    note: str = ""


class CardAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One card.

    Attributes:
        index: The driver's number.
        name, uuid: The driver's names.
        total_bytes, used_bytes, free_bytes: As ``nvidia-smi`` shows them.
        compute_mode: Whether several processes may use it.
        rows: Its memory in parts; exact parts add up to ``total_bytes``.
        own_bytes: The driver's figure of the process that was read; None if it shows none.
        would_take_bytes: Memory that TensorFlow would take now without settings; None if it has taken
            it already, or the card is not in the catalogue.
        notes: Reasons why a figure is not exact.
    """

    index: int
    name: str
    uuid: str
    total_bytes: int
    used_bytes: int
    free_bytes: int
    compute_mode: str
    rows: tuple[CardPart, ...]
    own_bytes: int | None = None
    would_take_bytes: int | None = None
    notes: tuple[str, ...] = ()


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Memory outside TensorFlow's pool after one stage of a measured process.

    Attributes:
        outside_bytes: The driver's figure of the process minus the pool.
        added_bytes: Difference from the stage before.
    """

    what: str
    outside_bytes: int
    added_bytes: int


class DeviceFile(ReportRecord, frozen=True, kw_only=True):
    """The whole account.

    Attributes:
        headline: The answer in one line.
        driver: The driver's version; empty without one.
        cards: One for each card.
        allocators: TensorFlow's own figures; empty if TensorFlow was not asked.
        pid: The process of these figures, or the process asked about; None for neither.
        libraries: CUDA libraries that the process has loaded.
        switches: Active settings.
        stages: Memory by stage; empty unless it was measured.
        is_phantom: Whether the cards are simulated.
        notes: Plain sentences.
    """

    schema_version: int = DEVICE_VERSION
    kind: Literal["device"] = "device"
    headline: str
    driver: str = ""
    cards: tuple[CardAccount, ...] = ()
    allocators: tuple[AllocatorFigures, ...] = ()
    pid: int | None = None
    libraries: tuple[str, ...] = ()
    switches: tuple[Switch, ...] = ()
    stages: tuple[StageRow, ...] = ()
    is_phantom: bool = False
    notes: tuple[str, ...] = ()


def device_schema_text() -> str:
    """Return the JSON Schema of ``analyze device --json``, ``docs/device.schema.json``."""
    return build_schema("Document of analyze device --json", DeviceFile)
