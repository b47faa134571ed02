"""Measure a block of code with TensorFlow's allocator: its peak, and the memory that it keeps."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pandas as pd

from analyzer.model.recording.timeline import alive_at, main_allocator_rows, timeline
from analyzer.model.units import format_bytes
from analyzer.report.untrusted import printable
from analyzer.tracing.measure.measured_recording import open_measured

_ROWS: Final = 10


@dataclass(kw_only=True)
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

    def read(self, folder: Path) -> None:
        """Fill the figures from the block's trace."""
        recording = open_measured(folder).recording
        events, rows = recording.events, main_allocator_rows(recording)
        own = events[
            (events["allocator"] == recording.allocator) & (events["kind"] != 0)
        ]
        first = own.iloc[0]
        line = timeline(rows, len(events))
        requested, allocated = (
            each - each[0] for each in (line.requested, line.allocated)
        )
        top = int(requested.argmax())
        born_here = rows[rows["born"] >= 0]
        self.allocator = recording.allocator
        self.start_bytes = int(
            first["in_use_bytes"] - first["kind"] * first["allocated_bytes"]
        )
        self.peak_bytes, self.peak_chunk_bytes = (
            int(requested[top]),
            int(allocated.max()),
        )
        self.growth_bytes = int(requested[-1])
        self.at_peak = alive_at(born_here, top - 1)
        self.left = alive_at(born_here, len(events) - 1)

    def describe_method(self) -> str:
        """Return one sentence about the source of the figures."""
        return (
            f"Measured: bytes requested from TensorFlow's allocator {printable(self.allocator, 60)} "
            f"beyond the {format_bytes(self.start_bytes)} already in use; at most "
            f"{format_bytes(self.peak_chunk_bytes)} in chunks. From a profiler trace, not from the "
            "process's resident memory."
        )


@contextlib.contextmanager
def tracing_block() -> Iterator[BlockMeasure]:
    """Trace the block, and fill the measure if it ends well; always remove the trace."""
    from analyzer.capture.run.profiled_run import trace_block

    measure = BlockMeasure()

    with tempfile.TemporaryDirectory(prefix="analyze-") as folder:
        with trace_block(Path(folder)):
            yield measure

        measure.read(Path(folder))


def describe_excess(
    measure: BlockMeasure, memory: int | None, growth: int | None
) -> str:
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

    return "\n".join([*parts, measure.describe_method()] if parts else [])


def tensor_lines(rows: pd.DataFrame, state: str) -> Iterator[str]:
    """Yield a heading with the tensors' state, and one line for each of the largest."""
    if rows.empty:
        return

    count = f"{len(rows):,} tensors" if len(rows) > 1 else "1 tensor"
    yield f"  {count} {state}{'' if len(rows) <= _ROWS else f', the largest {_ROWS}'}:"
    texts = rows.assign(
        **rows[["dtype", "shape", "tensor", "op"]].astype(object).fillna("")
    )
    largest = texts.sort_values("requested_bytes", ascending=False, kind="stable").head(
        _ROWS
    )

    for row in largest.itertuples():
        shape = printable(f"{row.dtype}{row.shape}", 40)
        name = printable(row.tensor or row.op or "(no op)", 60)
        yield f"  {format_bytes(int(row.requested_bytes)):>10}  {shape}  {name}"


def _exact(size: int) -> str:
    shown = format_bytes(size)
    return shown if shown.endswith(" B") else f"{shown} ({size:,} bytes)"
