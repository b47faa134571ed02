"""A process's history from its first allocation on: the startup and the steps, as one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from msgspec import structs

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, FRAME_TYPES
from analyzer.model.errors import AccountingError
from analyzer.model.recording.records import Step
from analyzer.model.recording.schema import ALLOCATIONS, EVENTS, WORKSPACE, conform
from analyzer.model.units import round_up
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.replay import Replay, Sequence, from_allocations, replay
from analyzer.simulate.predict.buffers.tensor_lists import Buffers
from analyzer.simulate.predict.prepared_step import Owner, Prepared, Schedule, play
from analyzer.simulate.predict.startup import Startup, StartupBuffer, play_startup
from analyzer.tracing.measure.attribution import HOST_COPY_ROLE
from analyzer.tracing.measure.free_pairing import find_steps_of_births
from analyzer.tracing.measure.variable_buffers import Holding
from analyzer.tracing.parse.run_folder import RunNote


def make_allocations(
    prepared: Prepared,
    schedule: Schedule,
    *,
    offset: int = 0,
    others: Iterable[Mapping[str, object]] = (),
) -> pd.DataFrame:
    """Return a schedule's buffers, then ``others``, with the columns of ``ALLOCATIONS``.

    ``allocated_bytes`` is the request rounded up, until a replay replaces it. Categories are those
    that follow from the graph. The schedule begins at ``offset``, which is not added to births.
    """
    buffers = schedule.buffers
    empty = {name: "" if of.dtype == "category" else pd.NA for name, of in ALLOCATIONS.items()}
    empty |= {"allocator": prepared.device.allocator, "run_id": 0}
    rows = []
    for k in rows_of(buffers):
        dies, turned = buffers.dies[k], buffers.turned[k]
        row = {
            "requested_bytes": buffers.size_bytes[k],
            "allocated_bytes": round_up(buffers.size_bytes[k]),
            "born": buffers.born[k],
            "dies": offset + (dies if dies >= 0 else schedule.instants),
            "region": buffers.region[k],
            "turns_at": offset + turned if turned >= 0 else pd.NA,
        }
        rows.append(empty | row | _describe(prepared, buffers, k))
    rows += [empty | dict(other) for other in others]
    return conform(pd.DataFrame(rows, columns=list(ALLOCATIONS)), ALLOCATIONS)


def rows_of(buffers: Buffers) -> list[int]:
    """Return the buffers with bytes: the rows of the table, in its order."""
    return [k for k, size in enumerate(buffers.size_bytes) if size]


def _describe(prepared: Prepared, buffers: Buffers, row: int) -> dict[str, object]:
    node, output, variable = buffers.node[row], buffers.output[row], buffers.variable[row]
    described: dict[str, object] = {"category": str(Category.UNATTRIBUTED)}
    if node >= 0:
        op = prepared.wiring.ops[node]
        category = Category.TEMPORARY if output < 0 else Category.UNATTRIBUTED
        if op.type in ARGUMENT_TYPES or op.type == "Placeholder":
            is_handle = bool(op.outputs) and op.outputs[0].dtype == "resource"
            category = Category.CONSTANT if is_handle else Category.INPUT
        elif op.type in ("Const", "HostConst", "ImmutableConst"):
            category = Category.CONSTANT
        described = {"category": str(category), "op": op.name, "op_type": op.type}
        described["source"] = op.source
        if 0 <= output < len(op.outputs):
            spec = op.outputs[output]
            described |= {"dtype": spec.dtype, "shape": spec.shape_text}
            if spec.dtype != "variant":  # as in a trace, a list's handle is no tensor of the graph
                described["tensor"] = f"{op.name}:{output}"
    if buffers.region[row] == WORKSPACE:
        described["dtype"] = "uint8"
    if variable >= 0:
        owner = prepared.owners[variable]
        described |= {"variable": owner.path, "category": str(owner.category)}
    return described


def place(
    table: pd.DataFrame, instants: int, options: BfcOptions
) -> tuple[pd.DataFrame, pd.DataFrame, BfcOptions]:
    """Replay a table in the device's allocator.

    If it exceeds its limit, optional buffers above it get one byte, or else there is no limit.
    """
    sequence = from_allocations(table, n_events=instants)
    if not np.array_equal(sequence.instant, np.arange(instants)):
        raise AccountingError("the prediction misses an instant or uses one twice")
    result = replay(sequence, options)
    if result.failure is not None and sequence.spare.any():
        over = sequence.live_requested_bytes() > options.memory_limit_bytes
        over &= sequence.spare[sequence.slot] & (sequence.request > 0)
        sizes = table["requested_bytes"].to_numpy().copy()
        sizes[sequence.row[np.unique(sequence.slot[over])]] = 1
        table = table.assign(requested_bytes=sizes)
        sequence = from_allocations(table, n_events=instants)
        result = replay(sequence, options)
    if result.failure is not None:
        result = replay(sequence, options.unlimited())
    addresses, chunks = np.zeros((2, len(table)), dtype=np.int64)
    rows = sequence.row[sequence.slot]
    addresses[rows], chunks[rows] = result.address, result.chunk_bytes
    placed = table.assign(address=pd.array(addresses, dtype="Int64"), allocated_bytes=chunks)
    return conform(placed, ALLOCATIONS), _events(placed, result), result.options


def measure_allocated(sequence: Sequence, step: Step, options: BfcOptions) -> tuple[int, int]:
    """Return the highest bytes of chunks in a step, and the bytes of chunks before it."""
    result = replay(sequence, options)
    if result.failure is not None:
        result = replay(sequence, options.unlimited())
    in_use = result.in_use_bytes
    first, end = np.searchsorted(sequence.instant, (step.first, step.last + 1))
    before = int(in_use[first - 1]) if first else 0
    return int(in_use[first:end].max(initial=before)), before


def _events(table: pd.DataFrame, result: Replay) -> pd.DataFrame:
    sequence = result.sequence
    chosen = table.iloc[sequence.row[sequence.slot]]
    names = ("allocator", "requested_bytes", "op", "region", "dtype", "shape")
    columns = {name: chosen[name].astype(object).to_numpy() for name in names}
    columns |= {
        "time_ps": np.arange(len(sequence), dtype=np.int64),
        "kind": np.where(sequence.request > 0, 1, -1),
        "address": result.address,
        "allocated_bytes": result.chunk_bytes,
        "in_use_bytes": result.in_use_bytes,
        "available_bytes": result.options.memory_limit_bytes - result.in_use_bytes,
        "peak_in_use_bytes": np.maximum.accumulate(result.in_use_bytes),
        "fragmentation": result.fragmentation(),
    }
    return conform(pd.DataFrame(columns | {"run_id": 0, "thread": 0}), EVENTS)


_Request = tuple[int, int, int, str]  # bytes, instants of birth and end, and region of a buffer


@dataclass(frozen=True, slots=True)
class Played:
    """Startup and steps of one schedule."""

    schedule: Schedule
    startup: Startup
    # number of a variable in the note -> its position among the schedule's owners
    position_of: dict[int, int]
    # buffer of the schedule from before the first step -> buffer of the startup
    origin: dict[int, int]

    @property
    def instants(self) -> int:
        """Number of allocations and frees."""
        return self.startup.instants + self.schedule.instants

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, in instants since the process began."""
        offset = self.startup.instants
        return tuple(
            Step(index=index, number=index, first=first + offset, last=last + offset)
            for index, (first, last) in enumerate(self.schedule.steps)
        )

    @property
    def born(self) -> list[int]:
        """The instant of birth of each buffer of the schedule that has bytes."""
        offset, made = self.startup.instants, self.startup.buffers
        born = self.schedule.buffers.born
        return [
            made[self.origin[buffer]].born if born[buffer] < 0 else born[buffer] + offset
            for buffer in rows_of(self.schedule.buffers)
        ]

    @property
    def alone(self) -> list[StartupBuffer]:
        """Buffers of the startup that are not in the schedule."""
        shared = set(self.origin.values())
        return [made for n, made in enumerate(self.startup.buffers) if n not in shared]

    @property
    def aside_bytes(self) -> int:
        """Startup bytes outside the graph that stay allocated, such as tensors held by Python."""
        return sum(made.size_bytes for made in self.alone if made.dies is None)

    def sequence(self) -> Sequence:
        """Return the requests and frees of the process."""
        return _make_sequence(self._requests(), self.instants)

    def _requests(self) -> list[_Request]:
        """Return the requests of the schedule's buffers, then of the startup's alone."""
        offset, total = self.startup.instants, self.instants
        rows = ((m.size_bytes, m.born, total if m.dies is None else m.dies, "") for m in self.alone)
        return [*_list_requests(self.schedule.buffers, self.born, offset, total), *rows]

    def end_with(self, schedule: Schedule) -> tuple[Sequence, Step]:
        """Return the requests with another schedule as the last step, and this step.

        A schedule of one step starts with the variables that the last step of this process finds.
        """
        own, buffers = self.schedule, schedule.buffers
        begins = self.startup.instants + own.steps[-1][0]
        total = begins + schedule.instants
        row_of = {buffer: row for row, buffer in enumerate(rows_of(own.buffers))}
        same = dict(zip(schedule.entering, own.entering, strict=True))
        same |= {schedule.held[node]: buffer for node, buffer in own.held.items()}
        ends = {
            row_of[ours]: begins + buffers.dies[theirs]
            for theirs, ours in same.items()
            if buffers.dies[theirs] >= 0 and ours in row_of
        }
        joined = [
            (size, born, ends.get(row, dies if dies < begins else total), region)
            for row, (size, born, dies, region) in enumerate(self._requests())
            if born < begins
        ]
        births = [begins + born if born >= 0 else -1 for born in buffers.born]
        rows = _list_requests(buffers, [births[k] for k in rows_of(buffers)], begins, total)
        joined += [row for row in rows if row[1] >= 0]
        last = len(own.steps) - 1
        step = Step(index=last, number=last, first=begins, last=total - 1)
        return _make_sequence(joined, total), step


