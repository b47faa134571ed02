"""Noted steps (``notes/``, made by ``analyze estimate``) against the sample traces of the same steps."""

from pathlib import Path

import numpy as np
import pytest

from analyzer.model.contract.child_messages import WhatIf
from analyzer.model.contract.fields import Category
from analyzer.model.errors import TraceError
from analyzer.session.opening import explain
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.replay import compare, from_recording
from analyzer.simulate.predict.predicted_recording import predict_note
from analyzer.tracing.measure.measured_recording import open_measured
from analyzer.tracing.parse.run_folder import RunNote, read_run

NOTES = Path(__file__).parent / "notes"
TRACES = Path(__file__).parents[3] / "traces"


def predicted(name):
    return predict_note(read_run(NOTES / name / "run.json"))


@pytest.mark.parametrize("name", ["infer", "cnn", "accumulation"])
def test_the_sample_traces_lie_in_the_stated_range(name):
    recording = predicted(name)
    analysis = explain(open_measured(TRACES / name), WhatIf(), search=False)
    stated = recording.uncertainty
    assert stated.low_bytes <= analysis.peak.requested_bytes <= stated.high_bytes
    low, high = 0.95 * stated.allocated_low_bytes, 1.05 * stated.allocated_high_bytes
    assert low <= analysis.peak.allocated_bytes <= high


def test_inference_is_predicted_to_the_category():
    estimate = explain(predicted("infer"), WhatIf(), search=False)
    trace = explain(open_measured(TRACES / "infer"), WhatIf(), search=False)
    peak = trace.peak.requested_bytes
    assert estimate.peak.requested_bytes == pytest.approx(peak, rel=0.001)
    assert estimate.peak.allocated_bytes == pytest.approx(
        trace.peak.allocated_bytes, rel=0.001
    )
    for category, size in trace.categories.items():
        assert estimate.categories[category] == pytest.approx(size, abs=0.001 * peak)


@pytest.mark.parametrize("name", ["infer", "cnn", "accumulation"])
def test_a_prediction_is_a_recording_like_any_other(name):
    recording = predicted(name)
    assert (recording.allocations["born"] >= 0).all()
    analysis = explain(recording, WhatIf(), search=False)
    assert np.array_equal(analysis.line.allocated[1:], recording.events["in_use_bytes"])
    assert analysis.categories[Category.UNATTRIBUTED.value] == 0
    check, _ = compare(from_recording(recording), recording.events, BfcOptions.cpu())
    assert check.is_exact


def test_a_prediction_is_the_same_each_time():
    assert predicted("cnn").events.equals(predicted("cnn").events)


def test_a_note_without_a_graph_is_refused():
    with pytest.raises(TraceError, match="no graph"):
        predict_note(RunNote())
