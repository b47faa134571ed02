"""Noted steps (``notes/``, made by ``analyze estimate``) against the sample traces of the same steps."""

from pathlib import Path

import numpy as np
import pytest

from analyzer.explain.replay_settings import WhatIf
from analyzer.model.choice import Category
from analyzer.model.contract.run_note import BirthNote, Input, VariableNote
from analyzer.model.errors import TraceError
from analyzer.model.recording.records import Kind
from analyzer.model.recording.schema import ALLOCATIONS, EVENTS
from analyzer.session.opening import explain
from analyzer.simulate.allocator.replay import compare, from_recording
from analyzer.simulate.kernels.kernel_device import HANDLE_BYTES
from analyzer.simulate.predict.predicted_recording import predict_note
from analyzer.simulate.predict.startup import find_shared_slots, play_startup
from analyzer.tracing.measure.measured_recording import open_measured
from analyzer.tracing.parse.run_folder import RunNote, read_run

NOTES = Path(__file__).parent / "notes"
TRACES = Path(__file__).parents[3] / "traces"


def predicted(name):
    return predict_note(read_run(NOTES / name / "run.json"))


def variable(path, category="parameter", shape=(16, 16)):
    return VariableNote(path, "float32", shape, category, "", True, None)


@pytest.mark.parametrize("name", ["infer", "cnn", "accumulation"])
def test_the_sample_traces_lie_in_the_stated_range(name):
    recording = predicted(name).recording
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
    assert estimate.peak.allocated_bytes == pytest.approx(trace.peak.allocated_bytes, rel=0.001)
    for category, size in trace.categories.items():
        assert estimate.categories[category] == pytest.approx(size, abs=0.001 * peak)


@pytest.mark.parametrize("name", ["infer", "cnn", "accumulation"])
def test_a_prediction_is_a_recording_like_any_other(name):
    made = predicted(name)
    recording = made.recording
    assert recording.kind is Kind.ESTIMATE
    assert list(recording.events) == list(EVENTS)
    assert list(recording.allocations) == list(ALLOCATIONS)
    assert len(recording.steps) == 3
    assert (recording.allocations["born"] >= 0).all()
    analysis = explain(made, WhatIf(), search=False)
    assert np.array_equal(analysis.line.allocated[1:], recording.events["in_use_bytes"])
    assert analysis.categories[Category.UNATTRIBUTED.value] == 0
    assert compare(from_recording(recording), recording.events).is_exact
    assert analysis.findings


def test_a_prediction_is_the_same_each_time():
    assert predicted("cnn").recording.events.equals(predicted("cnn").recording.events)


def test_a_note_without_a_graph_is_refused():
    with pytest.raises(TraceError, match="no graph"):
        predict_note(RunNote())


def test_slots_that_begin_equal_share_a_buffer():
    births = (
        BirthNote(0, ((0, 1024),), False, "zeros 16"),
        BirthNote(1, ((0, 1024),), True, "zeros 16"),
        BirthNote(2, ((0, 1024),), True, "zeros 16"),
        BirthNote(3, ((0, 1024),), True, "ones 16"),
    )
    assert find_shared_slots(births) == {2: 1}
    kinds = ("parameter", *["optimizer_state"] * 3)
    note = RunNote(
        variables=tuple(variable(f"v{k}", c) for k, c in enumerate(kinds)), births=births
    )
    grown = play_startup(note, [1024] * 4, {})
    assert grown.values[1] == grown.values[2] != grown.values[3]
    assert sum(made.size_bytes == HANDLE_BYTES for made in grown.buffers) == 4


def test_an_initializers_temporaries_are_gone_when_the_step_begins():
    events = ((0, 1024), (1, 1024), (2, 1024), (1, 0), (0, 0))
    birth = BirthNote(0, events, False, "uniform")
    note = RunNote(variables=(variable("kernel"),), births=(birth,))
    grown = play_startup(note, [1024], {7: 16})
    assert [made.dies is None for made in grown.buffers] == [False, False, True, True, True]
    assert grown.buffers[grown.values[0]].category is Category.PARAMETER
    assert grown.buffers[grown.constants[7]].category is Category.CONSTANT


def test_the_last_that_an_initializer_leaves_is_the_value_and_others_are_numbers():
    events = ((0, 8), (3, 8), (1, 16), (0, 0), (4, 4), (2, 1024), (1, 0))
    note = RunNote(
        variables=(variable("kernel"),), births=(BirthNote(0, events, False, "uniform"),)
    )
    grown = play_startup(note, [1024], {})
    assert grown.buffers[grown.values[0]].size_bytes == 1024
    numbers = [made for made in grown.buffers if made.role == "tensor held by Python"]
    assert [made.size_bytes for made in numbers if made.dies is None][:2] == [8, 4]


def test_what_the_traced_graph_keeps_is_resident():
    note = RunNote(kept_by_tracing=3, variables=(variable("kernel"),))
    kept = [made for made in play_startup(note, [1024], {}).buffers if "traced graph" in made.role]
    assert len(kept) == 3
    assert all(made.dies is None and made.category is Category.CONSTANT for made in kept)


def test_inputs_are_made_before_the_variables_of_a_model_that_is_built_late():
    births = tuple(BirthNote(k, ((0, 1024),), False, f"zeros {k}") for k in range(2))
    given = tuple(Input(name, "int32", (64,), None) for name in ("early", "late"))
    variables = (variable("kernel"), variable("bias"))
    for told, order in (({"inputs_after": (1, None)}, "v i v i"), ({}, "v v i i")):
        note = RunNote(**told, variables=variables, births=births, inputs=given)
        grown = play_startup(note, [1024] * 2, {})
        made = sorted([(n, "i") for n in grown.inputs] + [(n, "v") for n in grown.values.values()])
        assert " ".join(kind for _, kind in made) == order
        assert [grown.buffers[number].size_bytes for number in grown.inputs] == [256, 256]


def test_a_step_that_makes_slots_is_traced_twice():
    births = tuple(BirthNote(k, ((0, 1024),), k > 0, f"zeros {k}") for k in range(2))
    note = RunNote(
        kept_by_tracing=5,
        kept_by_slots=1,
        variables=(variable("kernel"), variable("velocity", "optimizer_state")),
        births=births,
    )
    grown = play_startup(note, [1024] * 2, {})
    kept = ["traced graph" in made.role for made in grown.buffers]
    slot = grown.values[1]
    assert (sum(kept[:slot]), sum(kept[slot:])) == (4, 2)


def test_small_variables_get_a_buffer_of_their_own_before_the_first_step():
    births = tuple(BirthNote(k, ((0, 80),), True, "zeros 20") for k in range(2))
    slots = [variable(f"slot{k}", "optimizer_state", (20,)) for k in range(2)]
    note = RunNote(variables=tuple(slots), births=births)
    grown = play_startup(note, [80] * 2, {})
    values = [grown.buffers[grown.values[k]] for k in range(2)]
    assert grown.values[0] != grown.values[1]
    assert [made.variable for made in values] == [0, 1]
    assert all(made.dies is None for made in values)
    assert sum(made.size_bytes == 80 and made.dies is None for made in grown.buffers) == 2
