"""The name of the card in a trace, from the properties of its plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from analyzer.cards.catalogue import all_gpus
from analyzer.model.units import format_bytes

_TOLERANCE: Final = 0.06
"""Largest relative difference of memory and of bandwidth from the catalogue's figures."""
_AMD: Final = {(9, 4, 304, 192): "AMD Instinct MI300X", (9, 5, 256, 288): "AMD Instinct MI355X"}
"""Version of the instruction set, compute units and GiB -> name (AMD's data sheets)."""


def name_card(facts: Mapping[str, int | float | str]) -> str:
    """Return a card's name, or its properties if no known card has them; empty without properties."""
    units, memory = int(facts.get("core_count", 0)), int(facts.get("memory_size", 0))
    version = int(facts.get("compute_cap_major", 0)), int(facts.get("compute_cap_minor", 0))
    if not units or not memory:
        return ""
    described = f"GPU with {units} multiprocessors, {format_bytes(memory)}"
    if facts.get("device_vendor") == "AMD":
        return _AMD.get((*version, units, round(memory / 2**30)), f"AMD {described}")
    bandwidth = float(facts.get("memory_bandwidth", 0))
    found = {}
    for gpu in all_gpus():
        if gpu.compute_capability != version or gpu.sm_count != units:
            continue
        away = [abs(memory / gpu.memory_bytes - 1)]
        if bandwidth:
            away.append(abs(bandwidth / gpu.bandwidth_bytes_s - 1))
        if max(away) <= _TOLERANCE:
            clock = float(facts.get("clock_rate", 0)) / 1000
            found[gpu.name] = sum(away) + abs(clock / gpu.clock_mhz - 1)
    return min(found, key=lambda name: found[name], default=described)
