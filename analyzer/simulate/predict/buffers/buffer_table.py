"""A schedule's buffers as an allocations table, with addresses, chunks and events like a trace's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, Op
from analyzer.model.errors import AccountingError
from analyzer.model.recording.records import Step
from analyzer.model.recording.schema import ALLOCATIONS, EVENTS, WORKSPACE, conform
from analyzer.model.units import round_up
from analyzer.simulate.allocator import BfcOptions, Replay, from_allocations, replay
from analyzer.simulate.allocator import Sequence as Requests
from analyzer.simulate.allocator.replay import in_use_bytes
from analyzer.simulate.predict.buffers.variable_values import Buffers
from analyzer.simulate.predict.prepared_step import Prepared
from analyzer.simulate.predict.schedule import Schedule


def make_allocations(
    prepared: Prepared,
    schedule: Schedule,
    *,
    offset: int = 0,
    others: Iterable[Mapping[str, object]] = (),
) -> pd.DataFrame:
    """Return a schedule's buffers, then other rows, with the columns of ``ALLOCATIONS``.

    ``allocated_bytes`` is the request rounded up to the allocator's granularity, until a replay replaces
    it. Categories are those that follow from the graph: variables, constants, inputs, temporaries.

    Args:
        offset: The instant at which the schedule begins; not added to births.
        others: Values of other buffers, by column.
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
        described = {"category": str(_category(op, output)), "op": op.name, "op_type": op.type}
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


def _category(op: Op, output: int) -> Category:
    if op.type in ("Const", "HostConst", "ImmutableConst"):
        return Category.CONSTANT
    if op.type in ARGUMENT_TYPES or op.type == "Placeholder":
        is_handle = bool(op.outputs) and op.outputs[0].dtype == "resource"
        return Category.CONSTANT if is_handle else Category.INPUT
    return Category.TEMPORARY if output < 0 else Category.UNATTRIBUTED


def place(
    table: pd.DataFrame, instants: int, options: BfcOptions
) -> tuple[pd.DataFrame, pd.DataFrame, BfcOptions]:
    """Replay a table in the device's allocator.

    A table that exceeds its limit is replayed with one byte for each optional buffer that exceeds it, or
    else without a limit.
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
    address, chunk_bytes = result.buffers()
    addresses = np.zeros(len(table), dtype=np.int64)
    chunks = np.zeros(len(table), dtype=np.int64)
    addresses[sequence.row], chunks[sequence.row] = address, chunk_bytes
    placed = table.assign(address=pd.array(addresses, dtype="Int64"), allocated_bytes=chunks)
    return conform(placed, ALLOCATIONS), _events(placed, result), result.options


def measure_allocated(sequence: Requests, step: Step, options: BfcOptions) -> tuple[int, int]:
    """Return the highest bytes of chunks in a step, and the bytes of chunks before it."""
    in_use = in_use_bytes(sequence, options)
    if len(in_use) < len(sequence):
        in_use = in_use_bytes(sequence, options.unlimited())
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
