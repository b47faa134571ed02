"""A process's history from its first allocation on: the startup and the steps, as one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer.model.contract.categories import Category
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, FRAME_TYPES
from analyzer.model.recording.records import Step
from analyzer.model.recording.schema import ALLOCATIONS, conform
from analyzer.simulate.allocator import Sequence, from_allocations
from analyzer.simulate.predict.buffers.draw_table import make_allocations, rows_of
from analyzer.simulate.predict.played_step import Draw, play
from analyzer.simulate.predict.prepared_step import Owner, Prepared
from analyzer.simulate.predict.schedules import Prediction
from analyzer.simulate.predict.startup import Startup, StartupBuffer, play_startup
from analyzer.tracing.measure.step_bounds import find_steps_of_births
from analyzer.tracing.measure.variable_buffers import Holding, variable_bytes
from analyzer.tracing.parse.run_folder import RunNote


@dataclass(frozen=True, slots=True)
class History:
    """Startup and steps in one table: rows of the schedule, then rows of the startup alone.

    Attributes:
        table: Columns of ``ALLOCATIONS``, without labels.
        instants: Number of allocations and frees.
        steps: The steps.
        holdings: Which row holds which variable of the note, and since when.
        labels: Row -> category and role from the startup.
    """

    table: pd.DataFrame
    instants: int
    steps: tuple[Step, ...]
    holdings: list[Holding]
    labels: dict[int, tuple[Category, str]]


@dataclass(frozen=True, slots=True)
class Played:
    """Startup and steps of one schedule.

    Attributes:
        draw: The steps.
        startup: The startup.
        position_of: Number of a variable in the note -> its position among the schedule's owners.
        origin: Buffer of the schedule from before the first step -> buffer of the startup.
    """

    draw: Draw
    startup: Startup
    position_of: dict[int, int]
    origin: dict[int, int]

    @property
    def instants(self) -> int:
        """Number of allocations and frees."""
        return self.startup.instants + self.draw.instants

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, in instants since the process began."""
        offset = self.startup.instants
        return tuple(
            Step(index=index, number=index, first=first + offset, last=last + offset)
            for index, (first, last) in enumerate(self.draw.steps)
        )

    @property
    def last_step_begins(self) -> int:
        """The instant at which the last step begins."""
        return self.startup.instants + self.draw.steps[-1][0]

    @property
    def born(self) -> list[int]:
        """The instant of birth of each buffer of the schedule that has bytes."""
        offset, made = self.startup.instants, self.startup.buffers
        born = self.draw.buffers.born
        return [
            made[self.origin[buffer]].born if born[buffer] < 0 else born[buffer] + offset
            for buffer in rows_of(self.draw.buffers)
        ]

    @property
    def alone(self) -> list[int]:
        """Buffers of the startup that are not in the schedule."""
        shared = set(self.origin.values())
        return [number for number in range(len(self.startup.buffers)) if number not in shared]

    @property
    def aside_bytes(self) -> int:
        """Startup bytes outside the graph that stay allocated, such as tensors held by Python."""
        made = self.startup.buffers
        return sum(made[number].size_bytes for number in self.alone if made[number].dies is None)

    def sequence(self) -> Sequence:
        """Return the requests and frees of the process."""
        return from_allocations(self._requests(), n_events=self.instants)

    def _requests(self) -> pd.DataFrame:
        """Return size, birth, end and region of the schedule's buffers, then of the startup's alone."""
        buffers, total = self.draw.buffers, self.instants
        offset, steps_end = self.startup.instants, self.draw.instants
        rows = rows_of(buffers)
        extra = [self.startup.buffers[number] for number in self.alone]
        dies = [offset + (buffers.dies[k] if buffers.dies[k] >= 0 else steps_end) for k in rows]
        numbers = pd.DataFrame(
            {
                "requested_bytes": [buffers.size_bytes[k] for k in rows]
                + [made.size_bytes for made in extra],
                "born": self.born + [made.born for made in extra],
                "dies": dies + [total if made.dies is None else made.dies for made in extra],
            },
            dtype="int64",
        )
        return numbers.assign(region=[buffers.region[k] for k in rows] + [""] * len(extra))

    def end_with(self, draw: Draw) -> tuple[Sequence, Step]:
        """Return the requests with another schedule as the last step, and this step.

        A schedule of one step starts as every later step of a process does. So it need not be
        played from the process's start: its variables are those that this process's last step
        finds.
        """
        begins = self.last_step_begins
        total = begins + draw.instants
        requests = self._requests()
        requests = requests[requests["born"] < begins]
        row_of = {buffer: row for row, buffer in enumerate(rows_of(self.draw.buffers))}
        same = dict(zip(draw.entering, self.draw.entering, strict=True))
        same |= {draw.held[node]: buffer for node, buffer in self.draw.held.items()}
        dies = np.where(requests["dies"] < begins, requests["dies"], total)
        for theirs, ours in same.items():
            if draw.buffers.dies[theirs] >= 0 and ours in row_of:
                dies[row_of[ours]] = begins + draw.buffers.dies[theirs]
        new = [k for k in rows_of(draw.buffers) if draw.buffers.born[k] >= 0]
        ends = draw.buffers.dies
        columns = {
            "requested_bytes": [draw.buffers.size_bytes[k] for k in new],
            "born": [begins + draw.buffers.born[k] for k in new],
            "dies": [begins + ends[k] if ends[k] >= 0 else total for k in new],
        }
        later = pd.DataFrame(columns, dtype="int64").assign(
            region=[draw.buffers.region[k] for k in new]
        )
        joined = pd.concat([requests.assign(dies=dies), later], ignore_index=True)
        last = len(self.draw.steps) - 1
        step = Step(index=last, number=last, first=begins, last=total - 1)
        return from_allocations(joined, n_events=total), step


