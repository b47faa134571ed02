"""A run folder's card: its rows add up to the card, and a run without a card is one line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from analyzer.cards import find_gpu
from analyzer.model.contract.report.report_file import ReportFile
from analyzer.model.errors import InputError
from analyzer.session.device_account import account_for_run

GIB = 1 << 30


def report(kind: str = "phantom", name: str = "Tesla T4", pool: int | None = None) -> ReportFile:
    device: Any = SimpleNamespace(kind="gpu", name=name, memory_limit_bytes=13 * GIB)
    peak = SimpleNamespace(requested_bytes=GIB, allocated_bytes=2 * GIB, pool_bytes=pool)
    ever = SimpleNamespace(since_start_bytes=5 * GIB)
    return cast(ReportFile, SimpleNamespace(kind=kind, device=device, peak=peak, peak_ever=ever))


@pytest.mark.parametrize("pool", [None, 3 * GIB])
def test_the_rows_add_up_to_the_card(pool: int | None) -> None:
    found = account_for_run(report(pool=pool), "out")
    (card,) = found.cards
    rows = {row.id: row for row in card.rows}
    assert card.total_bytes == find_gpu("t4").memory_bytes
    *parts, free = card.rows
    assert sum(row.low_bytes for row in parts) + free.high_bytes == card.total_bytes
    most = sum(row.high_bytes for row in parts)
    assert most + free.low_bytes == max(card.total_bytes, most)
    assert rows["in-use"].low_bytes == 2 * GIB
    idle = rows["pool-idle"]
    assert (idle.low_bytes, idle.high_bytes) == ((0, 11 * GIB) if pool is None else (GIB, GIB))
    assert found.is_phantom
    assert any("up to 5.00 GiB" in note for note in found.notes)


def test_what_was_predicted_is_called_so() -> None:
    (card,) = account_for_run(report("estimate"), "out").cards
    assert card.rows[0].source == "predicted"


def test_a_run_without_a_card_is_told_in_one_line() -> None:
    cpu = cast(ReportFile, SimpleNamespace(device=SimpleNamespace(kind="cpu", name="x86_64")))
    with pytest.raises(InputError, match="ran on x86_64"):
        account_for_run(cpu, "out")


def test_the_limit_of_a_card_outside_the_catalogue() -> None:
    found = account_for_run(report(name="Voodoo 2"), "out")
    assert "13.00 GiB of TensorFlow's pool on Voodoo 2" in found.headline
    assert not found.cards
    assert any("not in the catalogue" in note for note in found.notes)
