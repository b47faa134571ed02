"""``analyze gpus`` shows the machine's own cards beside the catalogue's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import analyze

from analyzer.commands import gpu_list
from analyzer.errors import InputError
from analyzer.gpus.nvml_reading import NvmlCard, NvmlReading


def card(name: str, index: int = 0) -> NvmlCard:
    return NvmlCard(
        index=index,
        name=name,
        uuid="GPU-0",
        total_bytes=16 << 30,
        used_bytes=1 << 30,
        free_bytes=15 << 30,
        reserved_bytes=None,
        compute_mode="default",
        is_partitioned=False,
        processes=(),
    )


def test_the_machines_cards_are_named_as_gpu_takes_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reading = NvmlReading(driver="1", cards=(card("Tesla T4"), card("Card \x1b[31mX", 1)))
    monkeypatch.setattr(gpu_list, "read_cards", lambda: reading)
    ended = analyze("gpus", "t4")
    assert "This machine's GPU 0: Tesla T4, 15.00 GiB free of 16.00 GiB (--gpu t4)" in ended.out
    assert "not in the catalogue" in ended.out
    assert "\x1b" not in ended.out
    file = tmp_path / "cards.json"
    assert analyze("gpus", "t4", "--json", str(file)).code == 0
    assert [one["gpu"] for one in json.loads(file.read_text())["own"]] == ["t4", ""]


def test_without_a_driver_there_is_the_catalogue_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> NvmlReading:
        raise InputError("no driver")

    monkeypatch.setattr(gpu_list, "read_cards", refused)
    ended = analyze("gpus", "t4")
    assert ended.code == 0
    assert "This machine" not in ended.out
