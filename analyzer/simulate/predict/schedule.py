"""One possible execution of a process, from its start to the end of its last step."""

from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import TensorSpec
from analyzer.model.recording.records import Step
from analyzer.model.recording.timeline import running_sum
from analyzer.simulate.predict.buffers import NO_NODE, Buffer
from analyzer.simulate.predict.control_flow import ControlFlow
from analyzer.simulate.predict.executor import EdgeOrder, Executor
from analyzer.simulate.predict.ledger import Ledger
from analyzer.simulate.predict.prepared_step import CONSTANTS, Prepared


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """One possible execution: the buffers of a process from its start to the end of the last step."""

    buffers: list[Buffer]  # those with bytes, in order of birth
    instants: int  # number of allocations and frees
    steps: tuple[Step, ...]
    nodes: tuple[int, ...]  # nodes in the order in which the last step ran them
    decisions: ControlFlow  # with the assumed outcomes of loops and branches

    @cached_property
    def live_bytes(self) -> np.ndarray:
        """The requested bytes alive after each instant from -1 on."""
        last = self.instants
        ends = [last if one.dies is None else one.dies for one in self.buffers]
        dies = np.asarray(ends, dtype=np.int64)

        born = np.asarray([one.born for one in self.buffers], dtype=np.int64)
        sizes = np.asarray([one.size_bytes for one in self.buffers], dtype=np.int64)

        return running_sum(born, dies, sizes, last)

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
    steps: list[Step] = []

    for number in range(prepared.steps):
        first = ledger.instants
        ledger.begin_step()
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

        if ops[node].type not in CONSTANTS:
            category = Category.INPUT
            role = "step input"
            known.add(int(ops[node].attrs.get("index", -1)))

        ledger.held[node] = ledger.hold(size_bytes, category, role, node)

    for index, given in enumerate(note.inputs):  # those that the graph does not use
        if index not in known and given.dtype not in device.host_dtypes:
            size_bytes = TensorSpec(given.dtype, given.shape).size_bytes or 0
            ledger.hold(size_bytes, Category.INPUT, "step input")


def _make_variables(prepared: Prepared, ledger: Ledger) -> None:
    """Allocate the variables with their handles, and the scratch memory of initial values."""
    note = prepared.note
    device = prepared.device
    nodes = {number: node for node, number in prepared.variable_of.items()}
    slots: dict[object, Buffer] = {}

    for number, row in enumerate(note.variables):
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
