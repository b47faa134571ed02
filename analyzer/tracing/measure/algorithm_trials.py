"""Buffers of convolutions' algorithm trials, which a convolution can do without.

At its first call a convolution tries cuDNN's algorithms (``AutotuneUnfusedConv`` and
``AutotuneFusedConv`` in ``conv_ops_gpu.cc``): on a guarded copy of its result, which is left out without
memory for it (``WrapRedzoneBestEffort``), and with guards around each algorithm's workspace. These
requests bypass the op's context, so that they have no region in a trace:

    op              region  MiB
    conv            temp     20    the padded input
    conv                     42    a guarded copy of a result of 26; optional
    conv                     16    guards of the first algorithm's workspace, freed at once
    conv                     16    guards of the second one's
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.graph.ops import CONVOLUTIONS
from analyzer.model.recording.schema import TRIAL

_GUARDS_BYTES: Final = 2 * (8 << 20)
"""Bytes before and after a buffer (``kDefaultRedzoneSize`` in ``redzone_allocator.h``)."""


def mark_trials(table: pd.DataFrame) -> pd.DataFrame:
    """Return the attributed allocations with the region of these copies set."""
    raw = table["op_type"].isin(CONVOLUTIONS) & (table["region"].astype(str) == "")
    requests = table[raw & (table["requested_bytes"] >= _GUARDS_BYTES)].sort_values("born")
    copies = []
    for _, rows in requests.groupby(requests["op"].astype(str), sort=False):
        born, dies = rows["born"].to_numpy(), rows["dies"].to_numpy()
        # The op's next request of this kind is a workspace, which is freed before the copy.
        inside = np.append((born[1:] < dies[:-1]) & (dies[1:] < dies[:-1]), False)
        copies += rows.index[inside].tolist()
    if not copies:
        return table
    region = table["region"].astype(object)
    region[copies] = TRIAL
    return table.assign(region=region.astype("category"))
