from pathlib import Path

import numpy as np
import pandas as pd
from builders import TraceBuilder

import analyzer
from analyzer.model.recording.labels import Labels
from analyzer.tracing.measure.trace_attribution import _label_early, _label_lines
from analyzer.tracing.parse.run_folder import RunNote


def test_without_markers_the_peak_is_that_of_the_whole_trace(tmp_path: Path) -> None:
    # GIVEN a trace without step markers
    trace = TraceBuilder().allocate(1, 1, 512).allocate(2, 2, 256).free(3, 1).free(4, 2)
    # WHEN it is opened
    result = analyzer.open_trace(trace.write(tmp_path / "a.xplane.pb"))
    # THEN its peak is found all the same, and the report says what it is
    document = result.document
    assert document["steps"] == []
    assert document["peak"]["allocated_bytes"] == 768
    assert document["peak"]["step"] is None
    assert document["peak_ever"]["phase"] == "whole trace"
    assert any("no step markers" in warning for warning in document["warnings"])


def test_the_lines_of_a_tape_are_those_of_forward_ops() -> None:
    labels = Labels(3)
    table = pd.DataFrame({"op": "Mul", "step": 0, "requested_bytes": [8, 16, 8]})
    note = RunNote(source_lines={"Mul": "a.py:3", "Mul 16": "a.py:5"})
    _label_lines(labels, table, note, np.arange(3) < 2)
    assert [*labels.source] == ["a.py:3", "a.py:5", ""]


def test_an_activation_as_large_as_a_later_variable_is_not_of_its_building() -> None:
    # GIVEN an activation that is made between two variables of its size
    columns = {"born": [1, 2, 3], "dies": 9, "requested_bytes": 8, "op": "Relu"}
    labels = Labels(3)
    labels.variable[[0, 2]] = "kernel"
    labels.layer[1] = "dense"
    _label_early(labels, pd.DataFrame(columns))
    assert labels.category[1] == "activation"
