"""The moments inside a compiled step (events of kind 0) are none of the allocator's doings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from builders import sample_folder, sample_trace
from workloads import from_events, sample

from analyzer.explain.replay_settings import WhatIf
from analyzer.session.opening import explain
from analyzer.simulate.allocator.replay import compare, from_recording, recorded_options
from analyzer.tracing.measure.measured_recording import measure
from analyzer.tracing.parse.run_folder import read_run
from analyzer.tracing.parse.xplane import read_trace

PLANNED = Path(__file__).parents[1] / "predict" / "notes" / "jit" / "run.json"


def with_moments(events: pd.DataFrame, every: int = 7) -> pd.DataFrame:
    """Return the events with a moment after every seventh one."""
    source = np.sort(np.r_[np.arange(len(events)), np.arange(0, len(events), every)])
    grown = events.iloc[source].reset_index(drop=True)
    return grown.assign(
        kind=np.where(np.diff(source, prepend=-1) == 0, 0, grown["kind"]).astype("int8")
    )


def test_a_replay_passes_them_over() -> None:
    events = sample("graph")
    more = with_moments(events)
    plain, grown = (
        compare(from_events(events), events),
        compare(from_events(more), more),
    )
    assert plain.is_exact
    assert grown.is_exact
    assert grown.events == plain.events
    ours, theirs = from_events(with_moments(events)), from_events(events)
    assert np.array_equal(ours.request, theirs.request)
    assert ours.instant[-1] > theirs.instant[-1], (
        "instants are rows of the table that was given"
    )


def test_a_compiled_step_on_a_card_is_explained() -> None:
    # GIVEN the trace of a compiled step whose allocator is a card's, and the plan of its function
    raw, planned = read_trace(sample_trace("jit")), read_run(PLANNED)
    names = raw.events["allocator"].cat.rename_categories(["GPU_0_bfc"])
    raw = replace(raw, events=raw.events.assign(allocator=names))
    note = replace(
        read_run(sample_folder("jit") / "run.json"),
        compiled=planned.compiled,
        inside=planned.inside,
    )
    # WHEN it is opened and replayed
    measured = measure(raw, note, sample_trace("jit"))
    analysis = explain(measured, WhatIf(memory_limit_bytes=1 << 30), search=True)
    # THEN the moments of its plan are among the events, and the allocator is still told
    assert (measured.recording.events["kind"] == 0).any()
    sequence = from_recording(measured.recording)
    assert (
        recorded_options(sequence, measured.recording.events).memory_limit_bytes
        == 64 << 30
    )
    assert analysis.what_if.fits
    assert (
        analysis.fragmentation.minimum_limit_bytes > analysis.peak_ever.requested_bytes
    )
