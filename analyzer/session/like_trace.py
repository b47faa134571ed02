"""Read the figures of a trace that calibrate an estimate for the same card."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analyzer.cards import find_gpu
from analyzer.model.contract.categories import Category
from analyzer.model.contract.like_note import LikeNote, MeasuredConvolution
from analyzer.model.errors import InputError
from analyzer.simulate.predict.measured_workspaces import CONVOLUTION_KINDS

if TYPE_CHECKING:
    from analyzer.model.recording.records import Recording

_TRIAL: Final = "trial"


def read_like(path: Path, gpu: str = "") -> LikeNote:
    """Return the card, the limit and the workspaces of a trace; an empty ``gpu`` is the trace's own.

    Raises:
        InputError: the trace names no known card.
        TraceError: there is no readable trace.
    """
    from analyzer.tracing.measure.measured_recording import open_measured

    recording = open_measured(path).recording
    try:
        card = find_gpu(gpu or recording.device.name).id
    except InputError:
        raise InputError(
            f"{path} names no card of the catalogue ({recording.device.name}).",
            hint="Add --gpu NAME; `analyze gpus` lists all cards.",
        ) from None
    convolutions = _find_convolutions(recording)
    batches = Counter(one.shape[0] for one in convolutions if one.kind == "forward")
    return LikeNote(
        trace=str(path),
        card=card,
        memory_limit_bytes=recording.device.memory_limit_bytes,
        batch_size=batches.most_common(1)[0][0] if batches else None,
        convolutions=tuple(convolutions),
    )


def _find_convolutions(recording: Recording) -> list[MeasuredConvolution]:
    """Return the convolutions of the last step with any, in order of their first request."""
    table = recording.allocations
    table = table[
        (table["allocator"] == recording.allocator)
        & table["op_type"].isin(list(CONVOLUTION_KINDS))
        & (table["born"] >= 0)
    ]
    if table["step"].notna().any():
        table = table[table["step"] == table["step"].max()]
    found = []
    for op, rows in table.sort_values("born").groupby("op", observed=True, sort=False):
        outputs = rows[rows["region"] == "output"]
        shape = str(outputs["shape"].iloc[0]).strip("[]").split(",") if len(outputs) else [""]
        if not all(axis.isdecimal() for axis in shape):
            continue
        is_trial = rows["role"].astype(str).str.contains(_TRIAL)
        scratch = rows[(rows["category"] == Category.WORKSPACE.value) & ~is_trial].sort_values(
            "requested_bytes"
        )
        role = str(scratch["role"].iloc[-1]) if len(scratch) else ""
        found.append(
            MeasuredConvolution(
                op=str(op),
                kind=CONVOLUTION_KINDS[str(rows["op_type"].iloc[0])],
                shape=tuple(map(int, shape)),
                workspace_bytes=int(scratch["requested_bytes"].max()) if len(scratch) else 0,
                algorithm=role.partition(", ")[2],
            )
        )
    return found
