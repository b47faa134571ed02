"""``%load_ext analyzer``: a cell's TensorFlow memory, a target's report, the cards, in a notebook.

%%memory                      what the cell took of TensorFlow's allocator, and what stays
%memory keras:MobileNetV2     `analyze trace` of a target, or of a model that a variable of the
                              notebook names; `-e` for `analyze estimate`
%device                       TensorFlow's and the driver's figures of this process
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any, Final

from analyzer.model.errors import AnalyzerError

_BFC: Final = "TF_CPU_ALLOCATOR_USE_BFC"
_USAGE: Final = "%%memory above a cell, or %memory [-e] TARGET."


def load_ipython_extension(shell: Any) -> None:
    """Register the magics, and let TensorFlow start on the allocator that writes memory events.

    Args:
        shell: IPython's shell.
    """
    os.environ.setdefault(_BFC, "1")

    def memory(line: str, cell: str | None = None) -> Any:
        """Run the cell and say what it took; without a cell, trace or estimate the target."""
        return _told(lambda: _target(shell, line) if cell is None else _cell(shell, cell))

    def device(line: str) -> Any:
        """Print TensorFlow's and the driver's figures of this process."""
        return _told(_print_device)

    shell.register_magic_function(memory, "line_cell", "memory")
    shell.register_magic_function(device, "line", "device")


def _print_device() -> None:
    from analyzer.session.devices.device_reading import device

    print(device())


def _told(do: Any) -> Any:
    try:
        return do()
    except AnalyzerError as error:
        print(error, file=sys.stderr)
        return None


def _target(shell: Any, line: str) -> Any:
    import analyzer

    words = shlex.split(line)
    is_estimate = "-e" in words
    targets = [word for word in words if word != "-e"]
    if len(targets) != 1:
        print(_USAGE, file=sys.stderr)
        return None
    target = targets[0]
    if target.isidentifier() and not Path(target).exists():
        target = shell.user_ns.get(target, target)  # a model, a step, or a target's name
    return analyzer.estimate(target) if is_estimate else analyzer.trace(target)


def _cell(shell: Any, cell: str) -> None:
    from analyzer.cli.plugins.measured_block import how_measured, tensor_lines, tracing_block
    from analyzer.model.units import format_bytes

    with tracing_block() as block:
        ran = shell.run_cell(cell)
    if not ran.success:
        return  # IPython has shown the error
    found = block.measured()
    print(
        f"{format_bytes(found.peak_bytes)} at one time, {format_bytes(found.growth_bytes)} still held."
    )
    for line in (*tensor_lines(found.at_peak, "alive at the peak"), how_measured(found)):
        print(line)
