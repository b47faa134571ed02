"""Measure a block of code with TensorFlow's allocator: its peak, and the memory that it keeps."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pandas as pd

from analyzer.model.recording.records import Recording
from analyzer.model.recording.timeline import alive_at, main_allocator_rows, timeline
from analyzer.model.units import format_bytes
from analyzer.report.untrusted import printable
from analyzer.tracing.measure.measured_recording import open_measured

_ROWS: Final = 10


@dataclass(frozen=True, kw_only=True)
class BlockMeasure:
    """Requested bytes of a block, beyond the chunk bytes in use at its start.

    ``peak_chunk_bytes`` is the peak of the chunk bytes, as in ``get_memory_info``; it depends on the
    pool's history. ``growth_bytes`` are alive after the block and a garbage collection. ``at_peak`` and
    ``left`` are the block's tensors alive at the peak and after it.
    """

    allocator: str = ""
    start_bytes: int = 0
    peak_bytes: int = 0
    peak_chunk_bytes: int = 0
    growth_bytes: int = 0
    at_peak: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    left: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)


@dataclass
class TracedBlock:
    """A traced block; ``measure`` is filled when the block ends well."""

    measure: BlockMeasure = field(default_factory=BlockMeasure)


@contextlib.contextmanager
def tracing_block() -> Iterator[TracedBlock]:
    """Trace the block, and measure it if it ends well; always remove the trace."""
    from analyzer.capture.run.profiled_run import trace_block

    block = TracedBlock()
    with tempfile.TemporaryDirectory(prefix="analyze-") as folder:
        with trace_block(Path(folder)):
            yield block
        block.measure = measure_block(open_measured(Path(folder)).recording)


def measure_block(recording: Recording) -> BlockMeasure:
    """Return the bytes of a recording's main allocator beyond those in use at its start."""
    events = recording.events
    own = events[(events["allocator"] == recording.allocator) & (events["kind"] != 0)]
    first = own.iloc[0]
    rows = main_allocator_rows(recording)
    line = timeline(rows, len(events))
    requested, allocated = (each - each[0] for each in (line.requested, line.allocated))
    top = int(requested.argmax())
    born_here = rows[rows["born"] >= 0]
    return BlockMeasure(
        allocator=recording.allocator,
        start_bytes=int(first["in_use_bytes"] - first["kind"] * first["allocated_bytes"]),
        peak_bytes=int(requested[top]),
        peak_chunk_bytes=int(allocated.max()),
        growth_bytes=int(requested[-1]),
        at_peak=alive_at(born_here, top - 1),
        left=alive_at(born_here, len(events) - 1),
    )


def describe_excess(measure: BlockMeasure, memory: int | None, growth: int | None) -> str:
    """Return the limits in bytes that are exceeded, with the largest tensors; empty if none is."""
    parts = []
    peak, left = measure.peak_bytes, measure.growth_bytes
    for limit, words, size, rows, state in (
        (memory, f"limit_memory: peak {_exact(peak)}", peak, measure.at_peak, "alive at the peak"),
        (growth, f"limit_growth: {_exact(left)} still held after the test", left, measure.left,
         "still held"),
    ):  # fmt: skip
        if limit is not None and size > limit:
            head = f"{words}, limit {_exact(limit)}, {format_bytes(size - limit)} too much."
            parts += [head, *tensor_lines(rows, state)]
    if parts:
        parts.append(describe_method(measure))
    return "\n".join(parts)


def describe_method(measure: BlockMeasure) -> str:
    """Return one sentence about the source of the figures."""
    return (
        f"Measured: bytes requested from TensorFlow's allocator {printable(measure.allocator, 60)} "
        f"beyond the {format_bytes(measure.start_bytes)} already in use; at most "
        f"{format_bytes(measure.peak_chunk_bytes)} in chunks. From a profiler trace, not from the "
        "process's resident memory."
    )


def tensor_lines(rows: pd.DataFrame, state: str) -> Iterator[str]:
    """Yield a heading with the tensors' state, and one line for each of the largest."""
    if rows.empty:
        return
    largest = rows.sort_values("requested_bytes", ascending=False, kind="stable")
    count = f"{len(rows):,} tensors" if len(rows) > 1 else "1 tensor"
    yield f"  {count} {state}{'' if len(rows) <= _ROWS else f', the largest {_ROWS}'}:"
    for row in largest.head(_ROWS).itertuples():
        shape = printable(f"{_text(row.dtype)}{_text(row.shape)}", 40)
        name = printable(_text(row.tensor) or _text(row.op) or "(no op)", 60)
        yield f"  {format_bytes(int(row.requested_bytes)):>10}  {shape}  {name}"


def _text(value: object) -> str:
    return "" if value is None or value is pd.NA or value != value else str(value)


def _exact(size: int) -> str:
    shown = format_bytes(size)
    return shown if shown.endswith(" B") else f"{shown} ({size:,} bytes)"
