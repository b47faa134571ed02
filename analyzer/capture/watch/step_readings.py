"""Memory of a program as TensorFlow reports it: after its steps, its peaks, and when it ran out."""

import ctypes
import os
import re
import resource
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import tensorflow as tf

from analyzer.capture.private_names import bfc_memory_map_pb2
from analyzer.capture.run.live_objects import find_live_objects
from analyzer.capture.run.step_variables import StepVariables, find_variable_address
from analyzer.capture.watch.held_tensors import find_holders, find_live_tensors
from analyzer.capture.watch.holder_search import HolderSearch
from analyzer.capture.watch.script_launch import POOL_FOLDER, POOL_RECORDS
from analyzer.model.contract.run_note import (
    MOST_ROWS,
    FailedStep,
    Failure,
    LiveChunk,
    Reading,
)

_ALWAYS_READ = 64  # first steps that are all read
_MAX_READINGS = 1024  # number of readings at which every second one is dropped
_INTERVAL_S = 0.05  # between readings, which take about 50 us
_PAGE_BYTES = resource.getpagesize()


class StepReadings:
    """Bytes in use after steps, of the allocator and sometimes of the process."""

    def __init__(self) -> None:
        self.rows: list[Reading] = []
        self.peaks: tuple[
            int, ...
        ] = ()  # TensorFlow's own, of each GPU, else of the CPU
        self.process_peak = ProcessPeak()

        # gets each reading, for a view of the running script
        self.live_file: Path | None = None
        self._interval_s = _INTERVAL_S
        self._read_s = time.perf_counter()  # of the last reading
        self._devices: tuple[str, ...] = ()
        self.top_bytes = 0  # own peak so far

    @property
    def last_bytes(self) -> int:
        """Bytes in use at the last reading."""
        return self.rows[-1].in_use_bytes if self.rows else 0

    def read(self, step: int) -> bool:
        """Read the memory after a step, unless it was read a moment ago; return whether."""
        now_s = time.perf_counter()
        if step > _ALWAYS_READ and now_s - self._read_s < self._interval_s:
            return False

        self._read_s = now_s
        in_use_bytes = self._read_statistic("current")[0]
        host_bytes = _read_resident_bytes()
        self.rows.append(
            Reading(
                step=step,
                in_use_bytes=in_use_bytes,
                host_bytes=host_bytes or None,
            )
        )

        if len(self.rows) >= _MAX_READINGS:
            self.rows = self.rows[::2]
            self._interval_s *= 2

        if self.live_file is not None:
            peak_bytes = self._read_statistic("peak")[0]
            self.live_file.write_text(
                f"{step} {in_use_bytes} {peak_bytes} {host_bytes}"
            )

        return True

    def has_new_peak(self) -> bool:
        """Return whether the allocator's own peak has risen since the last call."""
        known = self.top_bytes
        self.top_bytes = max(self._read_statistic("peak")[0], known)
        return self.top_bytes > known

    def read_peaks(self) -> None:
        """Read TensorFlow's own peaks; those of before a reset count."""
        peaks = self._read_statistic("peak")
        self.peaks = tuple(map(max, peaks, self.peaks or peaks))

    def _read_statistic(self, name: str) -> list[int]:
        """Return a statistic of each GPU's allocator, else of the CPU's; 0 if it keeps none."""
        if not self._devices:
            count = len(tf.config.list_logical_devices("GPU"))
            gpus = [f"GPU:{number}" for number in range(count)]
            self._devices = tuple(gpus) or ("CPU:0",)

        values = []
        for device in self._devices:
            try:
                values.append(tf.config.experimental.get_memory_info(device)[name])
            except (ValueError, tf.errors.OpError):
                values.append(0)

        return values


class ProcessPeak:
    """The largest resident memory of a program, without the memory that its trace takes."""

    def __init__(self) -> None:
        self._early_bytes = 0  # largest before the traced steps
        self._begun_bytes = 0  # resident when they begin
        self._before_bytes = 0  # largest before the last pause
        self._resident_bytes = 0  # at the last pause
        self._added_bytes = 0  # what the pause left in the process
        self._is_paused = False

    def begin_steps(self) -> None:
        """Note that the traced steps begin, whose events fill the trace."""
        self._early_bytes = self.read()
        self._begun_bytes = _read_resident_bytes()

    def pause(self) -> None:
        """Stop to count, because work begins that is not the program's own."""
        if not self._is_paused:
            self._before_bytes = self.read()
            _return_free_memory()
            self._resident_bytes = _read_resident_bytes()
            self._is_paused = True

    def subtract_trace(self) -> None:
        """Take off what the profiler has freed since the pause: the events of the trace.

        The events of the steps before the traced ones are what the traced steps did not add. An early
        peak above the memory at the begin of the traced steps came before some of these events.
        """
        _return_free_memory()
        freed_bytes = max(self._resident_bytes - _read_resident_bytes(), 0)
        grown_bytes = self._resident_bytes - self._begun_bytes
        fallen_bytes = self._early_bytes - self._begun_bytes
        early_bytes = self._early_bytes

        if grown_bytes > 0:
            early_bytes -= max(freed_bytes - grown_bytes - fallen_bytes, 0)

        self._before_bytes = max(early_bytes, self._before_bytes - freed_bytes)

    def resume(self) -> None:
        """Count again; without a way to restart the system's figure, the count stays."""
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # proc(5)
            left_bytes = _read_resident_bytes() - self._resident_bytes
            self._added_bytes = max(left_bytes, 0)
            self._is_paused = False

    def read(self) -> int:
        """Return the largest resident memory so far; 0 if the system does not state it."""
        if self._is_paused:
            return self._before_bytes

        highest_bytes = _read_largest_bytes() - self._added_bytes
        return max(self._before_bytes, highest_bytes)


