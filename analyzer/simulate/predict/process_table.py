"""The build-up and the steps as one table, from a process's first allocation on."""

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
from analyzer.simulate.predict.buffers.draw_table import allocations_of, rows_of
from analyzer.simulate.predict.played_step import Draw, Owner, Prepared, play
from analyzer.simulate.predict.schedules import Prediction
from analyzer.simulate.predict.startup import BuildUp, Made, build_up
from analyzer.tracing.measure.step_bounds import find_steps_of_births
from analyzer.tracing.measure.variable_buffers import Holding, variable_bytes
from analyzer.tracing.parse.run_folder import RunNote

"""Types of the ops that bring a function's arguments in."""


@dataclass(frozen=True, slots=True)
class History:
    """Build-up and steps in one table: the rows of the draw, then those of the build-up alone.

    Attributes:
        table: Columns of ``ALLOCATIONS``, not yet labelled.
        instants: Number of allocations and frees.
        steps: The steps.
        holdings: Which row holds which variable of the note, and since when.
        labels: Row -> category and role that the build-up knows.
    """

    table: pd.DataFrame
    instants: int
    steps: tuple[Step, ...]
    holdings: list[Holding]
    labels: dict[int, tuple[Category, str]]


@dataclass(frozen=True, slots=True)
class Played:
    """Build-up and steps of one draw, not yet a table.

    Attributes:
        draw: The steps.
        grown: The build-up.
        position_of: Number of a variable in the note -> its position among the draw's owners.
        origin: Buffer of the draw that was alive before the first step -> buffer of the build-up.
    """

    draw: Draw
    grown: BuildUp
    position_of: dict[int, int]
    origin: dict[int, int]

    @property
    def instants(self) -> int:
        """Number of allocations and frees."""
        return self.grown.instants + self.draw.instants

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, in instants since the process began."""
        offset = self.grown.instants
        return tuple(
            Step(index=index, number=index, first=first + offset, last=last + offset)
            for index, (first, last) in enumerate(self.draw.steps)
        )

    @property
    def begins(self) -> int:
        """The instant at which the last step begins."""
        return self.grown.instants + self.draw.steps[-1][0]

    @property
    def born(self) -> list[int]:
        """The instant at which each buffer of the draw that has bytes was born."""
        offset, made = self.grown.instants, self.grown.made
        born = self.draw.buffers.born
        return [
            made[self.origin[buffer]].born if born[buffer] < 0 else born[buffer] + offset
            for buffer in rows_of(self.draw.buffers)
        ]

    @property
    def alone(self) -> list[int]:
        """Buffers of the build-up that are none of the draw's."""
        taken = set(self.origin.values())
        return [number for number in range(len(self.grown.made)) if number not in taken]

    @property
    def aside_bytes(self) -> int:
        """Bytes that the build-up left beside the draw's, such as tensors that Python holds."""
        made = self.grown.made
        return sum(made[number].size_bytes for number in self.alone if made[number].dies is None)

    def sequence(self) -> Sequence:
        """Return what the allocator is asked for, without the table: one row for each of its rows."""
        return from_allocations(self._requests(), n_events=self.instants)

    def _requests(self) -> pd.DataFrame:
        """Return size, birth, end and region of the draw's buffers, then of the build-up's alone."""
        buffers, total = self.draw.buffers, self.instants
        offset, ended = self.grown.instants, self.draw.instants
        rows = rows_of(buffers)
        extra = [self.grown.made[number] for number in self.alone]
        dies = [offset + (buffers.dies[k] if buffers.dies[k] >= 0 else ended) for k in rows]
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

    def ended_with(self, draw: Draw) -> tuple[Sequence, Step]:
        """Return what the allocator is asked for where another draw takes the last step's place.

        A draw of one step begins with what every later step of a process begins with, so that it need
        not be played from the start again: its variables are those that the last step here finds.

        Args:
            draw: A draw of one step.

        Returns:
            The sequence, and the last step in it.
        """
        begins = self.begins
        total = begins + draw.instants
        requests = self._requests()
        requests = requests[requests["born"] < begins]
        row_of = {buffer: row for row, buffer in enumerate(rows_of(self.draw.buffers))}
        found = dict(zip(draw.entering, self.draw.entering, strict=True))
        found |= {draw.held[node]: buffer for node, buffer in self.draw.held.items()}
        dies = np.where(requests["dies"] < begins, requests["dies"], total)
        for theirs, ours in found.items():
            if draw.buffers.dies[theirs] >= 0 and ours in row_of:
                dies[row_of[ours]] = begins + draw.buffers.dies[theirs]
        made = [k for k in rows_of(draw.buffers) if draw.buffers.born[k] >= 0]
        ends = draw.buffers.dies
        joined = {
            "requested_bytes": [draw.buffers.size_bytes[k] for k in made],
            "born": [begins + draw.buffers.born[k] for k in made],
            "dies": [begins + ends[k] if ends[k] >= 0 else total for k in made],
        }
        later = pd.DataFrame(joined, dtype="int64").assign(
            region=[draw.buffers.region[k] for k in made]
        )
        every = pd.concat([requests.assign(dies=dies), later], ignore_index=True)
        last = len(self.draw.steps) - 1
        step = Step(index=last, number=last, first=begins, last=total - 1)
        return from_allocations(every, n_events=total), step


