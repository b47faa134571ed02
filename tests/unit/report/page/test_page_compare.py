from dataclasses import replace

import pytest
from make_recording import Made, make_recording

from analyzer.explain.comparison import compare
from analyzer.model.contract.report_file import plain_report
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
        assert all(
            row["delta_bytes"] == row["b_bytes"] - row["a_bytes"]
            for row in found[grouping]
        )
    assert {row["change"] for row in found["layers"]} == {"came", "grew", "shrank"} | (
        {"went", "same"} & {row["change"] for row in found["layers"]}
    )
    assert "predicted" in found["a"]["label"]
    assert "measured" in found["b"]["label"]
    newer, _, older = found["headline"].partition(" than ")
    assert found["b"]["label"] in newer
    assert found["a"]["label"] in older


def test_a_recording_does_not_differ_from_itself(pair: tuple[Made, Made]) -> None:
    a, _ = pair
    found = plain_report(compare(a.report, a.recording, a.report, a.recording))
    assert " as much as " in found["headline"]
    assert found["notes"] == []
    assert {row["change"] for row in (*found["layers"], *found["ops"])} == {"same"}


def test_a_new_layer_is_not_the_one_before_its_number() -> None:
    before = make_recording(300)
    allocations = before.recording.allocations.copy()
    allocations["layer"] = (
        allocations["layer"]
        .astype(str)
        .replace("model/block0/conv1", "model/block0/conv0_1")
    )
    after = replace(before.recording, allocations=allocations)

    found = compare(before.report, before.recording, before.report, after)

    changes = {row.name: row.change for row in found.layers}
    assert changes["model/block0/conv0"] == "same"
    assert changes["model/block0/conv1"] == "went"
    assert changes["model/block0/conv0_1"] == "came"
