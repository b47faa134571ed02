from __future__ import annotations

import dataclasses

import pytest
from make_recording import Made, make_recording

from analyzer.explain.comparison import TIMELINE_COLUMNS, compare
from analyzer.model.contract.report.writing import convert_report, plain_report
from analyzer.model.recording.records import Kind


@pytest.fixture(scope="module")
def pair() -> tuple[Made, Made]:
    return make_recording(1200, kind=Kind.ESTIMATE), make_recording(2000, scale=1.4)


def test_every_grouping_adds_up_to_the_peaks(pair: tuple[Made, Made]) -> None:
    a, b = pair
    found = plain_report(compare(a.report, a.recording, b.report, b.recording))
    for grouping in ("categories", "layers", "ops"):
        for side, made in (("a_bytes", a), ("b_bytes", b)):
            assert (
                sum(row[side] for row in found[grouping])
                == made.document["peak"]["requested_bytes"]
            )
        assert all(row["delta_bytes"] == row["b_bytes"] - row["a_bytes"] for row in found[grouping])
    assert {row["change"] for row in found["layers"]} == {"came", "grew", "shrank"} | (
        {"went", "same"} & {row["change"] for row in found["layers"]}
    )
    assert found["a"]["label"] == "predicted"
    assert found["b"]["label"] == "measured"
    assert "(measured), " in found["headline"]
    assert found["headline"].partition(";")[0].endswith("(predicted)")


def test_a_recording_does_not_differ_from_itself(pair: tuple[Made, Made]) -> None:
    a, _ = pair
    found = plain_report(compare(a.report, a.recording, a.report, a.recording))
    assert "the same" in found["headline"]
    assert found["notes"] == []
    assert {row["change"] for row in (*found["layers"], *found["ops"])} == {"same"}


def test_the_curve_holds_the_peak(pair: tuple[Made, Made]) -> None:
    _, b = pair
    curve = plain_report(compare(b.report, b.recording, b.report, b.recording))["timelines"]["b"]
    assert max(curve["requested_bytes"]) == b.document["peak"]["requested_bytes"]
    assert len(curve["requested_bytes"]) <= TIMELINE_COLUMNS
    assert curve["progress_ratio"] == sorted(curve["progress_ratio"])


def test_numbering_apart_is_not_a_difference(pair: tuple[Made, Made]) -> None:
    a, _ = pair
    table = a.recording.allocations
    renumbered = table.assign(
        op=table["op"].astype(str).str.replace("/Conv2D", "/Conv2D_7").astype("category")
    )
    other = dataclasses.replace(a.recording, allocations=renumbered)
    found = plain_report(compare(a.report, a.recording, a.report, other))
    assert {row["change"] for row in found["ops"]} == {"same"}


def test_what_else_differs_is_said(pair: tuple[Made, Made]) -> None:
    a, b = pair
    other = {**b.document, "step": {**b.document["step"], "batch_size": 64}}
    found = plain_report(compare(a.report, a.recording, convert_report(other), b.recording))
    assert found["notes"] == ["Different settings: batch size 32 and 64."]
    assert found["b"]["label"] == "measured, batch 64"


def test_state_is_compared_by_its_variable_and_inputs_by_their_name(
    pair: tuple[Made, Made],
) -> None:
    a, _ = pair
    table = a.recording.allocations
    holds = table["variable"].astype(str) != ""
    fed = table["category"].astype(str) == "input"
    op = table["op"].astype(str).where(~(holds | fed), "SomeOtherOp")
    tensor = table["tensor"].astype(str).str.replace(":0", "", regex=False)
    other = dataclasses.replace(
        a.recording,
        allocations=table.assign(op=op.astype("category"), tensor=tensor.astype("category")),
    )
    found = plain_report(compare(a.report, a.recording, a.report, other))
    assert {row["change"] for row in found["ops"]} == {"same"}


def test_settings_that_a_trace_does_not_note_are_no_difference(pair: tuple[Made, Made]) -> None:
    # GIVEN the trace of another program, which notes no settings and runs other ops
    a, b = pair
    step = {**b.document["step"], "batch_size": None, "optimizer": "", "mode": ""}
    other = convert_report({**b.document, "step": step, "versions": {}})
    table = b.recording.allocations
    texts = {name: table[name].astype(str) for name in ("op", "variable", "tensor")}
    names = {name: "other_" + text.str.replace("/", "/other_") for name, text in texts.items()}
    foreign = dataclasses.replace(b.recording, allocations=table.assign(**names))
    # WHEN it is compared THEN only the ops differ
    found = plain_report(compare(a.report, a.recording, other, foreign))
    assert [note[:20] for note in found["notes"]] == ["0% of the bytes at t"]
