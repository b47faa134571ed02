"""A predicted step of a card against TensorFlow's own GPU runtime on that card without the card.

``notes/brain/simulated_card.json`` says how its figures were recorded.
"""

import json
from functools import cache
from pathlib import Path

import pytest

from analyzer.model.contract.child_messages import WhatIf
from analyzer.model.contract.report_file import plain_report
from analyzer.report.document import build_document
from analyzer.session.opening import explain, open_result
from analyzer.simulate.predict.predicted_recording import predict_note
from analyzer.tracing.parse.run_folder import read_run

FOLDER = Path(__file__).parent / "notes" / "brain"
TRUTH = json.loads((FOLDER / "simulated_card.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def measured():
    return predict_note(read_run(FOLDER / "run.json"))


@pytest.fixture(scope="module")
def document(measured):
    return plain_report(build_document(explain(measured, WhatIf(), search=True)))


def requests(measured, step: int) -> dict[str, list[int]]:
    rows = measured.allocations
    rows = rows[rows["step"] == step].sort_values("born")
    found: dict[str, list[int]] = {}
    for op, size in zip(rows["op"].astype(str), rows["requested_bytes"], strict=True):
        found.setdefault(op, []).append(int(size))
    return found


def test_the_peak_is_the_runtimes_but_for_scalars_that_python_holds(document):
    peak = document["peak"]
    assert abs(peak["requested_bytes"] - TRUTH["peak"]["requested_bytes"]) < 100
    assert peak["op"] == TRUTH["peak"]["op"]
    assert peak["allocated_bytes"] == pytest.approx(
        TRUTH["peak"]["allocated_bytes"], rel=0.03
    )


def test_every_convolution_and_pooling_asks_for_what_it_really_asks_for(measured):
    last = requests(measured, measured.steps[-1].index)
    for op, sizes in TRUTH["last_step"].items():
        assert sorted(last[op]) == sorted(sizes), op


@pytest.mark.parametrize("asked_mib", [30, 41, 60, 4000])
def test_the_least_limit_is_the_same_whatever_limit_is_asked_about(asked_mib):
    verdict, least = verdict_under(asked_mib << 20), verdict_under(16 << 20)
    low, high = least["need_low_bytes"], least["need_high_bytes"]
    assert (verdict["need_low_bytes"], verdict["need_high_bytes"]) == (low, high)
    assert verdict["outcome"] == "fits"


def test_the_verdict_turns_at_the_ends_of_the_least_limit():
    """Under each limit the orders are played from the start."""
    least = verdict_under(16 << 20)
    low, high = least["need_low_bytes"], least["need_high_bytes"]
    assert verdict_under(high)["outcome"] == "fits"
    assert (
        verdict_under(low)["outcome"]
        == verdict_under(high - 256)["outcome"]
        == "cannot tell"
    )
    assert verdict_under(low - 256)["outcome"] == "does not fit"


@cache
def verdict_under(limit_bytes):
    asked = WhatIf(memory_limit_bytes=limit_bytes)
    return open_result(FOLDER, what_if=asked).document["verdict"]
