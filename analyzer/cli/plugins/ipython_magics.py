"""Notebook magics, registered by ``%load_ext analyzer``.

%%memory                      TensorFlow memory that the cell allocates and keeps
%memory keras:MobileNetV2     `analyze trace` of a target or of a model in a notebook variable;
                              with `-e`, `analyze estimate`
%device                       memory of this process: TensorFlow's and the driver's figures
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from analyzer.model.errors import AnalyzerError


def load_ipython_extension(shell: Any) -> None:
    """Register the magics, and select the CPU allocator that records memory events."""
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no log lines between the results

    def memory(line: str, cell: str | None = None) -> Any:
        """Run the cell and print its memory; without a cell, trace or estimate the target."""
        if cell is None:
            return _print_errors(_analyze_target, shell, line)
        return _print_errors(_measure_cell, shell, cell)

    def device(line: str) -> Any:
        """Print the memory of this process as TensorFlow and the driver count it."""
        from analyzer.session.device_reading import device as read

        return _print_errors(lambda: print(read()))

    shell.register_magic_function(memory, "line_cell", "memory")
    shell.register_magic_function(device, "line", "device")


def _print_errors(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call; print an error of ours in one line."""
    try:
        return call(*arguments)
    except AnalyzerError as error:
        print(error, file=sys.stderr)
        return None


def _analyze_target(shell: Any, line: str) -> Any:
    """Return the result of a target or a notebook variable."""
    import analyzer

    words = shlex.split(line)
    is_estimate = "-e" in words
    targets = [word for word in words if word != "-e"]
    if len(targets) != 1:
        print("%%memory above a cell, or %memory [-e] TARGET.", file=sys.stderr)
        return None
    target = targets[0]
    if target.isidentifier() and not Path(target).exists():
        target = shell.user_ns.get(target, target)  # a model, a step, or the name of a target
    return analyzer.estimate(target) if is_estimate else analyzer.trace(target)


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
    for line in (*tensor_lines(measure.at_peak, "alive at the peak"), measure.describe_method()):
        print(line)
