"""Regions and chunks of the pool after any operation of a replay.

Free neighbours are always merged, so the free chunks of a region are the gaps between its chunks in
use. All tables follow from the columns of the replay.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analyzer.model.errors import AccountingError
from analyzer.model.units import round_up
from analyzer.simulate.allocator.replay import Replay
from analyzer.simulate.allocator.sequence import NOWHERE


def region_table(replay: Replay) -> pd.DataFrame:
    """Return all regions in the order in which they were taken.

    Returns:
        A table of address, size_bytes, first_op (the operation that took the region) and end_op (the
        operation that gave it back, or the number of operations).
    """
    rows = []
    for extension in replay.extensions:
        address, op = extension.address, extension.owner
        ends = [one.op for one in replay.releases if one.address == address and one.op >= op]
        rows.append((address, extension.size_bytes, op, min(ends, default=len(replay))))
    return pd.DataFrame(
        rows, columns=["address", "size_bytes", "first_op", "end_op"], dtype="int64"
    )


def regions_at(replay: Replay, op: int) -> pd.DataFrame:
    """Return address and bytes of the regions after operation ``op``, by address.

    Adjacent regions are one region if the allocator joins them.
    """
    table = region_table(replay)
    table = table[(table["first_op"] <= op) & (op < table["end_op"])].sort_values("address")
    address, size = table["address"].to_numpy(), table["size_bytes"].to_numpy()
    group = np.arange(address.size)
    if replay.options.coalesce_regions and address.size:
        starts = np.ones(address.size, bool)
        starts[1:] = address[1:] != (address + size)[:-1]
        group = np.cumsum(starts) - 1
    joined = pd.DataFrame({"group": group, "address": address, "size_bytes": size}).groupby("group")
    return joined.agg({"address": "min", "size_bytes": "sum"}).reset_index(drop=True)


def chunks_at(replay: Replay, op: int) -> pd.DataFrame:
    """Return the chunks after operation ``op``, including free ones, by address.

    Args:
        op: Index of the operation; -1 for the empty pool.

    Returns:
        A table of region (index), address, size_bytes, requested_bytes (0 if free), rounding_bytes
        (added by rounding to 256), unsplit_bytes (added because the chunk was not split), buffer and
        source row (-1 if free).

    Raises:
        AccountingError: the chunks do not tile the pool.
    """
    regions = regions_at(replay, op)
    base, length = regions["address"].to_numpy(), regions["size_bytes"].to_numpy()
    sequence = replay.sequence
    balance = np.zeros(sequence.n_buffers, np.int64)
    births = np.where(sequence.request[: op + 1] > 0, 1, -1)
    np.add.at(balance, sequence.slot[: op + 1], births)
    buffer = np.flatnonzero(balance)
    address, size = (column[buffer] for column in replay.buffers())
    order = np.argsort(address)
    buffer, address, size = buffer[order], address[order], size[order]
    # There is a gap before each chunk in use and at the end of each region; most are empty.
    starts = np.sort(np.concatenate([base, address + size]))
    ends = np.sort(np.concatenate([address, base + length]))
    gaps = ends > starts
    table: pd.DataFrame = pd.DataFrame(
        {
            "address": np.concatenate([address, starts[gaps]]),
            "size_bytes": np.concatenate([size, (ends - starts)[gaps]]),
            "buffer": np.concatenate([buffer, np.full(int(gaps.sum()), NOWHERE)]),
        }
    ).sort_values("address", ignore_index=True)
    table["region"] = np.searchsorted(base, table["address"].to_numpy(), side="right") - 1
    owner = table["buffer"].to_numpy()
    is_used = owner != NOWHERE
    requested = np.where(is_used, sequence.requested_bytes[owner], 0)
    rounded = round_up(requested)
    table["requested_bytes"] = requested
    table["rounding_bytes"] = rounded - requested
    table["unsplit_bytes"] = np.where(is_used, table["size_bytes"] - rounded, 0)
    table["row"] = np.where(is_used, sequence.row[owner], NOWHERE)
    total, pool_bytes = int(table["size_bytes"].sum()), int(length.sum())
    if total != pool_bytes or (table["unsplit_bytes"] < 0).any():
        raise AccountingError(f"chunks of {total} bytes do not tile a pool of {pool_bytes}")
    return table
