"""The order of ops on each thread, and the op that ran before each free.

An op's inputs are released when its kernel has been launched (``ExecutorState::Process`` in
``executor.cc``), on the same thread. The op before a free on that thread is therefore the buffer's last
user, unless the thread runs ops without any event (in place, without a kernel in the trace). If other
threads began several ops since then, the op that began last on any thread shows only the time of the
free.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.recording.schema import TextNumbers
from analyzer.tracing.parse.wire.plane_names import split_annotation
from analyzer.tracing.parse.xplane import RawTrace

RECEIVED: Final = "SameWorkerRecvDone"
"""Name that the allocator gets for a copy between devices (``rendezvous_mgr.cc``)."""
_MOST_LATER: Final = 4
"""Limit of the ops that other threads begin between an op and the free of its input."""
_COPIES: Final = ("_Send", "_Recv", "_HostSend", "_HostRecv")


class OpSequence:
    """The ops of a trace by thread and time, from allocations, launches and executor events."""

    def __init__(self, raw: RawTrace, eager: frozenset[str], starts: npt.NDArray[np.int64]) -> None:
        """Collect the ops of ``raw``.

        Args:
            eager: Types of eager ops. Their runs are numbered in each step: ``Conv2D#7``.
            starts: Start of each step in picoseconds.
        """
        events, kernels, runs = raw.events, raw.kernels, raw.op_runs
        born = (events["kind"] > 0).to_numpy() & (~events["op"].isin(["", RECEIVED])).to_numpy()
        launched = (kernels["thread"] > 0).to_numpy()
        annotations = kernels["annotation"].cat.categories
        self._texts = TextNumbers("")
        of_annotation = [self._texts.of(_launcher(text)) for text in annotations]
        of_event = [self._texts.of(text) for text in events["op"].cat.categories]
        of_run = [self._texts.of(text) for text in runs["op"].cat.categories]
        parts = (
            _part(events, "time_ps", "op", of_event, born),
            _part(kernels, "start_ps", "annotation", of_annotation, launched),
            _part(runs, "start_ps", "op", of_run, np.ones(len(runs), bool)),
        )
        time, thread, op = (np.concatenate(each) for each in zip(*parts, strict=True))
        known = op > 0
        order = np.lexsort((time[known], thread[known]))
        self._time, self._thread, self._op = (each[known][order] for each in (time, thread, op))
        self._number_eager(eager, starts)
        self._names = self._texts.texts

    def _number_eager(self, eager: frozenset[str], starts: npt.NDArray[np.int64]) -> None:
        """Give each run of an eager op a name of its own."""
        is_eager = np.array([text in eager for text in self._texts.texts], bool)[self._op]
        if not is_eager.any():
            return
        texts = self._texts.texts
        begins = np.ones(len(self._op), bool)
        begins[1:] = (np.diff(self._op) != 0) | (np.diff(self._thread) != 0)
        step = np.searchsorted(starts, self._time, side="right")
        counts: dict[int, int] = {}
        name = 0
        for at in np.flatnonzero(is_eager).tolist():
            if begins[at]:
                counts[int(step[at])] = number = counts.get(int(step[at]), 0) + 1
                name = self._texts.of(f"{texts[self._op[at]]}#{number}")
            self._op[at] = name

    def before(
        self, thread: npt.NDArray[np.int64], time: npt.NDArray[np.int64]
    ) -> list[tuple[str, bool]]:
        """Return the op before each free (empty for none), and whether it is the freeing thread's."""
        found = [("", False)] * len(thread)
        begun = np.sort(self._time)
        latest = self._op[np.argsort(self._time, kind="stable")]
        count = np.searchsorted(begun, time, side="left")
        for number in np.unique(thread).tolist():
            first, last = np.searchsorted(self._thread, [number, number + 1])
            if first == last:
                continue
            rows = np.flatnonzero(thread == number)
            place = first + np.searchsorted(self._time[first:last], time[rows], side="left") - 1
            for row, at in zip(rows.tolist(), place.tolist(), strict=True):
                before = int(count[row])
                own = at >= first and before - np.searchsorted(begun, self._time[at], "right")
                if at >= first and own < _MOST_LATER:
                    found[row] = self._names[self._op[at]], True
                elif before:
                    found[row] = self._names[latest[before - 1]], False
        return found

    def first_times(self) -> dict[str, int]:
        """Return the time at which each op began first."""
        firsts: dict[str, int] = {}
        for number, time in zip(self._op.tolist(), self._time.tolist(), strict=True):
            name = self._names[number]
            firsts[name] = min(time, firsts.get(name, time))
        return firsts


def _part(
    table: pd.DataFrame, time: str, column: str, numbers: list[int], chosen: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    codes = table[column].cat.codes.to_numpy()[chosen]
    return (
        table[time].to_numpy()[chosen],
        table["thread"].to_numpy().astype(np.int64)[chosen],
        np.array([*numbers, 0], np.int64)[codes],
    )


def _launcher(annotation: str) -> str:
    """Return the op in a kernel's annotation; empty for a copy between devices or no op."""
    found = split_annotation(annotation)
    return "" if found is None or found[1] in _COPIES else found[0]


def find_copies(table: pd.DataFrame, raw: RawTrace) -> dict[int, tuple[str, str, str]]:
    """Return row -> name, source op and reader of each buffer that a copy from the host fills.

    The thread that allocates the buffer launches the copy next.
    """
    received = np.flatnonzero(
        (table["op"] == RECEIVED).to_numpy() & (table["born"] >= 0).to_numpy()
    )
    kernels = raw.kernels[raw.kernels["annotation"].astype(str).str.contains("#from=")]
    launches = {
        int(thread): (rows["start_ps"].to_numpy(), rows["annotation"].astype(str).tolist())
        for thread, rows in kernels.groupby("thread")
    }
    born = table["born"].to_numpy()[received]
    times, threads = (raw.events[name].to_numpy()[born] for name in ("time_ps", "thread"))
    found = {}
    for row, time, thread in zip(received.tolist(), times, threads.tolist(), strict=True):
        starts, texts = launches.get(thread, (np.zeros(0, np.int64), []))
        at = int(np.searchsorted(starts, time))
        op = split_annotation(texts[at]) if at < len(texts) else None
        if op is None:
            continue
        fields = texts[at].partition("#from=")[2].partition("#")[0]
        source, _, reader = fields.partition(",to=")
        found[row] = op[0], source, reader
    return found
