"""The assumptions of a simulated card: their bytes at the peak, and the range from them."""

from __future__ import annotations

from dataclasses import asdict, replace

import pandas as pd
from msgspec import structs

from analyzer.explain.analysis import Analysis
from analyzer.model.choice import Category
from analyzer.model.contract.capture_request import (
    ASSUMPTIONS,
    BATCH_NORM_RESERVE,
    PRODUCT_WORKSPACE,
    RECURRENT_RESERVE,
    WORKSPACE,
    Assumption,
)
from analyzer.model.contract.report.peak_figures import StatedRange
from analyzer.model.contract.report.subject import AssumedSetting
from analyzer.model.recording.records import Kind
from analyzer.model.recording.schema import COPY_ROLE
from analyzer.model.units import format_bytes

_RECURRENT = "CudnnRNN"


def _assumed_settings(analysis: Analysis) -> tuple[AssumedSetting, ...]:
    """Return each assumption with its value and its bytes at the peak; empty for other kinds."""
    note = analysis.recording.phantom_run
    if note is None:
        return ()
    rows = []
    for one in ASSUMPTIONS:
        value = note.assumed.get(one.name, one.usual)
        share_bytes = _share(analysis.alive, one, value)
        rows.append(AssumedSetting(**asdict(one), value=value, share_bytes=share_bytes))
    return tuple(rows)


def with_assumed_range(analysis: Analysis) -> Analysis:
    """Return the analysis of a simulated card with the range from assumed reserve spaces.

    It is from no reserve space to twice the assumed one; cuDNN publishes no size. Workspaces are not in
    it: if one does not fit, TensorFlow uses an algorithm without one (``LaunchAutotunedConv`` in
    ``conv_ops_gpu.h``).
    """
    recording, peak = analysis.recording, analysis.peak
    if recording.kind is not Kind.PHANTOM or recording.phantom is None:
        return analysis
    settings = _assumed_settings(analysis)
    recording = replace(recording, phantom=structs.replace(recording.phantom, settings=settings))
    shares = {one.name: one.share_bytes for one in settings}
    reserve = shares.get(RECURRENT_RESERVE.name, 0)
    if reserve:
        requested, allocated = peak.requested_bytes, peak.allocated_bytes
        stated = StatedRange(
            limit_high_bytes=None,
            low_bytes=requested - reserve,
            high_bytes=requested + reserve,
            allocated_low_bytes=allocated - reserve,
            allocated_high_bytes=allocated + reserve,
            because=(
                f"cuDNN's reserve space for recurrent layers is assumed: {format_bytes(reserve)} at "
                "the peak; the range covers 0 to twice that size",
            ),
            deciding_ops=(),
            schedules=(),
            unsized=0,
        )
        recording = replace(recording, uncertainty=stated)
    return replace(analysis, recording=recording)


def _share(alive: pd.DataFrame, assumption: Assumption, value: int) -> int:
    """Return the bytes of an assumption that are alive at the peak."""
    kinds = alive["op_type"].astype(str)
    is_assumed = (alive["requested_bytes"] == value) & (value > 0)
    rows = {
        RECURRENT_RESERVE: (  # output 3: what the backward pass reads
            kinds.str.startswith(_RECURRENT)
            & ~kinds.str.contains("Backprop")
            & alive["tensor"].astype(str).str.endswith(":3")
        ),
        WORKSPACE: (alive["category"] == Category.WORKSPACE.value) & (alive["role"] != COPY_ROLE),
        PRODUCT_WORKSPACE: kinds.str.contains("MatMul") & is_assumed,
        BATCH_NORM_RESERVE: kinds.str.contains("BatchNorm") & is_assumed,
    }.get(assumption)
    return 0 if rows is None else int(alive["requested_bytes"][rows].sum())
