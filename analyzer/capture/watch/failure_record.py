"""The live buffers at a failed allocation, from TensorFlow's own record of its memory pool.

With ``TF_BFC_MEMORY_DUMP`` set, a pool that cannot serve a request writes all its chunks to a file
(``BFCAllocator::MaybeWriteMemoryMap``). This costs nothing before. Variables and tensors that Python
holds are found by their addresses. The others are buffers of the failed step; ``explain`` finds them in
the traced steps.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from types import FrameType
from typing import Final

from analyzer.capture.private_names import bfc_memory_map_pb2
from analyzer.capture.run.step_variables import StepVariables
from analyzer.capture.watch.holders.live_holders import find_holders, find_live_tensors
from analyzer.capture.watch.script_launch import POOL_FOLDER
from analyzer.model.contract.run_note import Failure
from analyzer.model.contract.watch_note import MOST_ROWS, FailedStep, LiveChunk

_VARIABLE: Final = "TF_BFC_MEMORY_DUMP"

_HOST_POOLS: Final = ("cpu", "host")  # in the name of a pool beside a card's


class FailureRecord:
    """Lets TensorFlow record a full memory pool, and reads the record."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / POOL_FOLDER

    def begin(self) -> None:
        """Ask TensorFlow for records, unless the program does so itself."""
        if _VARIABLE not in os.environ:
            self._folder.mkdir()
            os.environ[_VARIABLE] = str(self._folder / "pool")

    def end(self) -> None:
        """Stop the records and remove them."""
        if os.environ.get(_VARIABLE) == str(self._folder / "pool"):
            del os.environ[_VARIABLE]
        shutil.rmtree(self._folder, ignore_errors=True)

    def read(
        self, failure: Failure, step: int, variables: StepVariables | None, frame: FrameType | None
    ) -> FailedStep | None:
        """Return the live buffers of the pool that became full last; None without a record.

        Local names are searched from ``frame`` on.
        """
        files = sorted(self._folder.glob("pool*"), key=lambda file: file.stat().st_mtime_ns)
        read = bfc_memory_map_pb2.MemoryDump.FromString
        pools = [read(file.read_bytes()) for file in files[-4:]]
        if not pools:
            return None
        cards = [
            one for one in pools if not any(word in one.allocator_name for word in _HOST_POOLS)
        ]
        live = [chunk for chunk in (cards or pools)[-1].chunk if chunk.in_use]
        names = _name_variables(variables)
        return FailedStep(
            step=step,
            message=failure.message,
            in_use_bytes=sum(chunk.size for chunk in live),
            chunks=tuple(
                LiveChunk(
                    address=chunk.address,
                    size_bytes=chunk.size,
                    requested_bytes=chunk.requested_size,
                    variable=names.get(chunk.address, ""),
                )
                for chunk in sorted(live, key=lambda chunk: -chunk.size)[:MOST_ROWS]
            ),
            held=tuple(find_holders(find_live_tensors(), frame)),
        )


def _name_variables(variables: StepVariables | None) -> dict[int | None, str]:
    """Return the path of each variable by the latest known address of its buffer."""
    if variables is None:
        return {}
    with contextlib.suppress(Exception):  # reading may need memory
        variables.snapshot()
    paths = [row.path for row in variables.rows()]
    return {key: path for one in variables.snapshots for key, path in zip(one, paths, strict=False)}
