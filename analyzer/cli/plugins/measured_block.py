"""A block of code measured by TensorFlow's allocator: the most at one time, and what stays."""

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
    """What a block took beyond what was held when it began, in bytes that tensors asked for.

    Attributes:
        allocator: TensorFlow's name of it; empty where nothing was asked for.
        start_bytes: In use when the block began, in chunks.
        peak_bytes: The most at one time in the block.
        peak_chunk_bytes: The most at one time in chunks, as ``get_memory_info`` counts; another history
            of the pool makes another figure of it.
        growth_bytes: What is held after the block and a garbage collection.
        at_peak, left: The block's own tensors alive at the peak, and after it.
    """

    allocator: str = ""
    start_bytes: int = 0
    peak_bytes: int = 0
    peak_chunk_bytes: int = 0
    growth_bytes: int = 0
    at_peak: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    left: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)


class TracedBlock:
    """A block that is being traced; ``measured`` once it has ended."""

    def __init__(self) -> None:
        self._found: BlockMeasure | None = None

    def read(self, logdir: Path) -> None:
        """Read the trace of the block."""
        self._found = _measured(logdir)

    def measured(self) -> BlockMeasure:
        """Return what was read; nothing where the block failed."""
        return self._found or BlockMeasure()


@contextlib.contextmanager
def tracing_block() -> Iterator[TracedBlock]:
    """Trace the block; its trace is read if it ends well, and removed however it ends.

    Raises:
        InputError: this process' TensorFlow writes no memory events, or a profile is being taken.
        TraceError: the trace cannot be read.
    """
    from analyzer.capture.run.traced_block import trace_block

    block = TracedBlock()
    with tempfile.TemporaryDirectory(prefix="analyze-") as folder:
        with trace_block(Path(folder)):
            yield block
        block.read(Path(folder))


def _measured(logdir: Path) -> BlockMeasure:
    return block_measure(open_measured(logdir).recording)


def block_measure(recording: Recording) -> BlockMeasure:
    """Return what a recording's main allocator handed out beyond what was in use at its start."""
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


def over_limits(found: BlockMeasure, memory: int | None, growth: int | None) -> str:
    """Return what is over a limit, how it was measured and the tensors; empty where nothing is.

    Args:
        found: The measure.
        memory: The most bytes at one time; None for no limit.
        growth: The most bytes that may stay; None for no limit.
    """
    parts = []
    if memory is not None and found.peak_bytes > memory:
        head = (
            f"limit_memory: {_exact(found.peak_bytes)} at one time, {_exact(memory)} allowed, "
            f"{format_bytes(found.peak_bytes - memory)} too much."
        )
        parts += [head, *tensor_lines(found.at_peak, "alive at the peak")]
    if growth is not None and found.growth_bytes > growth:
        head = (
            f"limit_growth: {_exact(found.growth_bytes)} still held after the test, "
            f"{_exact(growth)} allowed, {format_bytes(found.growth_bytes - growth)} too much."
        )
        parts += [head, *tensor_lines(found.left, "still held")]
    if parts:
        parts.append(how_measured(found))
    return "\n".join(parts)


def how_measured(found: BlockMeasure) -> str:
    """Return one sentence on where the figures are from."""
    return (
        f"Measured: what tensors asked of TensorFlow's allocator "
        f"{printable(found.allocator, 60)}, beyond the {format_bytes(found.start_bytes)} in use before; "
        f"at most {format_bytes(found.peak_chunk_bytes)} in chunks. From the profiler's trace, not the "
        "process' resident memory."
    )


def tensor_lines(rows: pd.DataFrame, when: str) -> Iterator[str]:
    """Yield the largest tensors, one a line.

    Args:
        rows: Rows of the allocations table.
        when: What they have in common, for the head.
    """
    if rows.empty:
        return
    largest = rows.sort_values("requested_bytes", ascending=False, kind="stable")
    count = f"{len(rows):,} tensors" if len(rows) > 1 else "1 tensor"
    yield f"  {count} {when}{'' if len(rows) <= _ROWS else f', the largest {_ROWS}'}:"
    for row in largest.head(_ROWS).itertuples():
        shape = printable(f"{_text(row.dtype)}{_text(row.shape)}", 40)
        what = printable(_text(row.tensor) or _text(row.op) or "(no op)", 60)
        yield f"  {format_bytes(int(row.requested_bytes)):>10}  {shape}  {what}"


def _text(value: object) -> str:
    return "" if value is None or value is pd.NA or value != value else str(value)


def _exact(size: int) -> str:
    shown = format_bytes(size)
    return shown if shown.endswith(" B") else f"{shown} ({size:,} bytes)"
