"""Threads that run a step's ops under a memory limit: a request without room waits for frees.

On a CPU's BFC allocator a request that finds no room does not fail at once
(``AllocatorRetry::AllocateRaw``, ``allocator_retry.cc``): its thread sleeps until something is freed
(``NotifyDealloc`` wakes all that sleep), tries again, and gives up after 10 s. Kernels take
milliseconds: a request fails only where no thread is left that could free anything. A thread that sleeps
keeps what its op holds, and the cheap ops that wait for its turn; those in its deque others may take.

Every request of an op waits: those of outputs and temporaries have ``retry_on_failure`` set
(``allocator.h``); only a card's libraries ask for scratch without it. One that was woken is not there at
once: the thread that freed goes on meanwhile, and may take the room first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from analyzer.simulate.predict.executor.thread_pool import (
    WAKE_SECONDS,
    WAKE_SPREAD,
    BufferHolder,
    Task,
    Workers,
)

Asked: TypeAlias = tuple[int, int]
"""A buffer, and the bytes that it asks for; 0 where it is freed."""


class NoRoomError(Exception):
    """A request found no room, and no thread is left that could free any."""


class Room(Protocol):
    """The memory that the ops' requests are placed in."""

    @property
    def frees(self) -> int:
        """How often something was freed so far."""

    def place(self) -> Sequence[Asked]:
        """Do what was asked for since the last call; return the rest from the first without room on."""

    def place_again(self, left: Sequence[Asked]) -> Sequence[Asked]:
        """Go on with what was left; return what still is."""


class WaitingWorkers(Workers[Task]):
    """Threads whose requests wait for room; nothing is waited for after a kernel, nothing is compiled.

    Args:
        count: How many.
        machine: Where the ops run; what they ask for the room is told.
        seconds: About how long each node runs.
        expensive: Whether each node is dispatched rather than run at once.
        seed: Which draw of chances.
        room: The memory.
    """

    def __init__(
        self,
        count: int,
        machine: BufferHolder,
        seconds: Sequence[float],
        expensive: Sequence[bool],
        seed: int,
        room: Room,
    ) -> None:
        super().__init__(count, machine, seconds, expensive, seed)
        self._room = room
        self._begun: dict[int, tuple[Task, Any, list[int]]] = {}
        self._left: dict[int, Sequence[Asked]] = {}
        self._asleep: list[int] = []
        self._freed = 0

    def run(
        self,
        roots: Sequence[Task],
        begin: Callable[[Task], Any],
        end: Callable[[Task, Any], Sequence[Task]],
        node_of: Callable[[Task], int],
    ) -> None:
        """Run the roots and all that becomes ready after them.

        Args:
            roots: What is ready at the start; the first thread looks at them.
            begin: Called when a task starts; what it returns is given to ``end``.
            end: Called when it is over; returns the tasks that it made ready.
            node_of: The node that a task runs; -1 where it does nothing.

        Raises:
            NoRoomError: a request found none, and no thread is left that could free any.
        """
        super().run(roots, begin, end, node_of)
        if self._left:
            raise NoRoomError

    def _go_on(
        self,
        worker: int,
        now: float,
        begin: Callable[[Task], Any],
        end: Callable[[Task, Any], Sequence[Task]],
    ) -> None:
        """Run a thread's tasks until something happens elsewhere, it waits, or there are none."""
        self._notice_frees(now)
        while True:
            if worker in self._left:
                left = self._room.place_again(self._left[worker])
                task, outputs, in_use = self._begun[worker]
            else:
                taken = self._next_of(worker, now)
                if taken is None:
                    return
                task = taken[0]
                outputs = begin(task)
                in_use = self._machine.take()
                left = self._room.place()
            if left:
                self._begun[worker], self._left[worker] = (task, outputs, in_use), left
                self._notice_frees(now)
                self._asleep.append(worker)
                return
            self._left.pop(worker, None)
            self._notice_frees(now)
            node = self._node_of(task)
            if node >= 0:
                now += self._seconds[node] * next(self._chances)
            if self._events and self._events[0][0] <= now:
                self._push(now, worker, (task, outputs, in_use))
                return
            for buffer in in_use:
                self._machine.release(buffer)
            self._schedule(worker, now, end(task, outputs))
            self._notice_frees(now)

    def _next_of(self, worker: int, now: float) -> tuple[Task] | None:
        """Return the thread's next task; None where there is none, and it sleeps or spins."""
        if self._inline[worker]:
            return (self._inline[worker].popleft(),)
        taken = self._take(worker, now)
        if taken is None:
            self._begin_idling(worker, now)
        return taken

    def _notice_frees(self, now: float) -> None:
        """Do the frees that were told, and wake every thread that waits for one."""
        self._room.place()
        if self._room.frees == self._freed:
            return
        self._freed = self._room.frees
        for worker in self._asleep:
            delay = self._random.lognormvariate(0.0, WAKE_SPREAD) * WAKE_SECONDS
            self._push(now + delay, worker, None)
        self._asleep.clear()
