"""A schedule's buffers as an allocations table, with addresses, chunks and events like a trace's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import ARGUMENT_TYPES, Op
from analyzer.model.errors import AccountingError
from analyzer.model.recording.records import Step
from analyzer.model.recording.schema import ALLOCATIONS, EVENTS, WORKSPACE, conform
from analyzer.model.units import GRANULE_BYTES
from analyzer.simulate.allocator import BfcOptions, Engine, Replay, from_allocations, replay
from analyzer.simulate.allocator import Sequence as Requests
from analyzer.simulate.allocator.replay import in_use_bytes
from analyzer.simulate.predict.buffers.variable_values import Buffers
from analyzer.simulate.predict.prepared_step import Prepared
from analyzer.simulate.predict.schedule import Schedule


def make_allocations(prepared: Prepared, schedule: Schedule) -> pd.DataFrame:
    """Return a schedule's buffers with the columns of ``ALLOCATIONS``.

    ``allocated_bytes`` is the request rounded up to the allocator's granularity, until a replay replaces
    it. Categories are those that follow from the graph: variables, constants, inputs, temporaries.
    """
    buffers = schedule.buffers
    rows = rows_of(buffers)
    size = np.asarray([buffers.size_bytes[k] for k in rows], dtype=np.int64)
    dies = [buffers.dies[k] if buffers.dies[k] >= 0 else schedule.instants for k in rows]
    described = [_describe(prepared, buffers, k) for k in rows]
    born = np.asarray([buffers.born[k] for k in rows], dtype=np.int64)
    table = pd.DataFrame(
        {
            "allocator": prepared.device.allocator,
            "address": pd.NA,
            "requested_bytes": size,
            "allocated_bytes": -(-size // GRANULE_BYTES) * GRANULE_BYTES,
            "born": born,
            "dies": dies,
            "born_ps": pd.NA,
            "dies_ps": pd.NA,
            "step": _steps(born, schedule.steps),
            "run_id": 0,
            "region": [buffers.region[k] for k in rows],
            "turns_at": [buffers.turned[k] if buffers.turned[k] >= 0 else pd.NA for k in rows],
            "role": "",
            "layer": "",
            **{key: [row[key] for row in described] for key in described[0]},
        }
        if rows
        else {name: [] for name in ALLOCATIONS}
    )
    return conform(table, ALLOCATIONS)


def rows_of(buffers: Buffers) -> list[int]:
    """Return the buffers with bytes: the rows of the table, in its order."""
    return [k for k, size in enumerate(buffers.size_bytes) if size]


def find_unmodelled(prepared: Prepared) -> pd.DataFrame:
    """Return op types without a rule: ``op_type``, ``count``, ``bytes`` of their outputs."""
    bytes_by_type: dict[str, tuple[int, int]] = {}
    for node in prepared.kernels.unmodelled:
        op = prepared.wiring.ops[node]
        count, total = bytes_by_type.get(op.type, (0, 0))
        size = sum(spec.size_bytes or 0 for spec in op.outputs)
        bytes_by_type[op.type] = count + 1, total + size
    return pd.DataFrame(
        [(kind, count, size) for kind, (count, size) in sorted(bytes_by_type.items())],
        columns=["op_type", "count", "bytes"],
    )


def _steps(born: np.ndarray, steps: Sequence[tuple[int, int]]) -> list[object]:
    starts = np.asarray([first for first, _ in steps], dtype=np.int64)
    steps_of = np.searchsorted(starts, born, side="right") - 1
    return [int(n) if instant >= 0 else pd.NA for n, instant in zip(steps_of, born, strict=True)]


def _describe(prepared: Prepared, buffers: Buffers, row: int) -> Mapping[str, object]:
    node, output, variable = buffers.node[row], buffers.output[row], buffers.variable[row]
    op = prepared.wiring.ops[node] if node >= 0 else None
    spec = op.outputs[output] if op is not None and 0 <= output < len(op.outputs) else None
    # As in a trace, the buffer of a TensorList's handle is no tensor of the graph.
    is_tensor = op is not None and spec is not None and spec.dtype != "variant"
    dtype = "uint8" if buffers.region[row] == WORKSPACE else "" if spec is None else spec.dtype
    path, category = "", _category(op, output)
    if variable >= 0:
        owner = prepared.owners[variable]
        path, category = owner.path, owner.category
    return {
        "op": op.name if op is not None else "",
        "op_type": op.type if op is not None else "",
        "source": op.source if op is not None else "",
        "dtype": dtype,
        "shape": spec.shape_text if spec is not None else "",
        "tensor": f"{op.name}:{output}" if op is not None and is_tensor else "",
        "variable": path,
        "category": str(category),
    }


def _category(op: Op | None, output: int) -> Category:
    if op is None:
        return Category.UNATTRIBUTED
    if op.type in ("Const", "HostConst", "ImmutableConst"):
        return Category.CONSTANT
    if op.type in ARGUMENT_TYPES or op.type == "Placeholder":
        is_handle = bool(op.outputs) and op.outputs[0].dtype == "resource"
        return Category.CONSTANT if is_handle else Category.INPUT
    return Category.TEMPORARY if output < 0 else Category.UNATTRIBUTED


def place(
    table: pd.DataFrame, instants: int, options: BfcOptions | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, BfcOptions]:
    """Replay a table in the device's allocator.

    Args:
        options: The allocator; None for the CPU's. A table that exceeds its limit is replayed
            without one.
    """
    sequence = from_allocations(table, n_events=instants)
    if not np.array_equal(sequence.instant, np.arange(instants)):
        raise AccountingError("the prediction misses an instant or uses one twice")
    options = options or BfcOptions.cpu()
    result = replay(sequence, options)
    if result.failure is not None and sequence.spare.any():
        table = _skip_trials(table, sequence, options.memory_limit_bytes)
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


def _skip_trials(table: pd.DataFrame, sequence: Requests, limit_bytes: int) -> pd.DataFrame:
    """Return the table with one byte for each optional buffer that exceeds a limit."""
    over = sequence.spare[sequence.slot] & (sequence.live_requested_bytes() > limit_bytes)
    skipped = sequence.row[np.unique(sequence.slot[over & (sequence.request > 0)])]
    sizes = table["requested_bytes"].to_numpy().copy()
    sizes[skipped] = 1
    return table.assign(requested_bytes=sizes)


def measure_allocated(
    sequence: Requests, step: Step, options: BfcOptions, *, engine: Engine = Engine.AUTO
) -> tuple[int, int]:
    """Return the highest bytes of chunks in a step, and the bytes of chunks before it."""
    in_use = in_use_bytes(sequence, options, engine=engine)
    if len(in_use) < len(sequence):
        in_use = in_use_bytes(sequence, options.unlimited(), engine=engine)
    first, end = np.searchsorted(sequence.instant, (step.first, step.last + 1))
    before = int(in_use[first - 1]) if first else 0
    return int(in_use[first:end].max(initial=before)), before


def _events(table: pd.DataFrame, result: Replay) -> pd.DataFrame:
    sequence = result.sequence
    rows = sequence.row[sequence.slot]
    limit = result.options.memory_limit_bytes
    chosen = table.iloc[rows]
    count = len(sequence)
    return conform(
        pd.DataFrame(
            {
                "time_ps": np.arange(count, dtype=np.int64),
                "kind": np.where(sequence.request > 0, 1, -1),
                "allocator": chosen["allocator"].to_numpy(),
                "address": result.address,
                "requested_bytes": chosen["requested_bytes"].to_numpy(),
                "allocated_bytes": result.chunk_bytes,
                "in_use_bytes": result.in_use_bytes,
                "available_bytes": limit - result.in_use_bytes,
                "peak_in_use_bytes": np.maximum.accumulate(result.in_use_bytes),
                "fragmentation": np.nan_to_num(result.fragmentation),
                "op": chosen["op"].astype(object).to_numpy(),
                "run_id": 0,
                "region": chosen["region"].astype(object).to_numpy(),
                "dtype": chosen["dtype"].astype(object).to_numpy(),
                "shape": chosen["shape"].astype(object).to_numpy(),
                "thread": 0,
            }
        ),
        EVENTS,
    )
