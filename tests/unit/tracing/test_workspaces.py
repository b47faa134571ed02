import pandas as pd
import pytest

from analyzer.model.recording.records import TRIAL
from analyzer.tracing.measure.trace_attribution import mark_trials

MIB = 1 << 20

CONVOLUTION = [
    ("conv", "output", 25 * MIB, 0, 90),
    ("conv", "temp", 20 * MIB, 1, 8),
    ("conv", "", 41 * MIB, 2, 7),
    ("conv", "", 16 * MIB, 3, 4),
    ("conv", "", 16 * MIB, 5, 6),
]
SIDE_BY_SIDE = [
    ("left", "", 18 * MIB, 0, 6),
    ("right", "", 17 * MIB, 1, 5),
    ("left", "", 16 * MIB, 2, 3),
    ("right", "", 16 * MIB, 2, 4),
]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        # A guarded copy outlives the workspaces that are tried beside it.
        (CONVOLUTION, [2]),
        # Without memory for a copy each workspace is needed.
        (CONVOLUTION[3:], []),
        (SIDE_BY_SIDE, [0, 1]),
    ],
)
def test_trials_of_algorithms(made, expected):
    names = ("op", "region", "requested_bytes", "born", "dies")
    table = pd.DataFrame(made, columns=names)
    marked = mark_trials(table.assign(op_type="Conv2D", dtype=""))
    assert marked.index[marked["region"].astype(str) == TRIAL].tolist() == expected