def _return_free_memory() -> None:
    """Return the free memory of the C library's heap to the system, if it can (``malloc_trim``)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _read_largest_bytes() -> int:
    """Return the largest resident memory of the process, or 0."""
    with suppress(OSError):
        status = Path("/proc/self/status").read_text()
        highest = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        if highest is not None:
            return int(highest[1]) * 1024

    return 0


def _read_resident_bytes() -> int:
    """Return the process' resident memory; 0 if the system does not state it."""
    with suppress(OSError):
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * _PAGE_BYTES

    return 0


_NEW_S = 2.0  # between a full pool and the error that it causes
_HOST_POOL = re.compile("cpu|host")  # in the name of a pool beside a card's


def _list_records() -> list[Path]:
    """Return TensorFlow's records of full pools, the latest last."""
    place = Path(os.environ.get(POOL_RECORDS) or os.devnull)
    files = [file for file in place.parent.glob(f"{place.name}?*") if file.is_file()]

    return sorted(files, key=lambda file: file.stat().st_mtime_ns)


def has_new_record() -> bool:
    """Return whether a pool could not serve a request a moment ago."""
    times_s = (file.stat().st_mtime for file in _list_records())
    return time.time() - max(times_s, default=0.0) < _NEW_S


def read_full_pool() -> Any:
    """Return TensorFlow's record (``MemoryDump``) of the pool that became full last, or None."""
    read = bfc_memory_map_pb2.MemoryDump.FromString
    pools = [read(file.read_bytes()) for file in _list_records()[-4:]]
    cards = [one for one in pools if not _HOST_POOL.search(one.allocator_name)]

    return next(reversed(cards or pools), None)


def find_pool_holders(pool: Any) -> Iterator[tuple[int, str, str]]:
    """Yield bytes of a full pool, their holder and its line: variables, Python's names, the step."""
    sizes = {chunk.address: chunk.size for chunk in pool.chunk if chunk.in_use}

    def take(addresses: Iterable[int | None]) -> int:
        return sum(sizes.pop(address, 0) for address in addresses)

    yield (
        take(map(find_variable_address, find_live_objects(tf.Variable))),
        "variables: weights, optimizer",
        "",
    )

    for held in find_holders(find_live_tensors(), HolderSearch(None)):
        yield take(held.addresses), held.holder, held.where

    yield take(list(sizes)), "the step: activations, gradients, workspace", ""


class FailureRecord:
    """The live buffers at a failed allocation, from TensorFlow's own record of its memory pool.

    Variables and tensors that Python holds are found by their addresses. The others are buffers of the
    failed step; ``explain`` finds them in the traced steps.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / POOL_FOLDER

    def begin(self) -> None:
        """Ask TensorFlow for records, unless the program does so itself."""
        if POOL_RECORDS not in os.environ:
            self._folder.mkdir()
            os.environ[POOL_RECORDS] = str(self._folder / "pool")

    def end(self) -> None:
        """Stop the records and remove them."""
        if os.environ.get(POOL_RECORDS) == str(self._folder / "pool"):
            del os.environ[POOL_RECORDS]

        shutil.rmtree(self._folder, ignore_errors=True)

    def read(
        self,
        failure: Failure,
        step: int,
        variables: StepVariables | None,
        frame: FrameType | None,
    ) -> FailedStep | None:
        """Return the buffers of the pool that became full last, and their holders from ``frame`` on."""
        pool = read_full_pool()
        if pool is None:
            return None

        live = [chunk for chunk in pool.chunk if chunk.in_use]
        live.sort(key=lambda chunk: -chunk.size)
        names = _name_variables(variables)
        chunks = [
            LiveChunk(
                address=chunk.address,
                size_bytes=chunk.size,
                requested_bytes=chunk.requested_size,
                variable=names.get(chunk.address, ""),
            )
            for chunk in live[:MOST_ROWS]
        ]

        return FailedStep(
            step=step,
            message=failure.message,
            in_use_bytes=sum(chunk.size for chunk in live),
            chunks=tuple(chunks),
            held=tuple(find_holders(find_live_tensors(), HolderSearch(frame))),
        )


def _name_variables(variables: StepVariables | None) -> dict[int | None, str]:
    """Return the path of each variable by the latest known address of its buffer."""
    if variables is None:
        return {}

    with suppress(Exception):  # reading may need memory
        variables.snapshot()

    paths = [row.path for row in variables.rows()]
    names: dict[int | None, str] = {}

    for addresses in variables.snapshots:
        names.update(zip(addresses, paths, strict=False))

    return names
