"""The parts of a card's memory, from readings made up here and from a saved run."""

import json

import msgspec
from schemas import breaches

from analyzer.model.contract.child_messages import (
    AllocatorFigures,
    NvmlCard,
    NvmlProcess,
    NvmlReading,
)
from analyzer.session.device_report import (
    CardAccount,
    DeviceReport,
    divide_machine,
    divide_process,
)

MIB = 1 << 20
TOTAL = 16000 * MIB
OWN = NvmlProcess(pid=7, used_bytes=1500 * MIB, is_own=True)


def make_reading(*processes: NvmlProcess) -> NvmlReading:
    card = NvmlCard(
        index=0,
        name="Some Card",
        uuid="GPU-1",
        total_bytes=TOTAL,
        used_bytes=1600 * MIB,
        free_bytes=TOTAL - 1700 * MIB,
        reserved_bytes=100 * MIB,
        is_partitioned=False,
        processes=processes,
    )
    return NvmlReading(cards=(card,))


ALLOCATOR = AllocatorFigures(
    device="GPU:0",
    card_uuid="GPU-1",
    card_name="Some Card",
    in_use_bytes=300 * MIB,
    peak_in_use_bytes=400 * MIB,
    limit_bytes=1000 * MIB,
    grows=False,
)


def divide(*processes: NvmlProcess) -> CardAccount:
    document = divide_process([ALLOCATOR], make_reading(*processes))
    plain = json.loads(msgspec.json.encode(document))
    assert breaches(plain, "device", "DeviceFile") == []
    (card,) = document.cards
    assert sum(row.size_bytes for row in card.rows) == TOTAL
    return card


def test_the_parts_of_a_process_add_up_to_the_card() -> None:
    sizes = {row.id: row.size_bytes // MIB for row in divide(OWN).rows}
    assert sizes == {
        "in-use": 300,
        "pool-unused": 700,
        "outside-pool": 500,
        "unattributed": 100,
        "reserved": 100,
        "free": 14300,
    }


def test_a_container_hides_the_process_from_the_driver() -> None:
    card = divide()
    sizes = {row.id: row.size_bytes // MIB for row in card.rows}
    assert sizes["unattributed"] == 600
    assert any("in a container" in note for note in card.notes)


def test_a_process_without_a_size_is_named() -> None:
    hidden = NvmlProcess(pid=9, used_bytes=None, name="\x1b[31mother")
    document = divide_machine(make_reading(hidden))
    row = document.cards[0].rows[0]
    assert (row.id, row.size_bytes) == ("other-process", 0)
    assert "does not report" in row.note
    assert "\x1b" not in str(DeviceReport(document))