def play_from_start(
    note: RunNote,
    prepared: Prepared,
    owners: Mapping[int, Owner],
    seed: int,
    threads: int = 1,
) -> Played:
    """Play the startup and the steps of one schedule.

    Args:
        owners: Index of a variable in the note -> the op that owns it.
        seed: Seed of the schedule.
        threads: Inter-op threads.
    """
    draw = play(prepared, seed, threads=threads, steps=prepared.steps)
    startup = build_startup(note, prepared)
    place = {owner.op: position for position, owner in enumerate(prepared.owners)}
    positions = {number: place[owner.op] for number, owner in owners.items() if owner.op in place}
    return Played(draw, startup, positions, _match_origins(prepared, draw, startup, positions))


def build_startup(note: RunNote, prepared: Prepared) -> Startup:
    """Return the allocations before the first step."""
    ops = prepared.wiring.ops
    constants = {
        node: size
        for node, size in prepared.held_bytes.items()
        if ops[node].type not in ARGUMENT_TYPES
    }
    hosted = prepared.device.host_dtypes
    sizes = [0 if row.dtype in hosted else variable_bytes(row) or 0 for row in note.variables]
    work = [node for node, op in enumerate(ops) if op.type not in FRAME_TYPES]
    return play_startup(
        note,
        sizes,
        constants,
        prepared.device,
        is_compiled=len(work) == 1 and work[0] in prepared.arguments,
    )


