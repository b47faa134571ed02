"""The order of ops on each thread, and the op that ran before each free.

An op's inputs are released when its kernel has been launched (``ExecutorState::Process`` in
``executor.cc``), on the same thread. So the op before a free on that thread is the buffer's last user,
unless the thread runs ops without any event.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.model.recording.attribution import RECEIVED
from analyzer.model.recording.schema import TextNumbers
from analyzer.tracing.parse.wire.plane_names import split_annotation
from analyzer.tracing.parse.xplane import RawTrace

_COPIES: Final = ("_Send", "_Recv", "_HostSend", "_HostRecv")


class OpSequence:
    """The ops of a trace by thread and time, from allocations, launches and executor events."""

    def __init__(
        self, raw: RawTrace, eager: frozenset[str], starts: npt.NDArray[np.int64]
    ) -> None:
        """Collect the ops; the runs of ``eager`` types are numbered in each step: ``Conv2D#7``.

        ``starts`` are the starts of the steps in picoseconds.
        """
        texts = TextNumbers("")

        def columns(
            table: pd.DataFrame,
            time: str,
            column: str,
            name: Callable[[str], str],
            chosen: pd.Series,
        ) -> tuple[npt.NDArray[np.int64], ...]:
            numbers = [
                *(texts.of(name(text)) for text in table[column].cat.categories),
                0,
            ]
            op = np.array(numbers, np.int64)[table[column].cat.codes.to_numpy()]
            known = chosen.to_numpy() & (op > 0)
            thread = table["thread"].to_numpy().astype(np.int64)

            return table[time].to_numpy()[known], thread[known], op[known]

        events, kernels, runs = raw.events, raw.kernels, raw.op_runs
        parts = (
            columns(
                events,
                "time_ps",
                "op",
                lambda op: "" if op == RECEIVED else op,
                events["kind"] > 0,
            ),
            columns(
                kernels, "start_ps", "annotation", _launcher, kernels["thread"] > 0
            ),
            columns(runs, "start_ps", "op", str, runs["start_ps"].notna()),
        )
        time, thread, op = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.lexsort((time, thread))
        self._time, self._thread, self._op = time[order], thread[order], op[order]
        is_eager = np.array([text in eager for text in texts.texts], bool)[self._op]
        begins = np.append(
            True, (np.diff(self._op) != 0) | (np.diff(self._thread) != 0)
        )
        step = np.searchsorted(starts, self._time, side="right").tolist()
        counts: dict[int, int] = {}
        number = 0

        for at in np.flatnonzero(is_eager).tolist():
            if begins[at]:
                counts[step[at]] = counts.get(step[at], 0) + 1
                number = texts.of(f"{texts.texts[self._op[at]]}#{counts[step[at]]}")

            self._op[at] = number

        self._names = texts.texts

    def before(
        self, thread: npt.NDArray[np.int64], time: npt.NDArray[np.int64]
    ) -> list[str]:
        """Return the op that ran before each instant on a thread; empty for none."""
        found = [""] * len(thread)

        for number in np.unique(thread).tolist():
            first, last = np.searchsorted(self._thread, [number, number + 1])
            own_times = self._time[first:last]

            for row in np.flatnonzero(thread == number).tolist():
                place = int(np.searchsorted(own_times, time[row], side="left"))
                if place:
                    found[row] = self._names[self._op[first + place - 1]]

        return found

    def first_times(self) -> dict[str, int]:
        """Return the time at which each op began first."""
        ops, at = np.unique(self._op, return_inverse=True)
        firsts = np.full(len(ops), np.iinfo(np.int64).max)
        np.minimum.at(firsts, at, self._time)

        return {
            self._names[op]: first
            for op, first in zip(ops, firsts.tolist(), strict=True)
        }


def _launcher(annotation: str) -> str:
    """Return the op in a kernel's annotation; empty for a copy between devices or no op."""
    found = split_annotation(annotation)
    return "" if found is None or found[1] in _COPIES else found[0]
