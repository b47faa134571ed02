"""The parts of a card's memory, as a driver made up here states them."""

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from schemas import breaches

from analyzer.model.contract.child_messages import AllocatorFigures
from analyzer.session.device_report import DeviceReport, read_machine

MIB = 1 << 20
TOTAL = 16000 * MIB
ALLOCATOR = AllocatorFigures(
    device="GPU:0",
    card_uuid="GPU-1",
    card_name="Some Card",
    in_use_bytes=300 * MIB,
    peak_in_use_bytes=400 * MIB,
    limit_bytes=1000 * MIB,
    grows=False,
)


class DriverError(Exception):
    """Stands for ``pynvml.NVMLError``."""


def read(
    monkeypatch: pytest.MonkeyPatch, uses: dict[int, int | None], *allocators: Any
) -> tuple[DeviceReport, dict[str, int]]:
    """Return the report on a card with these processes, and the MiB of its parts."""
    processes = [
        SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in uses.items()
    ]
    memory = SimpleNamespace(total=TOTAL, free=TOTAL - 1700 * MIB)
    driver = SimpleNamespace(
        NVMLError=DriverError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: memory,
        nvmlDeviceGetUUID=lambda handle: "GPU-1",
        nvmlDeviceGetName=lambda handle: "\x1b[31mSome Card",
        nvmlDeviceGetComputeRunningProcesses=lambda handle: processes,
        nvmlDeviceGetGraphicsRunningProcesses=lambda handle: processes[:1],
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    report = read_machine(allocators)
    assert (
        breaches(json.loads(json.dumps(report.document)), "device", "DeviceFile") == []
    )
    (card,) = report.report.cards
    assert sum(row.size_bytes for row in card.rows) == TOTAL
    assert "\x1b" not in str(report)
    return report, {row.what: row.size_bytes // MIB for row in card.rows}


def test_the_parts_of_a_process_add_up_to_the_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, sizes = read(monkeypatch, {os.getpid(): 1500 * MIB}, ALLOCATOR)
    assert list(sizes.values()) == [300, 700, 500, 200, 14300]


def test_a_container_hides_the_process_from_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report, sizes = read(monkeypatch, {}, ALLOCATOR)
    assert list(sizes.values()) == [300, 700, 700, 14300]
    assert report.report.headline.startswith("Tensors hold 300.0 MiB.")


def test_a_process_without_a_size_is_in_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report, sizes = read(monkeypatch, {9: None, 8: 600 * MIB})
    assert (sizes["process 9"], sizes["process 8"]) == (0, 600)
    assert report.report.headline == "1 card: 1.66 GiB of 15.62 GiB in use."
