"""A predicted step of a card against TensorFlow's own GPU runtime on that card without the card.

``notes/brain/phantom.json`` says how its figures were recorded.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analyzer.contract.report.writing import plain_report
from analyzer.findings.replay_settings import WhatIf
from analyzer.opening import explain
from analyzer.parse.run_folder import read_run
from analyzer.predict.predicted_recording import predict_note
from analyzer.report.document import build_document

FOLDER = Path(__file__).parent / "notes" / "brain"
TRUTH = json.loads((FOLDER / "phantom.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def measured():
    return predict_note(read_run(FOLDER / "run.json"))


@pytest.fixture(scope="module")
def document(measured):
    return plain_report(build_document(explain(measured, WhatIf(), search=True)))


def requests(measured, step: int) -> dict[str, list[int]]:
    rows = measured.recording.allocations
    rows = rows[rows["step"] == step].sort_values("born")
    found: dict[str, list[int]] = {}
    for op, size in zip(rows["op"].astype(str), rows["requested_bytes"], strict=True):
        found.setdefault(op, []).append(int(size))
    return found


def test_the_peak_is_the_runtimes_but_for_scalars_that_python_holds(document):
    peak = document["peak"]
    assert abs(peak["requested_bytes"] - TRUTH["peak"]["requested_bytes"]) < 100
    assert peak["op"] == TRUTH["peak"]["op"]
    assert peak["allocated_bytes"] == pytest.approx(TRUTH["peak"]["allocated_bytes"], rel=0.01)


def test_every_convolution_and_pooling_asks_for_what_it_really_asks_for(measured):
    last = requests(measured, measured.recording.steps[-1].index)
    for op, sizes in TRUTH["last_step"].items():
        assert sorted(last[op]) == sorted(sizes), op


def test_the_first_step_tries_what_it_really_tries(measured, document):
    first = requests(measured, 0)
    for op, sizes in TRUTH["first_step"].items():
        notable = [sorted(s for s in asked if s > 1) for asked in (first[op], sizes)]
        assert notable[0] == notable[1], op
    ever = document["peak_ever"]["requested_bytes"]
    assert ever == pytest.approx(TRUTH["peak_ever_bytes"], rel=0.001)


def test_the_least_limit_has_room_for_the_first_steps_trials(document):
    """Of cards in steps of 1 MiB the runtime needs 41; with less it says "No algorithm worked!"."""
    least = document["fragmentation"]["minimum_limit_bytes"]
    assert TRUTH["least_mib"] - 1 < least / (1 << 20) <= TRUTH["least_mib"]
