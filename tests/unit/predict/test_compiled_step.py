"""A step compiled with XLA (``notes/jit``) against the sample trace of the same step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analyzer.explain.replay_settings import WhatIf
from analyzer.model.choice import Category
from analyzer.model.recording.schema import IDLE_ROLE
from analyzer.model.recording.timeline import main_allocator_rows
from analyzer.session.opening import explain
from analyzer.simulate.allocator.replay import from_recording
from analyzer.simulate.predict.predicted_recording import predict_note
from analyzer.tracing.measure.measured_recording import Measured, open_measured
from analyzer.tracing.parse.run_folder import read_run
from analyzer.tracing.xla.plan_contents import build_plans

NOTE = Path(__file__).parent / "notes" / "jit" / "run.json"
TRACE = Path(__file__).parents[3] / "traces" / "jit"


@pytest.fixture(scope="module")
def predicted() -> Measured:
    return predict_note(read_run(NOTE))


@pytest.fixture(scope="module")
def traced() -> Measured:
    return open_measured(TRACE)


def test_the_peaks_are_those_of_the_real_run(
    predicted: Measured, traced: Measured
) -> None:
    estimate = explain(predicted, WhatIf(), search=False)
    trace = explain(traced, WhatIf(), search=False)
    for ours, real in (
        (estimate.peak, trace.peak),
        (estimate.peak_ever, trace.peak_ever),
    ):
        assert ours.requested_bytes == pytest.approx(real.requested_bytes, rel=0.001)
        assert ours.allocated_bytes == pytest.approx(real.allocated_bytes, rel=0.01)


def test_the_allocator_is_asked_for_what_the_real_one_was(
    predicted: Measured, traced: Measured
) -> None:
    """Every request of the last step, in order: the table of results, the loss, the temporaries."""
    requests = []
    for measured in (predicted, traced):
        sequence = from_recording(measured.recording)
        last = measured.recording.steps[-1]
        inside = (sequence.instant >= last.first) & (sequence.instant <= last.last)
        requests.append([int(size) for size in sequence.request[inside] if size])
    ours, real = requests
    assert ours == real


def test_the_first_step_copies_the_slots_that_share_a_buffer(
    predicted: Measured, traced: Measured
) -> None:
    def made(measured: Measured) -> list[tuple[str, int]]:
        rows = measured.recording.allocations
        first = rows[(rows["step"] == 0) & (rows["variable"] != "")]
        first = first[first["requested_bytes"] > 64].sort_values(
            "born"
        )  # smaller ones are moved
        return [
            (str(path), int(size))
            for path, size in zip(
                first["variable"], first["requested_bytes"], strict=True
            )
        ]

    assert made(predicted) == made(traced)


def test_the_parts_add_up_to_the_buffer_at_every_instant(predicted: Measured) -> None:
    recording = predicted.recording
    table = recording.allocations
    parts = table[table["part_of"].notna()]
    assert len(parts)
    for whole, inside in parts.groupby("part_of"):
        row = table.loc[whole]
        for column in ("requested_bytes", "allocated_bytes"):
            change = np.zeros(len(recording.events) + 1, dtype=np.int64)
            np.add.at(change, inside["born"].to_numpy(), inside[column].to_numpy())
            np.subtract.at(change, inside["dies"].to_numpy(), inside[column].to_numpy())
            alive = np.cumsum(change)[int(row["born"]) : int(row["dies"])]
            assert (alive == row[column]).all(), column


def test_the_peak_is_shown_where_the_buffer_is_fullest(predicted: Measured) -> None:
    analysis = explain(predicted, WhatIf(), search=False)
    plan = next(iter(build_plans(read_run(NOTE)).values()))
    idle = int(
        analysis.alive.loc[analysis.alive["role"] == IDLE_ROLE, "requested_bytes"].sum()
    )
    (region,) = plan.temporaries
    assert idle == region.size_bytes - region.peak_bytes
    inside = analysis.alive[analysis.alive["instruction"] != ""]
    assert int(inside["requested_bytes"].sum()) == region.peak_bytes
    assert {Category.ACTIVATION.value, Category.TEMPORARY.value} <= set(
        inside["category"]
    )
    assert set(inside["layer"]) >= {"mlp/dense", "mlp/dense_1"}


def test_a_compiled_step_leaves_no_order_open(predicted: Measured) -> None:
    stated = predicted.recording.uncertainty
    assert all(
        row.requested_low_bytes == row.requested_high_bytes for row in stated.schedules
    )
    assert predicted.recording.unmodelled == ()
    rows = main_allocator_rows(predicted.recording)
    assert not rows.index.isin(rows["part_of"].dropna()).any()
