from __future__ import annotations

import pandas as pd

from analyzer.measure.algorithm_trials import with_trials
from analyzer.recording.schema import TRIAL

MIB = 1 << 20


def table(*rows):
    names = ("op", "op_type", "region", "requested_bytes", "born", "dies")
    made = pd.DataFrame(rows, columns=names)
    return made.astype({"op": "category", "op_type": "category", "region": "category"})


def trials(made):
    return made.index[with_trials(made)["region"].astype(str) == TRIAL].tolist()


def test_a_guarded_copy_outlives_the_workspaces_that_are_tried_beside_it():
    made = table(
        ("conv", "Conv2D", "output", 25 * MIB, 0, 90),
        ("conv", "Conv2D", "temp", 20 * MIB, 1, 8),
        ("conv", "Conv2D", "", 41 * MIB, 2, 7),
        ("conv", "Conv2D", "", 16 * MIB, 3, 4),
        ("conv", "Conv2D", "", 16 * MIB, 5, 6),
    )
    assert trials(made) == [2]


def test_where_there_was_no_room_for_a_copy_each_workspace_is_needed():
    made = table(
        ("conv", "Conv2D", "output", 25 * MIB, 0, 90),
        ("conv", "Conv2D", "", 16 * MIB, 3, 4),
        ("conv", "Conv2D", "", 16 * MIB, 5, 6),
    )
    assert trials(made) == []


def test_only_convolutions_try_algorithms_on_a_copy():
    made = table(("tanh", "Tanh", "", 64 * MIB, 0, 9), ("tanh", "Tanh", "", 16 * MIB, 1, 2))
    assert trials(made) == []


def test_two_convolutions_that_try_side_by_side_are_told_apart():
    made = table(
        ("left", "Conv2DBackpropFilter", "", 18 * MIB, 0, 6),
        ("right", "Conv2DBackpropFilter", "", 17 * MIB, 1, 5),
        ("left", "Conv2DBackpropFilter", "", 16 * MIB, 2, 3),
        ("right", "Conv2DBackpropFilter", "", 16 * MIB, 2, 4),
    )
    assert trials(made) == [0, 1]
