"""The report's figures about a program: its steps, its trends and TensorFlow's own peak."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from analyzer.explain.running.data_held import find_filling_stage
from analyzer.explain.running.host_kinds import measure_host_kinds
from analyzer.explain.running.leaks import find_filling
from analyzer.explain.running.slope import measure_growth
from analyzer.model.contract.report.subject import (
    MOST_READINGS,
    ProgramFigures,
)
from analyzer.model.contract.watch_note import Reading
from analyzer.model.recording.records import Recording
from analyzer.model.recording.timeline import card_number


def find_own_peak(recording: Recording) -> int | None:
    """Return TensorFlow's own peak since the program's start, on the recorded device."""
    peaks = () if recording.watch is None else recording.watch.own_peaks
    index = card_number(recording.allocator) or 0
    return peaks[index] or None if index < len(peaks) else None


def program_figures(recording: Recording) -> ProgramFigures | None:
    """Return the report's figures on a program's steps; None if its own steps were not traced."""
    watch = recording.watch
    if watch is None:
        return None
    growth = measure_growth(recording, watch)
    device = growth.device
    if find_filling(watch, growth.device) or find_filling_stage(recording, watch, growth.device):
        device = structs.replace(device, trend="fills")
    elif growth.device.trend == "grows" and watch.step_objects > 1 and not watch.models:
        device = structs.replace(device, trend="cannot tell")
    return ProgramFigures(
        step=watch.step,
        where=watch.where,
        steps=watch.steps,
        warmup=watch.warmup,
        device=device,
        host=growth.host,
        host_kinds=measure_host_kinds(recording, watch),
        readings=_thin_out(watch.readings),
        ended=watch.ended,
        own_peak_bytes=find_own_peak(recording),
        whole_run=watch.whole_run,
        micro_batches=watch.micro_batches,
    )


def _thin_out(readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """Return at most ``MOST_READINGS`` readings, evenly spaced, with the last one."""
    stride = -(-len(readings) // (MOST_READINGS - 1)) or 1
    last = readings[-1:]
    chosen = [one for one in readings[::stride] if one.step != last[0].step]
    return (*chosen, *last)
