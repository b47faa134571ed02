"""What Python holds when the traced steps of a program have ended."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from analyzer.capture.run.tensor_addresses import find_address
from analyzer.capture.watch.data_ledger import DataLedger
from analyzer.capture.watch.function_ledger import FunctionLedger
from analyzer.capture.watch.holders.holder_search import HolderSearch
from analyzer.capture.watch.holders.host_containers import find_grown_containers
from analyzer.capture.watch.holders.live_holders import (
    count_tensor_bytes,
    find_holders,
    find_live_tensors,
    find_new_tensors,
)
from analyzer.model.contract.watch_note import HeldTensors, LargeConstant, TapesNote

if TYPE_CHECKING:
    from analyzer.capture.watch.steps.traced_window import Window

_NAMED: Final = 64
"""Tensors from before the traced steps whose holders are looked for, the largest."""

_HELD_BYTES: Final = 1 << 20
"""Tensors from this size on that live through all traced steps are noted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldAfterSteps:
    """What is held between the last traced step and the next.

    Attributes:
        held: What Python holds of the tensors that the traced steps made.
        on_host: Containers that got NumPy arrays, bytes or texts in each traced step.
        tapes: Gradient tapes that still hold what they recorded.
        constants: Large tensors that lived through all traced steps, and constants of graphs.
    """

    held: tuple[HeldTensors, ...] = ()
    on_host: tuple[HeldTensors, ...] = ()
    tapes: tuple[TapesNote, ...] = ()
    constants: tuple[LargeConstant, ...] = ()


def held_after_steps(
    window: Window,
    containers: Mapping[int, int],
    functions: FunctionLedger,
    data: DataLedger,
) -> HeldAfterSteps:
    """Look at what Python holds now; called between two steps, when the trace has been closed.

    Args:
        window: The traced steps; what they found resident gets the names that hold it.
        containers: Containers of host memory before the steps, as
            ``count_host_containers`` returns them.
        functions, data: What the program has called and made.
    """
    frame = sys._getframe(1)  # not this one: it would hold itself
    made = find_new_tensors(window.before)
    held = tuple(find_holders(made, frame))
    made_ids = {id(one) for one in made}
    del made
    search = HolderSearch(frame)
    return HeldAfterSteps(
        held=held,
        on_host=tuple(find_grown_containers(containers, window.done, search)),
        tapes=tuple(data.tapes(search)),
        constants=(*_resident(window, made_ids), *functions.constants()),
    )


def _resident(window: Window, made: set[int]) -> list[LargeConstant]:
    """Return the large tensors that lived through all traced steps, and name them in the window."""
    large = sorted(
        (tensor for tensor in find_live_tensors() if id(tensor) not in made),
        key=count_tensor_bytes,
        reverse=True,
    )[:_NAMED]
    dtypes = {find_address(tensor): tensor.dtype.name for tensor in large}
    rows = find_holders(large, inspect.currentframe())
    names = {address: row.holder for row in rows for address in row.addresses}
    for key, one in window.resident.items():
        if one.address in names:
            window.resident[key] = replace(one, name=names[one.address])
    rows = _each_once([row for row in rows if row.size_bytes >= _HELD_BYTES])
    return [
        LargeConstant(
            kind="held",
            where=row.where,
            dtype=dtypes.get(row.addresses[0], "") if row.addresses else "",
            shape=row.shapes[0] if row.shapes else None,
            size_bytes=row.size_bytes,
            name=row.holder,
            copies=row.count,
        )
        for row in rows
    ]


def _each_once(rows: list[HeldTensors]) -> list[HeldTensors]:
    """Return the rows without those whose tensors a name, or a larger holder, holds too."""
    known: set[int] = set()
    kept = []
    for row in sorted(rows, key=lambda one: (one.grows, -one.size_bytes)):
        if not row.addresses or not known.issuperset(row.addresses):
            kept.append(row)
            known.update(row.addresses)
    return sorted(kept, key=lambda one: -one.size_bytes)
