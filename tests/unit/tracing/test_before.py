"""A trace that began late: what was there before it, with and without a note of the variables."""

import dataclasses

import numpy as np
import pytest
from builders import opened_sample, sample_folder, sample_trace

from analyzer.model.recording.records import (
    Recording,
    alive_at,
    main_allocator_rows,
    sum_by_category,
    timeline,
)
from analyzer.tracing.measure.measured_recording import measure
from analyzer.tracing.parse.run_folder import read_run
from analyzer.tracing.parse.xplane import read_trace


def begun_late(name: str, *, noted: bool) -> Recording:
    """Return a sample without the events before the first note of the variables."""
    raw = read_trace(sample_trace(name))
    start = next(
        span.start_ps for span in raw.markers if span.name == "analyzer:snapshot"
    )
    events = raw.events[raw.events["time_ps"] >= start].reset_index(drop=True)
    note = read_run(sample_folder(name) / "run.json") if noted else None

    return measure(dataclasses.replace(raw, events=events), note, sample_trace(name))


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("name", ["cnn", "jit", "eager", "infer", "transformer"])
def test_bytes_in_use_equal_tensorflows_all_the_same(name: str, noted: bool) -> None:
    recording = begun_late(name, noted=noted)
    line = timeline(main_allocator_rows(recording), len(recording.events))
    assert np.array_equal(
        line.allocated[1:], recording.events["in_use_bytes"].to_numpy()
    )


@pytest.mark.parametrize("name", ["cnn", "jit", "eager", "infer"])
def test_variables_are_known_by_their_addresses(name: str) -> None:
    # GIVEN the same run traced from its start and from its first step
    both = begun_late(name, noted=True), opened_sample(name).recording
    # WHEN the last instants are compared
    late, full = (
        sum_by_category(alive_at(one.allocations, len(one.events) - 1)) for one in both
    )
    # THEN parameters and optimizer state are the same bytes
    assert late["parameter"] == full["parameter"] > 0
    assert late["optimizer_state"] == full["optimizer_state"]


@pytest.mark.parametrize("name", ["cnn", "infer"])
def test_inputs_are_known_by_their_addresses(name: str) -> None:
    both = begun_late(name, noted=True), opened_sample(name).recording
    late, full = (
        sum_by_category(alive_at(one.allocations, one.steps[-1].first)) for one in both
    )
    assert late["input"] == full["input"] > 0


@pytest.mark.parametrize(
    ("name", "least"), [("cnn", 0.99), ("lstm", 0.99), ("transformer", 0.7)]
)
def test_variables_are_known_without_a_note_and_none_is_invented(
    name: str, least: float
) -> None:
    """Nothing implies the size of the transformer's embedding."""
    noted, bare = (begun_late(name, noted=is_noted) for is_noted in (True, False))
    known, found = (
        sum_by_category(alive_at(one.allocations, len(one.events) - 1))
        for one in (noted, bare)
    )
    for category in ("parameter", "optimizer_state"):
        assert least * known[category] <= found[category] <= known[category]
