"""A card's memory in parts that add up to the card: of this process, or of the machine.

Each part has its source: TensorFlow's statistics, the driver (NVML), or their difference.
"""

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from analyzer.model.contract.child_messages import AllocatorFigures
from analyzer.model.contract.fields import Lengths, ReportRecord
from analyzer.model.units import format_bytes
from analyzer.report.output_files import ReportOutput
from analyzer.report.render.sections import (
    Document,
    Paragraph,
    Section,
    Table,
    TableColumn,
)

_COLUMNS = (
    TableColumn("size", least=10),
    TableColumn("part", least=24),
    TableColumn("source", least=12, rank=1),
)


class CardPart(ReportRecord, frozen=True):
    """A part of a card's memory."""

    what: str
    size_bytes: int
    source: Literal["TensorFlow", "the driver", "difference"] = "the driver"


class CardAccount(ReportRecord, frozen=True, kw_only=True):
    """One card; its parts add up to ``total_bytes``."""

    index: int  # the driver's
    name: str
    total_bytes: int
    rows: tuple[CardPart, ...]


class DeviceFile(ReportRecord, frozen=True, kw_only=True):
    """The JSON document of ``analyze device``."""

    schema_version: int = 4
    kind: Literal["device"] = "device"
    headline: str
    cards: tuple[CardAccount, ...] = ()
    notes: tuple[str, ...] = ()
    next_command: str = "analyze trace train.py"
    # full length of each list that was shortened
    shortened: Lengths = {}


@dataclass(frozen=True, eq=False)
class DeviceReport(ReportOutput):
    """The parts of a card's memory; ``document`` is its JSON."""

    report: DeviceFile

    def __str__(self) -> str:
        from rich.console import Console

        from analyzer.report.render.terminal import print_terminal

        text = io.StringIO()
        console = Console(file=text, width=100, no_color=True)
        print_terminal(build_sections(self.report), console)

        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def device() -> DeviceReport:
    """Return the memory of this process as TensorFlow and the driver count it now.

    This initializes TensorFlow's devices, so call it after your program has configured them.
    """
    from analyzer.capture.run.allocator_figures import read_allocators

    return read_machine(read_allocators())


def read_machine(allocators: Sequence[AllocatorFigures] = ()) -> DeviceReport:
    """Return the driver's figures of this machine's cards, beside those of TensorFlow's allocators."""
    import pynvml as nvml

    notes = tuple(_describe_pool(one) for one in allocators)
    try:
        nvml.nvmlInit()
        indices = range(nvml.nvmlDeviceGetCount())
        # NVML uses no memory of a card
        cards = tuple(_divide_card(nvml, index, allocators) for index in indices)
    except nvml.NVMLError as error:
        headline = f"NVIDIA's driver finds no GPU here: {error}."
        return DeviceReport(DeviceFile(headline=headline, notes=notes))
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    total = sum(card.total_bytes for card in cards)
    free = sum(card.rows[-1].size_bytes for card in cards)
    count = "1 card" if len(cards) == 1 else f"{len(cards)} cards"
    headline = f"{count}: {format_bytes(total - free)} of {format_bytes(total)} in use."

    if allocators:
        held = format_bytes(sum(one.in_use_bytes for one in allocators))
        headline = f"Tensors hold {held}. {headline}"

    return DeviceReport(DeviceFile(headline=headline, cards=cards, notes=notes))


def build_sections(document: DeviceFile) -> Document:
    """Return the document as sections."""
    sections = []

    for card in document.cards:
        rows = [
            (format_bytes(row.size_bytes), row.what, row.source) for row in card.rows
        ]
        heading = f"Card {card.index}: {card.name}, {format_bytes(card.total_bytes)}"
        sections.append(Section(heading, (Table(_COLUMNS, tuple(rows)),)))

    if document.notes:
        sections.append(Section("", tuple(map(Paragraph, document.notes))))

    return Document(
        "",
        document.headline,
        sections=tuple(sections),
        next_command=document.next_command if sections else "",
    )


def _divide_card(
    nvml: Any,
    index: int,
    allocators: Sequence[AllocatorFigures],
) -> CardAccount:
    """Divide a card among this process, if it uses the card, the other processes and free memory."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)

    uses = _read_uses(nvml, handle)
    names = (str(nvml.nvmlDeviceGetUUID(handle)), "")
    own = [one for one in allocators if one.card_uuid in names]
    rows: list[CardPart] = []

    if own:
        rows += _list_own_parts(own, uses.pop(os.getpid(), 0))

    rows += [CardPart(f"process {pid}", size) for pid, size in uses.items()]
    rest = memory.total - memory.free - sum(row.size_bytes for row in rows)

    if rest > 0:
        rows.append(CardPart("the driver, and processes that it does not show", rest))

    rows.append(CardPart("free", memory.free))

    return CardAccount(
        index=index,
        name=str(nvml.nvmlDeviceGetName(handle)),
        total_bytes=memory.total,
        rows=tuple(rows),
    )


def _read_uses(nvml: Any, handle: Any) -> dict[int, int]:
    """Return the bytes of each process that the driver lists; one may draw and compute."""
    uses: dict[int, int] = {}
    for read in (
        nvml.nvmlDeviceGetComputeRunningProcesses,
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        with suppress(nvml.NVMLError):
            for one in read(handle):
                uses[one.pid] = max(one.usedGpuMemory or 0, uses.get(one.pid, 0))

    return uses


def _list_own_parts(
    allocators: Sequence[AllocatorFigures], process_bytes: int
) -> Iterator[CardPart]:
    """Yield this process' parts: tensors, the rest of the pool, and outside the pool."""
    known = sum(one.in_use_bytes for one in allocators)
    yield CardPart("in use by tensors", known, "TensorFlow")

    outside = "outside the pool: CUDA context, libraries, kernels"
    if any(one.grows for one in allocators):
        outside = f"in TensorFlow's pool, which grows, and {outside}"
    else:
        pool = sum(one.pool_bytes for one in allocators)
        yield CardPart("in TensorFlow's pool, not in use", pool - known, "difference")
        known = pool

    if process_bytes:  # in a container, the driver lists no processes
        yield CardPart(outside, max(process_bytes - known, 0), "difference")


def _describe_pool(allocator: AllocatorFigures) -> str:
    growth = "takes it at its first tensor"
    if allocator.grows:
        growth = "grows on demand up to it and is not returned"

    return (
        f"{allocator.device}: limit {format_bytes(allocator.limit_bytes)}; the pool {growth}. "
        f"Most ever in use: {format_bytes(allocator.peak_in_use_bytes)}."
    )
