"""Which buffers of a trace a convolution does without where they do not fit.

At its first call a convolution tries cuDNN's algorithms (``AutotuneUnfusedConv`` and
``AutotuneFusedConv`` in ``conv_ops_gpu.cc``): on a guarded copy of its result, given up where there is
no room (``WrapRedzoneBestEffort``), and with guards round each algorithm's workspace, without which none
can be tried. These requests go past the op's context, so that a trace gives them no region:

    op              region  MiB
    conv            temp     20    the padded input
    conv                     42    the copy of a result of 26 with its guards: may be missing
    conv                     16    guards of the first algorithm's workspace, freed at once
    conv                     16    and of the second's
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.graph.ops import op_types
from analyzer.model.recording.schema import TRIAL

_CONVOLUTIONS: Final = op_types(
    """
    Conv2D Conv2DBackpropInput Conv2DBackpropFilter Conv3D Conv3DBackpropInputV2
    Conv3DBackpropFilterV2 _FusedConv2D
    """
)
_GUARDS_BYTES: Final = 2 * (8 << 20)
"""Before and behind a buffer (``kDefaultRedzoneSize`` in ``redzone_allocator.h``)."""


def mark_trials(table: pd.DataFrame) -> pd.DataFrame:
    """Return the allocations with the region of such copies set.

    Args:
        table: Columns of ``ALLOCATIONS``, attributed.
    """
    raw = table["op_type"].isin(_CONVOLUTIONS) & (table["region"].astype(str) == "")
    asked = table[raw & (table["requested_bytes"] >= _GUARDS_BYTES)].sort_values("born")
    copies = []
    for _, rows in asked.groupby(asked["op"].astype(str), sort=False):
        born, dies = rows["born"].to_numpy(), rows["dies"].to_numpy()
        # The next that the op asks for in this way is a workspace, which ends before the copy does.
        inside = np.append((born[1:] < dies[:-1]) & (dies[1:] < dies[:-1]), False)
        copies += rows.index[inside].tolist()
    if not copies:
        return table
    region = table["region"].astype(object)
    region[copies] = TRIAL
    return table.assign(region=region.astype("category"))
