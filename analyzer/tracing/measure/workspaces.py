"""Workspaces of convolutions: the algorithm, layout copies, and trials of algorithms.

cuDNN's kernels have the algorithm in their names. The workspace of an algorithm lives while its kernels
are launched. At its first call a convolution tries cuDNN's algorithms (``AutotuneUnfusedConv`` and
``AutotuneFusedConv`` in ``conv_ops_gpu.cc``): on a guarded copy of its result, which is left out without
memory for it (``WrapRedzoneBestEffort``), and with guards around each algorithm's workspace (16 MiB
without one). These requests bypass the op's context, so that they have no region in a trace.
"""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import CONVOLUTIONS
from analyzer.model.recording.schema import COPY_ROLE, TRIAL, TRIAL_ROLE, WORKSPACE
from analyzer.model.recording.timeline import HOST_ALLOCATORS
from analyzer.model.tables import read_table
from analyzer.tracing.derive.op_names import GUARDS_BYTES
from analyzer.tracing.parse.event_columns import split_annotation

_ALGORITHMS: Final = {
    name: re.compile(pattern)
    for name, pattern in read_table(
        "tracing/measure/cudnn_kernels.toml", dict[str, str]
    ).items()
}
"""cuDNN's algorithm -> part of its kernels' names; the first match counts."""


def label_workspaces(table: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """Return the attributed allocations with category and role of convolutions' scratch memory.

    ``kernels`` are launches: ``annotation``, ``kernel``, ``start_ps``.
    """
    table = mark_trials(table)
    on_card = ~table["allocator"].isin(list(HOST_ALLOCATORS))
    own = table["op_type"].isin(CONVOLUTIONS) & on_card
    if not own.any():
        return table
    is_trial = (
        own & table["region"].astype(str).isin(["", TRIAL]) & (table["born"] >= 0)
    )
    category, role = table["category"].astype(object), table["role"].astype(object)
    category[is_trial] = Category.WORKSPACE.value
    role[is_trial] = TRIAL_ROLE
    found = [
        split_annotation(text) or ("", "")
        for text in kernels["annotation"].cat.categories
    ]
    names = [op if op_type in CONVOLUTIONS else "" for op, op_type in found]
    ops = np.array([*names, ""], object)[kernels["annotation"].cat.codes.to_numpy()]
    starts, texts = (
        kernels["start_ps"].to_numpy(),
        kernels["kernel"].astype(str).to_numpy(),
    )
    launches = kernels.groupby(ops).indices
    is_workspace = (
        own & (category == Category.WORKSPACE.value) & ~is_trial & (role != COPY_ROLE)
    )

    for row in table.index[is_workspace]:
        if (
            calls := launches.get(str(table.at[row, "op"]).partition("#")[0])
        ) is not None:
            born, dies = table.at[row, "born_ps"], table.at[row, "dies_ps"]
            times = starts[calls]
            is_inside = (times >= born) & (
                times <= (times[-1] if pd.isna(dies) else dies)
            )
            algorithm = find_algorithm(texts[calls[is_inside]].tolist())
            role[row] = f"{role[row]}, {algorithm}" if algorithm else role[row]

    return table.assign(
        category=category.astype("category"), role=role.astype("category")
    )


def find_algorithm(kernels: Sequence[str]) -> str:
    """Return cuDNN's algorithm of some kernels; empty if unknown."""
    found = (
        name for name, part in _ALGORITHMS.items() if any(map(part.search, kernels))
    )
    return next(found, "")


def mark_trials(table: pd.DataFrame) -> pd.DataFrame:
    """Return the allocations with the regions of optional buffers set.

    TensorFlow skips copies and algorithms that do not fit, and can do without the chosen workspace.
    """
    of_convolution = table["op_type"].isin(CONVOLUTIONS)
    raw = of_convolution & (table["region"].astype(str) == "")
    requests = table[raw & (table["requested_bytes"] >= GUARDS_BYTES)].sort_values(
        "born"
    )
    copies = []

    for _, rows in requests.groupby(requests["op"].astype(str), sort=False):
        born, dies = rows["born"].to_numpy(), rows["dies"].to_numpy()
        # The op's next request of this kind is a workspace, which is freed before the copy.
        inside = np.append((born[1:] < dies[:-1]) & (dies[1:] < dies[:-1]), False)
        sizes = rows["requested_bytes"].to_numpy()
        larger = (
            sizes > sizes[~inside].min()
        )  # of the workspaces only the smallest is needed
        copies += rows.index[inside | larger].tolist()

    workspaces = of_convolution & (table["dtype"].astype(str) == "uint8")
    if not copies and not workspaces.any():
        return table
    region = table["region"].astype(object)
    region[copies] = TRIAL
    region[workspaces] = WORKSPACE

    return table.assign(region=region.astype("category"))
