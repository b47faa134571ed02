"""Edges between CPU devices of one process, which the executor's graph has as pairs of ops.

TensorFlow cuts a graph that runs on several devices into one for each, with a ``_Send`` and a ``_Recv``
in the place of each edge between two (``graph_partition.cc``). Between CPU devices of one process both
hold one buffer (``IntraProcessRendezvous``: what lies in host memory on both sides is handed on as it
is), so that the edge is put back. Pairs with a card are left as they are: there the value is copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from analyzer.model.contract.graph_note import Op
from analyzer.model.graph.ops import op_types

_SENDS: Final = op_types("_Send _HostSend")
_RECEIVES: Final = op_types("_Recv _HostRecv")
_CPU: Final = "device:CPU:"


def with_device_edges(ops: Iterable[Op]) -> tuple[Op, ...]:
    """Return the graph with an edge in the place of each pair that hands a value from CPU to CPU."""
    listed = tuple(ops)
    sends = {key: op for op in listed if op.type in _SENDS and op.inputs and (key := _key(op))}
    receives = {
        op.name: sends[key] for op in listed if op.type in _RECEIVES and (key := _key(op)) in sends
    }
    if not receives:
        return listed
    gone = {*receives, *(send.name for send in receives.values())}

    def source(tensor: str) -> str:
        """Return the tensor that an input is, seen through every pair on its way."""
        for _ in receives:
            send = receives.get(tensor.rpartition(":")[0])
            if send is None:
                break
            tensor = send.inputs[0]
        return tensor

    def waits(op: Op) -> tuple[str, ...]:
        names = (source(f"{name}:0").rpartition(":")[0] for name in op.control_inputs)
        return tuple(dict.fromkeys(name for name in names if name not in gone))

    return tuple(
        replace(op, inputs=tuple(map(source, op.inputs)), control_inputs=waits(op))
        for op in listed
        if op.name not in gone
    )


def _key(op: Op) -> tuple[str, str, str] | None:
    """Return what a pair has in common; None where one of its devices is no CPU."""
    sent, received = (str(op.attrs.get(name, "")) for name in ("send_device", "recv_device"))
    if _CPU not in sent or _CPU not in received:
        return None
    return str(op.attrs.get("tensor_name", "")), sent, received