def _list_requests(
    buffers: Buffers, births: Iterable[int], offset: int, total: int
) -> list[_Request]:
    """Return the requests of buffers with these births; ends count from ``offset``."""
    dies = [offset + end if end >= 0 else total for end in buffers.dies]
    return [
        (buffers.size_bytes[k], born, dies[k], buffers.region[k])
        for k, born in zip(rows_of(buffers), births, strict=True)
    ]


def _make_sequence(requests: list[_Request], instants: int) -> Sequence:
    columns = ["requested_bytes", "born", "dies", "region"]
    return from_allocations(pd.DataFrame(requests, columns=columns), n_events=instants)


def play_from_start(
    note: RunNote, prepared: Prepared, owners: Mapping[int, Owner], seed: int, threads: int = 1
) -> Played:
    """Play the startup and the steps of one schedule; ``owners`` by their index in the note."""
    schedule = play(prepared, seed, threads=threads, steps=prepared.steps)
    ops, device = prepared.wiring.ops, prepared.device
    held = prepared.held_bytes.items()
    work = [node for node, op in enumerate(ops) if op.type not in FRAME_TYPES]
    copied = {int(ops[node].attrs["index"]) for node in prepared.copied_bytes}
    inputs = enumerate(note.inputs)  # those that each step copies are not made before it
    made = tuple(structs.replace(x, shape=(0,)) if n in copied else x for n, x in inputs)
    startup = play_startup(
        replace(note, inputs=made),
        [(device.holds(row) and row.size_bytes) or 0 for row in note.variables],
        {node: size for node, size in held if ops[node].type not in ARGUMENT_TYPES},
        prepared.device,
        is_compiled=len(work) == 1 and prepared.kernels.plans[work[0]].compiled is not None,
    )
    place = {owner.op: position for position, owner in enumerate(prepared.owners)}
    positions = {number: place[owner.op] for number, owner in owners.items() if owner.op in place}
    origin = _match_origins(prepared, schedule, startup, positions)
    return Played(schedule, startup, positions, origin)