def _match_origins(
    prepared: Prepared, draw: Draw, startup: Startup, position_of: Mapping[int, int]
) -> dict[int, int]:
    """Return the startup's buffer of each schedule buffer from before the first step.

    A buffer without one is added to the startup.
    """
    ops = prepared.wiring.ops
    origin: dict[int, int] = {
        draw.values[position]: startup.values[number]
        for number, position in position_of.items()
        if number in startup.values
    }
    variable_of = {prepared.owners[p].op: n for n, p in position_of.items()}
    for node, buffer in draw.held.items():
        op = ops[node]
        if op.type not in ARGUMENT_TYPES:
            origin[buffer] = startup.constants[node]
            continue
        index = int(op.attrs["index"])
        if op.name in variable_of and variable_of[op.name] in startup.handles:
            origin[buffer] = startup.handles[variable_of[op.name]]
        elif op.outputs[0].dtype != "resource" and startup.inputs[index : index + 1] > [-1]:
            origin[buffer] = startup.inputs[index]
    for buffer in rows_of(draw.buffers):
        if draw.buffers.born[buffer] < 0 and buffer not in origin:
            origin[buffer] = startup.allocate(
                draw.buffers.size_bytes[buffer], Category.CONSTANT, "tensor held by Python"
            )
    return origin


def make_history(prediction: Prediction, played: Played) -> History:
    """Return the table of a schedule with its startup, and the labels of rows."""
    draw, startup = played.draw, played.startup
    offset, total = startup.instants, played.instants
    table = make_allocations(prediction.prepared, draw)
    alone = played.alone
    allocator = prediction.prepared.device.allocator
    extra = _make_extra_rows([startup.buffers[number] for number in alone], total, allocator)
    steps_table = table.astype(object).assign(born=played.born, dies=table["dies"] + offset)
    joined = conform(pd.concat([steps_table, extra], ignore_index=True), ALLOCATIONS)
    joined = joined.assign(
        turns_at=joined["turns_at"] + offset,
        step=find_steps_of_births(joined["born"].to_numpy(), played.steps),
    )
    holdings, labels = find_holdings(draw, startup, played.position_of, played.origin)
    for row, number in enumerate(alone, start=len(table)):
        made = startup.buffers[number]
        if made.variable is not None:
            holdings.append(Holding(row, made.variable, None))
        else:
            labels[row] = made.category, made.role
    return History(joined, total, played.steps, holdings, labels)


def find_holdings(
    draw: Draw, startup: Startup, position_of: Mapping[int, int], origin: Mapping[int, int]
) -> tuple[list[Holding], dict[int, tuple[Category, str]]]:
    """Return which row holds which variable, and labels of rows from the startup."""
    offset = startup.instants
    number_of = {position: number for number, position in position_of.items()}
    holdings: list[Holding] = []
    labels: dict[int, tuple[Category, str]] = {}
    last: dict[int, int] = {}
    turned = draw.buffers.turned
    # In the order in which they became values: a value may be older than the one before it.
    for row, buffer in sorted(enumerate(rows_of(draw.buffers)), key=lambda at: turned[at[1]]):
        position = draw.buffers.variable[buffer]
        if position >= 0:
            since = None
            if turned[buffer] >= 0:
                # As in a trace: the old value stays the variable's until its end. If it never ends,
                # the new one is the variable's from its birth on.
                previous_end = draw.buffers.dies[last[position]] if position in last else 0
                if previous_end >= 0:
                    since = max(turned[buffer], previous_end) + offset
            last[position] = buffer
            holdings.append(Holding(row, number_of[position], since))
        elif buffer in origin:
            made = startup.buffers[origin[buffer]]
            labels[row] = made.category, made.role
    return holdings, labels


def _make_extra_rows(made: list[StartupBuffer], total: int, allocator: str) -> pd.DataFrame:
    count = len(made)
    return pd.DataFrame(
        {
            **{name: [""] * count for name in ALLOCATIONS},
            "allocator": allocator,
            "address": pd.NA,
            "requested_bytes": [row.size_bytes for row in made],
            "allocated_bytes": [row.size_bytes for row in made],
            "born": [row.born for row in made],
            "dies": [total if row.dies is None else row.dies for row in made],
            "born_ps": pd.NA,
            "dies_ps": pd.NA,
            "step": pd.NA,
            "run_id": 0,
            "turns_at": pd.NA,
            "part_of": pd.NA,
        }
    )
