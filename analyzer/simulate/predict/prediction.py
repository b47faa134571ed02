"""The prediction of a step: a few schedules, of which the median is shown and all give the range.

A schedule is one possible execution of a process, from its start to the end of its last step. Of
branches, loops and sizes that data decide, the outcome that needs most memory is shown, because it has
to fit; the range starts at the outcome that needs least. Each alternative is one schedule.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np
import pandas as pd

from analyzer.model.contract.fields import Category
from analyzer.model.contract.run_note import CONSTANTS, DataSize, TensorSpec
from analyzer.model.errors import InputError
from analyzer.model.progress import report_stage
from analyzer.model.recording.records import Step, running_sum
from analyzer.model.units import Range, list_first
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.replay import (
    find_shared_limits,
    from_allocations,
    replay_whole,
)
from analyzer.simulate.kernels.cpu_kernels import KernelDevice
from analyzer.simulate.predict.executor import ControlFlow, EdgeOrder, Executor
from analyzer.simulate.predict.ledger import NO_NODE, Buffer, Ledger
from analyzer.simulate.predict.prepared_step import Prepared
from analyzer.tracing.parse.run_folder import RunNote


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """One possible execution: the buffers of a process from its start to the end of the last step."""

    buffers: list[Buffer]  # those with bytes, in order of birth
    instants: int  # number of allocations and frees
    steps: tuple[Step, ...]
    nodes: tuple[int, ...]  # nodes in the order in which the last step ran them
    decisions: ControlFlow  # with the assumed outcomes of loops and branches

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each buffer; one that is never freed dies after the last instant."""
        rows = [
            (
                one.born,
                self.instants if one.dies is None else one.dies,
                one.size_bytes,
                one.region,
            )
            for one in self.buffers
        ]

        return pd.DataFrame(rows, columns=["born", "dies", "requested_bytes", "region"])

    @cached_property
    def live_bytes(self) -> np.ndarray:
        """The requested bytes alive after each instant from -1 on."""
        columns = self.table.drop(columns="region").to_numpy(np.int64)
        born, dies, sizes = columns.T

        return running_sum(born, dies, sizes, self.instants)

    @cached_property
    def peak_instant(self) -> int:
        """The instant of the highest requested bytes of the last step."""
        first = self.steps[-1].first
        return first + int(self.live_bytes[first:].argmax()) - 1

    @property
    def peak_bytes(self) -> int:
        """The highest requested bytes of the last step, with everything that lives outside it."""
        return int(self.live_bytes[self.peak_instant + 1])


def play(prepared: Prepared, seed: int = 0) -> Schedule:
    """Play a process in one possible order."""
    ledger = Ledger(prepared)
    _start_process(prepared, ledger)

    random = Random(seed)
    edges = EdgeOrder(prepared, random)
    decisions = ControlFlow(prepared)
    steps = []

    for number in range(prepared.steps):
        first = ledger.instants
        ledger.ran.clear()
        Executor(prepared, ledger, edges, decisions, random).run()
        ledger.end_step()

        steps.append(
            Step(
                index=number,
                number=number,
                first=first,
                last=ledger.instants - 1,
            )
        )

    return Schedule(
        buffers=[buffer for buffer in ledger.buffers if buffer.size_bytes],
        instants=ledger.instants,
        steps=tuple(steps),
        nodes=tuple(ledger.ran),
        decisions=decisions,
    )


