"""Measure a block of code with TensorFlow's allocator: its peak, and the memory that it keeps."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from analyzer.model.recording.records import alive_at, main_allocator_rows, timeline
from analyzer.model.units import format_bytes
from analyzer.report.untrusted import printable
from analyzer.tracing.measure.measured_recording import open_measured

_ROWS = 10


@dataclass(kw_only=True)
class BlockMeasure:
    """Requested bytes of a block, beyond those in use at its start.

    ``growth_bytes`` are alive after the block and a garbage collection. ``at_peak`` and ``left`` are the
    block's tensors alive at the peak and after it.
    """

    peak_bytes: int = 0
    growth_bytes: int = 0
    at_peak: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    left: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    method: str = ""  # a sentence about the source of the figures

    def read(self, folder: Path) -> None:
        """Fill the figures from the block's trace."""
        recording = open_measured(folder)
        events = recording.events

        rows = main_allocator_rows(recording)
        requested = timeline(rows, len(events)).requested
        requested = requested - requested[0]
        top = int(requested.argmax())
        born_here = rows[rows["born"] >= 0]

        self.peak_bytes = int(requested[top])
        self.growth_bytes = int(requested[-1])
        self.at_peak = alive_at(born_here, top - 1)
        self.left = alive_at(born_here, len(events) - 1)
        self.method = (
            "Measured: bytes requested from TensorFlow's allocator "
            f"{printable(recording.allocator, 60)} beyond those in use at the start. From a "
            "profiler trace, not from the process's resident memory."
        )


@contextmanager
def tracing_block() -> Iterator[BlockMeasure]:
    """Trace the block, and fill the measure if it ends well; always remove the trace."""
    from analyzer.capture.run.profiled_run import trace_block

    measure = BlockMeasure()

    with TemporaryDirectory(prefix="analyze-") as folder:
        with trace_block(Path(folder)):
            yield measure

        measure.read(Path(folder))


def describe_excess(
    measure: BlockMeasure,
    memory: int | None,
    growth: int | None,
) -> str:
    """Return the limits in bytes that are exceeded, with the largest tensors; empty if none is."""
    at_peak = tensor_lines(measure.at_peak, "alive at the peak")
    left = tensor_lines(measure.left, "still held")
    parts = [
        *_state_excess("limit_memory: peak {}", measure.peak_bytes, memory, at_peak),
        *_state_excess(
            "limit_growth: {} still held after the test",
            measure.growth_bytes,
            growth,
            left,
        ),
    ]

    return "\n".join([*parts, measure.method] if parts else [])


def _state_excess(
    words: str,
    size: int,
    limit: int | None,
    tensors: Iterator[str],
) -> Iterator[str]:
    """Yield a line about a size above its limit, and the lines about its tensors."""
    if limit is not None and size > limit:
        too_much = format_bytes(size - limit)
        yield f"{words.format(_exact(size))}, limit {_exact(limit)}, {too_much} too much."
        yield from tensors


def tensor_lines(rows: pd.DataFrame, state: str) -> Iterator[str]:
    """Yield a heading with the tensors' state, and one line for each of the largest."""
    if rows.empty:
        return

    count = "1 tensor"
    if len(rows) > 1:
        count = f"{len(rows):,} tensors"

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
    if shown.endswith(" B"):
        return shown

    return f"{shown} ({size:,} bytes)"
