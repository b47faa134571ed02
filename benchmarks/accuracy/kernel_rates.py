"""How fast this machine's kernels are: the rates of ``measured_rates.csv``, measured anew.

    python benchmarks/accuracy/kernel_rates.py traces/models.py:cnn > rates.csv

Each target is traced for a few steps on one inter-op thread, so that no two kernels run side by side.
A run of an op whose size decides its duration gives a rate, any other a fixed cost; a row is the median
over all runs of its kind, with how many there were. What threads cost (``wake_s`` and what follows it)
is not measured here: it needs traces of several threads, and the script that it was read off with was
not kept.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from analyzer.simulate.kernels.kernel_device import CPU
from analyzer.simulate.kernels.shared.memory_plan import VariableAccess
from analyzer.simulate.predict.executor import op_cost
from analyzer.simulate.predict.graph.edges import Wiring
from analyzer.simulate.predict.played_step import Prepared, prepare
from analyzer.simulate.predict.predicted_recording import owners_by_number
from analyzer.tracing.measure.measured_recording import Measured, open_measured

STEPS = 6
CLEAR = 4.0
"""A rate is read off where size costs at least so many times the fixed cost."""

READING = {
    op_cost.ELEMENT_WISE: "element_wise_bytes_per_s",
    op_cost.SLOW_ELEMENT_WISE: "slow_element_wise_bytes_per_s",
    op_cost.OTHER: "other_bytes_per_s",
}
COMPUTING = {
    op_cost.OPERATIONS: "product_flops_per_s",
    op_cost.INPUT_OPERATIONS: "input_gradient_flops_per_s",
    op_cost.FILTER_OPERATIONS: "filter_gradient_flops_per_s",
    op_cost.SLOW_OPERATIONS: "slow_flops_per_s",
    op_cost.BATCH_OPERATIONS: "batch_flops_per_s",
}

Found = dict[str, list[float]]


def traced(target: str, folder: Path) -> Measured:
    """Trace a target on one inter-op thread and read the trace."""
    out = folder / f"run{len(list(folder.iterdir()))}"
    command = [sys.executable, "-c", "from analyzer.cli import main; main()", "trace", target]
    options = ["--steps", str(STEPS), "--inter-op-threads", "1", "--no-jit", "--quiet"]
    subprocess.run([*command, *options, "--out", str(out)], check=True)
    return open_measured(out)


def seconds_by_step(measured: Measured) -> list[dict[str, float]]:
    """Return how long each op ran, by step; ops that ran more than once in it are left out."""
    runs = measured.op_runs
    found = []
    for step in measured.recording.steps:
        inside = runs[(runs["start_ps"] >= step.start_ps) & (runs["end_ps"] <= step.end_ps)]
        once = inside.drop_duplicates("op", keep=False)
        lasted = (once["end_ps"] - once["start_ps"]) / 1e12
        found.append(dict(zip(once["op"], lasted, strict=True)))
    return found


def rates_of(prepared: Prepared, steps: list[dict[str, float]], found: Found) -> None:
    """Add what the runs of one trace say; the first step sets kernels up."""
    wiring, plans = prepared.wiring, prepared.kernels.plans
    for node, op in enumerate(wiring.ops):
        later = [step[op.name] for step in steps[1:] if op.name in step]
        if not later:
            continue
        plan = plans[node]
        middle = statistics.median(later)
        found["run"] += [math.log(max(each, 1e-9) / max(middle, 1e-9)) for each in later]
        if op.type.startswith("_Mkl") and op.name in steps[0]:
            large = "Conv" in op.type or "Pool" in op.type
            found["creation_s" if large else "small_creation_s"].append(steps[0][op.name] - middle)
        if not wiring.expensive[node]:
            found["cheap_s"].append(middle)
        elif plan.variable is VariableAccess.READ:
            found["handle_s"].append(middle)
        else:
            for name, value in _of_kernel(wiring, node, middle):
                found[name].append(value)


def _of_kernel(wiring: Wiring, node: int, lasted: float) -> Iterator[tuple[str, float]]:
    """Yield the row that a kernel's run belongs to, with what it says of it."""
    kind = wiring.ops[node].type
    is_primitive = kind.startswith("_Mkl")
    fixed = op_cost.CALL_SECONDS + (op_cost.PRIMITIVE_SECONDS if is_primitive else 0.0)
    moved, computed = op_cost.touched_bytes(wiring, node), op_cost.operations_of(wiring, node)
    reading = moved / op_cost.reading_rate(kind)
    computing = computed / op_cost.operations_rate(kind)
    if max(reading, computing) < fixed / CLEAR:
        if is_primitive:
            yield "primitive_s", lasted - op_cost.CALL_SECONDS
        else:
            yield "call_s", lasted
    elif max(reading, computing) > CLEAR * fixed and lasted > fixed:
        if "Random" in kind:
            yield "random_bytes_per_s", moved / (lasted - fixed)
        elif computing > reading:
            yield COMPUTING[op_cost.operations_rate(kind)], computed / (lasted - fixed)
        else:
            yield READING[op_cost.reading_rate(kind)], moved / (lasted - fixed)


def unit_of(name: str) -> str:
    """Return the unit that a row's name ends in."""
    if name.endswith("_flops_per_s"):
        return "FLOP/s"
    return "B/s" if name.endswith("_bytes_per_s") else "s"


def main() -> None:
    """Trace the targets and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="+")
    found: Found = defaultdict(list)
    threads = 0
    with tempfile.TemporaryDirectory() as made:
        for target in parser.parse_args().targets:
            measured = traced(target, Path(made))
            note = measured.note
            assert note is not None
            threads = max(note.threads.intra_op, 1)
            prepared = prepare(
                note.ops, list(owners_by_number(note, CPU).values()), threads=threads
            )
            rates_of(prepared, seconds_by_step(measured), found)
    where = (f"{platform.machine()}, {os.cpu_count()} cores", threads)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["name", "value", "unit", "observed", "machine", "intra_op_threads"])
    for name, values in sorted(found.items()):
        if name != "run":
            value = f"{statistics.median(values):.3g}"
            writer.writerow([name, value, unit_of(name), f"median of {len(values)}", *where])
    if len(found["run"]) > 1:
        lower, _, upper = statistics.quantiles(found["run"], n=4)
        # Of a normal distribution, the quartiles lie 1.349 standard deviations apart.
        spread = f"{(upper - lower) / 1.349:.3g}"
        writer.writerow(["run_spread", spread, "log", f"{len(found['run'])} runs", *where])


if __name__ == "__main__":
    main()