def _start_process(prepared: Prepared, ledger: Ledger) -> None:
    """Allocate everything that exists before the first step: variables, inputs and constants."""
    note = prepared.note
    device = prepared.device
    ops = prepared.ops

    if device.scratch_bytes:
        role = "scratch of TensorFlow's device"
        ledger.hold(device.scratch_bytes, Category.CONSTANT, role)

    _make_variables(prepared, ledger)
    known = set()

    for node, size_bytes in prepared.held_bytes.items():
        if node in ledger.held:
            continue

        category = Category.CONSTANT
        role = "constant"

        # Later arguments are tensors that the function captures.
        index = int(ops[node].attrs.get("index", -1))

        if ops[node].type not in CONSTANTS and index < len(note.inputs):
            category = Category.INPUT
            role = "step input"
            known.add(index)

        ledger.held[node] = ledger.hold(size_bytes, category, role, node)

    for index, given in enumerate(note.inputs):  # those that the graph does not use
        if index not in known and given.dtype not in device.host_dtypes:
            size_bytes = TensorSpec(given.dtype, given.shape).size_bytes or 0
            ledger.hold(size_bytes, Category.INPUT, "step input")


def _make_variables(prepared: Prepared, ledger: Ledger) -> None:
    """Allocate the variables with their handles, and the scratch memory of initial values."""
    device = prepared.device
    nodes = {number: node for node, number in prepared.variable_of.items()}
    slots: dict[object, Buffer] = {}

    for number, row in enumerate(prepared.note.variables):
        size_bytes = (device.holds(row) and row.size_bytes) or 0
        is_kernel = row.category == Category.PARAMETER and len(row.shape or ()) > 1
        is_slot = row.category == Category.OPTIMIZER_STATE

        # The initial value of a kernel is random numbers, scaled and shifted.
        scratch_sizes = [size_bytes] * 2 if is_kernel else []
        scratch = ledger.allocate_temporaries(NO_NODE, scratch_sizes)

        slot = (row.dtype, row.shape) if is_slot else None
        ledger.add_variable(size_bytes, slots.get(slot))

        # Equal values of one function are one constant.
        if slot is not None and row.shape:
            slots.setdefault(slot, ledger.values[-1])

        for buffer in reversed(scratch):
            ledger.release(buffer)

        node = nodes.get(number, NO_NODE)
        handle = ledger.hold(
            device.handle_bytes,
            Category.CONSTANT,
            "made before the steps",
            node,
        )

        if node in prepared.held_bytes:
            ledger.held[node] = handle


MOST_BRANCHES = 12  # the first ones are tried
_NAMED = 3  # most names in a sentence


def decide(prepared: Prepared) -> tuple[Prepared, dict[str, str], list[int]]:
    """Return the step with the outcomes that need most memory, and the peaks of all that were tried.

    The dictionary has a sentence about each branch and loop, by name.
    """
    ops = prepared.ops
    by_user = prepared.assumed
    assumed = dict(by_user)

    top = play(prepared)
    peaks_bytes = [top.peak_bytes]

    def try_out(name: str, outcome: int) -> Schedule:
        schedule = play(prepared.assume(assumed | {name: outcome}))
        peaks_bytes.append(schedule.peak_bytes)

        return schedule

    sentences = {}

    for name, trips in top.decisions.trips.items():
        if name not in by_user and trips > 1:
            try_out(name, 1)

        plural = "s" * (trips != 1)
        bound = (
            ""
            if name in top.decisions.unbounded
            else ", the most that its condition allows"
        )

        sentences[name] = (
            f"Data decide the trips of loop {name}; assumed: {trips} trip{plural}{bound} "
            f"(--assume {name}=N changes it)."
        )

    for node, count in list(top.decisions.branches.items())[:MOST_BRANCHES]:
        name = ops[node].name
        outcomes = set()
        if name not in by_user:
            outcomes = {*range(count)} - {1}  # 1 was played

        for branch in sorted(outcomes):
            schedule = try_out(name, branch)
            if schedule.peak_bytes > top.peak_bytes:
                assumed[name] = branch
                top = schedule

        sentences[name] = (
            f"Data decide branch {name}; assumed: number {assumed.get(name, 1)} "
            f"(--assume {name}=N changes it)."
        )

    return prepared.assume(assumed), sentences, peaks_bytes if sentences else []


