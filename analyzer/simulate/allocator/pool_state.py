"""The pool at an instant and over a window, as columns ready to be drawn: address by time.

Free neighbours always merge, so the free chunks of a region are exactly the gaps between its
chunks in use. Everything here follows from a replay's columns; nothing is simulated again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from analyzer.model.errors import AccountingError, InputError
from analyzer.simulate.allocator.bfc.bfc_options import BfcOptions, round_up_all
from analyzer.simulate.allocator.replay import Replay
from analyzer.simulate.allocator.sequence import NOWHERE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]

CHUNKS: Final[dict[str, str]] = {
    "region": "number of the region, by address",
    "address": "first address of the chunk",
    "offset_bytes": "address less the region's",
    "size_bytes": "bytes of the chunk",
    "requested_bytes": "bytes that its owner asked for, 0 where it is free",
    "rounding_bytes": "bytes added by rounding the request to 256",
    "unsplit_bytes": "bytes more than the rounded request, since the chunk was not split",
    "buffer": "buffer that owns it, -1 where it is free",
    "row": "source row of that buffer, -1 where it has none",
}

REGIONS: Final[dict[str, str]] = {
    "address": "first address",
    "size_bytes": "bytes",
    "first_op": "operation that took it",
    "end_op": "operation at which it was given back, or the number of operations",
}


def region_table(replay: Replay) -> pd.DataFrame:
    """Return every region ever taken, with the columns of ``REGIONS``, in order of taking."""
    end = {(release.address, release.op): release for release in replay.releases}
    rows = []
    for extension in replay.extensions:
        ends = [op for address, op in end if address == extension.address and op >= extension.owner]
        rows.append(
            (
                extension.address,
                extension.size_bytes,
                extension.owner,
                min(ends, default=len(replay)),
            )
        )
    return pd.DataFrame(rows, columns=list(REGIONS), dtype="int64")


def op_at(replay: Replay, instant: int) -> int:
    """Return the last operation done at ``instant``; -1 where there is none yet.

    Raises:
        InputError: the replay ended before it.
    """
    if replay.failure is not None and instant >= replay.failure.instant:
        raise InputError(
            f"the replay failed at instant {replay.failure.instant}.",
            hint=f"Ask for an instant before it, not for {instant}.",
        )
    return int(np.searchsorted(replay.instant, instant, side="right")) - 1


def _bfc_options(replay: Replay) -> BfcOptions:
    if not isinstance(replay.options, BfcOptions):
        raise InputError(
            "an allocator like cuda_malloc_async shows no addresses.",
            hint="Replay with BfcOptions.",
        )
    return replay.options


def regions_at(replay: Replay, op: int) -> pd.DataFrame:
    """Return address and bytes of the regions just after operation ``op``, by address.

    Regions that lie end to end are one where the allocator joins them.
    """
    options = _bfc_options(replay)
    table = region_table(replay)
    table = table[(table["first_op"] <= op) & (op < table["end_op"])].sort_values("address")
    address, size = table["address"].to_numpy(), table["size_bytes"].to_numpy()
    group = np.arange(address.size)
    if options.coalesce_regions and address.size:
        starts = np.ones(address.size, bool)
        starts[1:] = address[1:] != (address + size)[:-1]
        group = np.cumsum(starts) - 1
    joined = pd.DataFrame({"group": group, "address": address, "size_bytes": size}).groupby("group")
    return joined.agg({"address": "min", "size_bytes": "sum"}).reset_index(drop=True)


def chunks_at(replay: Replay, op: int) -> pd.DataFrame:
    """Return the chunks just after operation ``op``, free ones included, by address.

    Args:
        replay: What an allocator did.
        op: Operation of the sequence (see ``op_at`` for an instant); -1 for none.

    Returns:
        A table with the columns of ``CHUNKS``.

    Raises:
        AccountingError: the chunks do not tile the pool.
    """
    regions = regions_at(replay, op)
    base, length = regions["address"].to_numpy(), regions["size_bytes"].to_numpy()
    buffer = _alive(replay, op)
    address, size = (column[buffer] for column in replay.buffers())
    order = np.argsort(address)
    buffer, address, size = buffer[order], address[order], size[order]
    # A gap before each chunk in use and one at the end of each region, then drop the empty ones.
    region_of = np.searchsorted(base, address, side="right") - 1
    starts = np.concatenate([base, address + size])
    ends = np.concatenate([address, base + length])
    starts.sort()
    ends.sort()
    gaps = ends > starts
    free, free_bytes = starts[gaps], (ends - starts)[gaps]
    table: pd.DataFrame = pd.DataFrame(
        {
            "region": np.concatenate([region_of, np.searchsorted(base, free, side="right") - 1]),
            "address": np.concatenate([address, free]),
            "size_bytes": np.concatenate([size, free_bytes]),
            "buffer": np.concatenate([buffer, np.full(free.size, NOWHERE)]),
        }
    ).sort_values("address", ignore_index=True)
    owner = table["buffer"].to_numpy()
    held = owner != NOWHERE
    requested = np.where(held, replay.sequence.requested_bytes[owner], 0)
    rounded = round_up_all(requested)
    table["requested_bytes"] = requested
    table["rounding_bytes"] = rounded - requested
    table["unsplit_bytes"] = np.where(held, table["size_bytes"] - rounded, 0)
    table["row"] = np.where(held, replay.sequence.row[owner], NOWHERE)
    table["offset_bytes"] = table["address"] - base[table["region"].to_numpy()]
    _check_tiles(table, int(length.sum()))
    return table.loc[:, list(CHUNKS)]


def _alive(replay: Replay, op: int) -> Table:
    """Return the buffers alive just after operation ``op``."""
    balance = np.zeros(replay.sequence.n_buffers, np.int64)
    slot, request = replay.sequence.slot[: op + 1], replay.sequence.request[: op + 1]
    np.add.at(balance, slot, np.where(request > 0, 1, -1))
    return np.flatnonzero(balance)


def _check_tiles(table: pd.DataFrame, pool_bytes: int) -> None:
    if int(table["size_bytes"].sum()) != pool_bytes or (table["unsplit_bytes"] < 0).any():
        raise AccountingError(
            f"chunks of {int(table['size_bytes'].sum())} bytes do not tile a pool of {pool_bytes}"
        )


def curve(replay: Replay) -> pd.DataFrame:
    """Return pool, allocated and requested bytes after each operation, with its instant."""
    return pd.DataFrame(
        {
            "instant": replay.instant,
            "requested_bytes": replay.requested_bytes,
            "allocated_bytes": replay.in_use_bytes,
            "pool_bytes": replay.pool_bytes,
            "largest_free_bytes": replay.largest_free_bytes,
        }
    )


def relocated(allocations: pd.DataFrame, replay: Replay) -> pd.DataFrame:
    """Return an allocations table as it would be under the replay's allocator.

    Addresses and allocated bytes are the replay's. Rows that were not replayed (other allocators,
    empty ones, those after a failure) are left out; those alive when it failed die at its instant.

    Args:
        allocations: The table that the replayed sequence was made from.
        replay: What an allocator did with it.
    """
    address, size = replay.buffers()
    placed = (size > 0) & (replay.sequence.row != NOWHERE)
    rows = replay.sequence.row[placed]
    result: pd.DataFrame = allocations.iloc[rows].copy()
    result["address"] = pd.array(address[placed], dtype="Int64")
    if isinstance(replay.options, BfcOptions):
        result["allocated_bytes"] = size[placed]
    else:
        result["address"] = pd.array([pd.NA] * len(result), dtype="Int64")
        result["allocated_bytes"] = result["requested_bytes"]
    if replay.failure is not None:
        result["dies"] = result["dies"].clip(upper=replay.failure.instant)
    return result