def _match_origins(
    prepared: Prepared, schedule: Schedule, startup: Startup, position_of: Mapping[int, int]
) -> dict[int, int]:
    """Return the startup's buffer, possibly a new one, of each schedule buffer from before."""
    ops = prepared.wiring.ops
    origin: dict[int, int] = {
        schedule.values[position]: startup.values[number]
        for number, position in position_of.items()
        if number in startup.values
    }
    variable_of = {prepared.owners[p].op: n for n, p in position_of.items()}
    for node, buffer in schedule.held.items():
        op = ops[node]
        if op.type not in ARGUMENT_TYPES:
            origin[buffer] = startup.constants[node]
            continue
        index = int(op.attrs["index"])
        if op.name in variable_of and variable_of[op.name] in startup.handles:
            origin[buffer] = startup.handles[variable_of[op.name]]
        elif op.outputs[0].dtype != "resource" and startup.inputs[index : index + 1] > [-1]:
            origin[buffer] = startup.inputs[index]
    for buffer in rows_of(schedule.buffers):
        if schedule.buffers.born[buffer] < 0 and buffer not in origin:
            origin[buffer] = startup.allocate(
                schedule.buffers.size_bytes[buffer], Category.CONSTANT, "tensor held by Python"
            )
    return origin


def make_table(
    prepared: Prepared, played: Played
) -> tuple[pd.DataFrame, list[Holding], dict[int, tuple[Category, str]]]:
    """Return rows of the schedule, then of the startup; rows of variables; and labels of rows."""
    startup, total, alone = played.startup, played.instants, played.alone
    extra = [
        {
            "requested_bytes": made.size_bytes,
            "allocated_bytes": made.size_bytes,
            "born": made.born,
            "dies": total if made.dies is None else made.dies,
        }
        for made in alone
    ]
    table = make_allocations(prepared, played.schedule, offset=startup.instants, others=extra)
    born = np.asarray([*played.born, *(made.born for made in alone)], np.int64)
    table = table.assign(born=born, step=find_steps_of_births(born, played.steps))
    holdings, labels = find_holdings(played)
    for row, buffer in enumerate(rows_of(played.schedule.buffers)):
        if played.schedule.buffers.node[buffer] in prepared.copied_bytes:
            labels[row] = Category.INPUT, HOST_COPY_ROLE
    for row, made in enumerate(alone, start=len(table) - len(alone)):
        if made.variable is not None:
            holdings.append(Holding(row, made.variable, None))
        else:
            labels[row] = made.category, made.role
    return table, holdings, labels


def find_holdings(played: Played) -> tuple[list[Holding], dict[int, tuple[Category, str]]]:
    """Return which row holds which variable, and labels of rows from the startup."""
    buffers, offset = played.schedule.buffers, played.startup.instants
    number_of = {position: number for number, position in played.position_of.items()}
    holdings: list[Holding] = []
    labels: dict[int, tuple[Category, str]] = {}
    last: dict[int, int] = {}
    turned = buffers.turned
    # In the order in which they became values: a value may be older than the one before it.
    for row, buffer in sorted(enumerate(rows_of(buffers)), key=lambda at: turned[at[1]]):
        position = buffers.variable[buffer]
        if position >= 0:
            since = None
            if turned[buffer] >= 0:
                # As in a trace: the old value stays the variable's until its end. If it never ends,
                # the new one is the variable's from its birth on.
                previous_end = buffers.dies[last[position]] if position in last else 0
                if previous_end >= 0:
                    since = max(turned[buffer], previous_end) + offset
            last[position] = buffer
            holdings.append(Holding(row, number_of[position], since))
        elif buffer in played.origin:
            made = played.startup.buffers[played.origin[buffer]]
            labels[row] = made.category, made.role
    return holdings, labels
