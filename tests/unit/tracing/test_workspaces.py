from __future__ import annotations

import pandas as pd
import pytest

from analyzer.model.recording.records import TRIAL
from analyzer.tracing.measure.trace_attribution import mark_trials

MIB = 1 << 20

CONVOLUTION = [
    ("conv", "Conv2D", "output", 25 * MIB, 0, 90),
    ("conv", "Conv2D", "temp", 20 * MIB, 1, 8),
    ("conv", "Conv2D", "", 41 * MIB, 2, 7),
    ("conv", "Conv2D", "", 16 * MIB, 3, 4),
    ("conv", "Conv2D", "", 16 * MIB, 5, 6),
]


def table(*rows):
    names = ("op", "op_type", "region", "requested_bytes", "born", "dies")
    made = pd.DataFrame(rows, columns=names).assign(dtype="")
    return made.astype({"op": "category", "op_type": "category", "region": "category"})


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(
            CONVOLUTION,
            [2],
            id="a guarded copy outlives the workspaces that are tried beside it",
        ),
        pytest.param(
            CONVOLUTION[3:],
            [],
            id="where there was no room for a copy each workspace is needed",
        ),
        pytest.param(
            [
                ("left", "Conv2DBackpropFilter", "", 18 * MIB, 0, 6),
                ("right", "Conv2DBackpropFilter", "", 17 * MIB, 1, 5),
                ("left", "Conv2DBackpropFilter", "", 16 * MIB, 2, 3),
                ("right", "Conv2DBackpropFilter", "", 16 * MIB, 2, 4),
            ],
            [0, 1],
            id="two convolutions that try side by side are told apart",
        ),
    ],
)
def test_trials_of_algorithms(made, expected):
    marked = mark_trials(table(*made))
    assert marked.index[marked["region"].astype(str) == TRIAL].tolist() == expected