def play_from_start(
    note: RunNote,
    prepared: Prepared,
    owners: Mapping[int, Owner],
    seed: int,
    threads: int = 1,
) -> Played:
    """Play the build-up and the steps of one draw on that many threads.

    Args:
        note: The run note.
        prepared: The graph.
        owners: Index of a variable -> the op that owns it.
        seed: Of the draw.
        threads: Inter-op threads.
    """
    draw = play(prepared, seed, threads=threads, steps=prepared.steps)
    grown = build_up_of(note, prepared)
    origin = origins_of(note, prepared, draw, grown, owners)
    return Played(draw, grown, _positions(prepared, owners), origin)


def _positions(prepared: Prepared, owners: Mapping[int, Owner]) -> dict[int, int]:
    """Return the position among a step's owners of each variable of the note that it uses."""
    place = {owner.op: position for position, owner in enumerate(prepared.owners)}
    return {number: place[owner.op] for number, owner in owners.items() if owner.op in place}


def build_up_of(note: RunNote, prepared: Prepared) -> BuildUp:
    """Return what is there before the first step.

    Args:
        note: The run note.
        prepared: The graph.
    """
    ops = prepared.wiring.ops
    constants = {
        node: size
        for node, size in prepared.held_bytes.items()
        if ops[node].type not in ARGUMENT_TYPES
    }
    hosted = prepared.device.host_dtypes
    sizes = [0 if row.dtype in hosted else variable_bytes(row) or 0 for row in note.variables]
    work = [node for node, op in enumerate(ops) if op.type not in FRAME_TYPES]
    return build_up(
        note,
        sizes,
        constants,
        prepared.device,
        is_compiled=len(work) == 1 and work[0] in prepared.arguments,
    )


def origins_of(
    note: RunNote,
    prepared: Prepared,
    draw: Draw,
    grown: BuildUp,
    owners: Mapping[int, Owner],
) -> dict[int, int]:
    """Return which buffer of the build-up each one is that is alive before the first step.

    Args:
        note: The run note.
        prepared: The graph.
        draw: What lived, or what there was before the steps.
        grown: The build-up; what no one noted is added to it.
        owners: Index of a variable -> the op that owns it.
    """
    ops = prepared.wiring.ops
    position_of = _positions(prepared, owners)
    origin: dict[int, int] = {
        draw.values[position]: grown.values[number]
        for number, position in position_of.items()
        if number in grown.values
    }
    handle_of = {prepared.owners[p].op: n for n, p in position_of.items()}
    for node, buffer in draw.held.items():
        op = ops[node]
        if op.type not in ARGUMENT_TYPES:
            origin[buffer] = grown.constants[node]
            continue
        index = int(op.attrs["index"])
        if op.name in handle_of and handle_of[op.name] in grown.handles:
            origin[buffer] = grown.handles[handle_of[op.name]]
        elif op.outputs[0].dtype != "resource" and grown.inputs[index : index + 1] > [-1]:
            origin[buffer] = grown.inputs[index]
    for buffer in rows_of(draw.buffers):
        if draw.buffers.born[buffer] < 0 and buffer not in origin:
            origin[buffer] = grown.birth(
                draw.buffers.size_bytes[buffer], Category.CONSTANT, "tensor held by Python"
            )
    return origin


def history_of(prediction: Prediction, played: Played) -> History:
    """Return the table of what was played, and what is known of its rows."""
    draw, grown, origin = played.draw, played.grown, played.origin
    device = prediction.prepared.device
    buffers = rows_of(draw.buffers)
    offset, total = grown.instants, played.instants
    table = allocations_of(prediction.prepared, draw)
    alone = played.alone
    extra = _extra_rows([grown.made[number] for number in alone], total, device.allocator)
    joined = conform(
        pd.concat(
            [
                table.astype(object).assign(born=played.born, dies=table["dies"] + offset),
                extra,
            ],
            ignore_index=True,
        ),
        ALLOCATIONS,
    )
    turned = joined["turns_at"] + offset
    steps = played.steps
    joined = joined.assign(
        turns_at=turned, step=find_steps_of_births(joined["born"].to_numpy(), steps)
    )
    holdings, labels = _told(draw, grown, played.position_of, origin)
    for row, number in enumerate(alone, start=len(buffers)):
        made = grown.made[number]
        if made.variable is not None:
            holdings.append(Holding(row, made.variable, None))
        else:
            labels[row] = made.category, made.role
    return History(joined, total, steps, holdings, labels)


def _told(
    draw: Draw, grown: BuildUp, position_of: Mapping[int, int], origin: Mapping[int, int]
) -> tuple[list[Holding], dict[int, tuple[Category, str]]]:
    """Return which row holds which variable, and what else the build-up knows of rows."""
    offset = grown.instants
    number_of = {position: number for number, position in position_of.items()}
    holdings: list[Holding] = []
    labels: dict[int, tuple[Category, str]] = {}
    last: dict[int, int] = {}
    turned = draw.buffers.turned
    # In the order in which they became values: one may be older than the value that it follows.
    for row, buffer in sorted(enumerate(rows_of(draw.buffers)), key=lambda at: turned[at[1]]):
        position = draw.buffers.variable[buffer]
        if position >= 0:
            since = None
            if draw.buffers.turned[buffer] >= 0:
                # As in a trace: the old value is the variable's until no one reads it any more;
                # where it stays for good, the new one is too from the start.
                ended = draw.buffers.dies[last[position]] if position in last else 0
                if ended >= 0:
                    since = max(draw.buffers.turned[buffer], ended) + offset
            last[position] = buffer
            holdings.append(Holding(row, number_of[position], since))
        elif buffer in origin:
            made = grown.made[origin[buffer]]
            labels[row] = made.category, made.role
    return holdings, labels


def _extra_rows(made: list[Made], total: int, allocator: str) -> pd.DataFrame:
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
