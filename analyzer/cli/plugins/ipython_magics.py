"""Notebook magic, registered by ``%load_ext analyzer``. It also explains cells that run out of memory.

``%%memory`` prints the TensorFlow memory that a cell allocates and keeps.
"""

import io
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from analyzer.capture.watch.script_launch import POOL_RECORDS
from analyzer.model.errors import AnalyzerError


def load_ipython_extension(shell: Any) -> None:
    """Register the magic, and select the CPU allocator that records memory events."""
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")

    # no log lines between the results
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

    def memory(line: str, cell: str) -> None:
        """Run the cell and print its memory."""
        try:
            _measure_cell(shell, cell)
        except AnalyzerError as error:
            print(error, file=sys.stderr)

    shell.register_magic_function(memory, "cell", "memory")

    # a pool that cannot serve a request writes its chunks there, for the explanation
    os.environ.setdefault(POOL_RECORDS, str(Path(_record_folder().name) / "pool"))
    shell.events.register("post_run_cell", _explain_cell)


def _measure_cell(shell: Any, cell: str) -> None:
    """Run a cell and print its peak, its growth and its largest tensors."""
    from analyzer.cli.plugins.measured_block import tensor_lines, tracing_block
    from analyzer.model.units import format_bytes

    with tracing_block() as measure:
        ran = shell.run_cell(cell)

    if not ran.success:
        return  # IPython has printed the error

    print(
        f"Peak {format_bytes(measure.peak_bytes)}, {format_bytes(measure.growth_bytes)} still held."
    )

    print(*tensor_lines(measure.at_peak, "alive at the peak"), measure.method, sep="\n")


_MOST_HOLDERS = 5


@cache
def _record_folder() -> TemporaryDirectory[str]:
    """Return the folder of the records, which is removed at the end of the process."""
    return TemporaryDirectory(prefix="analyze-")


def _explain_cell(result: Any) -> None:
    """Print an explanation if a cell ended with TensorFlow's out-of-memory error."""
    errors = sys.modules.get("tensorflow.python.framework.errors_impl")
    if errors is not None and isinstance(result.error_in_exec, errors.OpError):
        from analyzer.capture.watch.step_readings import has_new_record

        is_out = isinstance(result.error_in_exec, errors.ResourceExhaustedError)

        try:
            # an eager constant or a copy has other errors
            if is_out or has_new_record():
                _print_explanation(str(result.error_in_exec))
        except Exception as error:
            print(f"No explanation: {type(error).__name__}: {error}", file=sys.stderr)

    for file in Path(_record_folder().name).iterdir():
        file.unlink(missing_ok=True)


def _print_explanation(message: str) -> None:
    from analyzer.capture.run.source_frames import find_cell, list_cells
    from analyzer.capture.watch.step_readings import find_pool_holders, read_full_pool
    from analyzer.cli.outputs import print_answer
    from analyzer.oom import read_oom_log
    from analyzer.oom.log_sections import build_sections
    from analyzer.report.render.sections import Section, Table, TableColumn

    pool = read_full_pool()

    for file in list_cells():
        message = message.replace(file, find_cell(file))

    text = "\n".join((*_write_log(pool), message))
    page = build_sections(read_oom_log(io.BytesIO(text.encode()), "").report)
    columns = (
        TableColumn("size", "bytes"),
        TableColumn("holder", least=30),
        TableColumn("line"),
    )

    rows = (
        sorted((row for row in find_pool_holders(pool) if row[0]), reverse=True)
        if pool
        else []
    )

    held = Section("Who holds it", (Table(columns, tuple(rows[:_MOST_HOLDERS])),))
    sections = (*(replace(section, note="") for section in page.sections[:2]), held)
    page = replace(
        page,
        subtitle="",
        lead=page.lead[:1],
        sections=sections,
        next_command="",
    )
    print_answer(page, quiet=False)


def _write_log(pool: Any) -> Iterator[str]:
    """Yield TensorFlow's log lines about its cards and a full pool."""
    from analyzer.capture.run.allocator_figures import read_allocators

    for one in read_allocators():
        index = one.device.rpartition(":")[2]
        mib = one.limit_bytes >> 20
        yield (
            f"Created device /device:{one.device} with {mib} MB memory:  -> device: {index}, name: "
            f"{one.card_name}, pci bus id"
        )

    if pool is not None:
        for chunk in pool.chunk:
            state = "InUse" if chunk.in_use else "Free"
            yield f"{state} at {chunk.address:x} of size {chunk.size}"

        yield f"InUse: {pool.stats.bytes_in_use}"