def check_assumptions(note: RunNote, decided: Collection[str]) -> None:
    """Check that each assumption names something that data decide."""
    known = [*decided, *(size.op for size in note.sizes)]

    for name in note.assumed:
        if name not in known:
            names = f"Names: {', '.join(known[:6])}."
            raise InputError(
                f"--assume {name}: no data-dependent loop, branch or size has that name.",
                names if known else "Nothing in this step depends on data.",
            )


def describe_sizes(
    note: RunNote,
    names: Collection[str] | None = None,
) -> list[str]:
    """Return sentences about sizes that depend on data; ``names`` are the ops that ran, None for all."""
    by_basis: dict[str, list[DataSize]] = defaultdict(list)
    for size in note.sizes:
        if names is None or size.basis != "most" or size.op in names:
            by_basis[size.basis].append(size)

    sentences = []
    assumed = by_basis["told"]
    given = by_basis["inputs"]
    most = by_basis["most"]

    if assumed:
        sentences.append(
            f"Data-dependent sizes, as assumed (--assume): {_list(assumed)}."
        )

    if given:
        sentences.append(f"Input-dependent sizes follow the inputs: {_list(given)}.")

    if most:
        count = "1 size depends" if len(most) == 1 else f"{len(most)} sizes depend"
        sentences.append(
            f"{count} on data; assumed: the largest possible: {_list(most)} "
            f"(--assume {most[0].op}=N changes it)."
        )

    return sentences


def _list(sizes: list[DataSize]) -> str:
    return list_first([f"{size.op} {size.size}" for size in sizes], _NAMED)


# Schedules to play. 15 networks on a T4 request the same bytes with 5 and with 201.
FEWEST_SCHEDULES = 5
MOST_SCHEDULES = 15

OPS = 15_000  # ops of all schedules together: a small graph gets more of them


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The schedules of a step, by ascending peak, and what the allocator makes of them."""

    prepared: Prepared
    schedules: list[Schedule]
    allocated_bytes: list[int]  # the peak of the chunks of each schedule
    decisions: Mapping[str, str]  # sentences by the name of a branch or a loop
    requested: Range  # peaks of all schedules and of other outcomes of decisions
    # the limits under which some and all schedules run; None if not searched
    limits: Range | None

    @property
    def middle(self) -> Schedule:
        """The median schedule, which is shown."""
        return self.schedules[(len(self.schedules) - 1) // 2]


def predict(
    note: RunNote,
    device: KernelDevice,
    options: BfcOptions,
    *,
    search: bool = False,
) -> Prediction:
    """Play schedules of a step on a device, and replay them in its allocator."""
    prepared, decisions, peaks_bytes = decide(Prepared(note, device))
    schedules = []
    count = min(max(OPS // len(note.ops), FEWEST_SCHEDULES), MOST_SCHEDULES)

    if device.is_cheap:
        count = FEWEST_SCHEDULES

    for seed in range(count):
        report_stage("predicting", seed / count)
        schedules.append(play(prepared, seed))

    schedules.sort(key=lambda schedule: schedule.peak_bytes)

    if any(size.basis == "most" for size in note.sizes):  # the data may leave less
        first = schedules[0].steps[-1].first
        peaks_bytes.append(int(schedules[0].live_bytes[first]))

    sequences = [
        from_allocations(one.table, n_events=one.instants) for one in schedules
    ]
    allocated = []

    for schedule, sequence in zip(schedules, sequences, strict=True):
        result = replay_whole(sequence, options)
        first = int(np.searchsorted(sequence.instant, schedule.steps[-1].first))
        of_last_step = result.in_use_bytes[max(first - 1, 0) :]
        allocated.append(int(of_last_step.max()))

    return Prediction(
        prepared=prepared,
        schedules=schedules,
        allocated_bytes=allocated,
        decisions=decisions,
        requested=Range.spanning(
            [*peaks_bytes, *(one.peak_bytes for one in schedules)]
        ),
        limits=find_shared_limits(sequences[::-1], options) if search else None,
    )
