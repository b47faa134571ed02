"""Several threads that run a step's ops side by side, in simulated time.

The executor's rules are those of :mod:`analyzer.predict.executor`; what differs is that each thread has
a deque of its own and takes from the other end of another's when it has nothing to do (Eigen's
``ThreadPoolTempl``), and that a kernel takes time, in which its inputs and temporaries live on while the
other threads' kernels allocate theirs. How long is only known roughly
(:mod:`analyzer.predict.durations`), so each draw stretches every kind of op and every run by chance.

Left out: a deque that is full (1,024 tasks) runs a task at once; here it grows.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle
from random import Random
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np

Task = TypeVar("Task")

WAKE_SECONDS: Final = 22e-6
"""Median time from a task's hand-over until a sleeping thread begins it, a futex call and a switch of
context: of 880 in traced steps, half were between 9 and 49 microseconds, one in ten above 120."""

WAKE_SPREAD: Final = 1.3
"""Standard deviation of its logarithm."""

SPIN_SECONDS: Final = 25e-6
"""How long a thread without work looks for some before it sleeps: 5,000 rounds shared among the threads
(``WorkerLoop``); one thread at a time does so. In traced steps threads idle for less begin at once."""

NOTICE_SECONDS: Final = 1e-6
"""Time until a thread that looks for work begins a task handed over."""

SPREAD: Final = 0.3
"""Standard deviation of the logarithm by which the expected duration of equal ops is off."""

RUN_SPREAD: Final = 0.25
"""The same of a single run. Of 80,000 runs of ops in traced steps half were within 2 ** 0.2 of the op's
median, nine in ten within 2 ** 0.9, but one in a hundred took 2 ** 2.2 times as long: a thread that
waits for another's share of the work, or for a core."""

RARE: Final = 0.08
"""Share of the runs that scatter widely."""

RARE_SPREAD: Final = 1.0
"""Their standard deviation."""

_CHUNK: Final = 500
_CHANCES: Final = 4096


class Machine(Protocol):
    """What the ops of several threads need beside the executor's own."""

    def take(self) -> list[int]:
        """Return the buffers that the op started last uses until it ends."""

    def release(self, buffer: int) -> None:
        """Drop a reference."""


class Workers(Generic[Task]):
    """Threads of one executor.

    Args:
        count: How many.
        machine: Where the ops run.
        seconds: About how long each node runs.
        expensive: Whether each node is dispatched rather than run at once.
        seed: Which draw of chances.
    """

    def __init__(
        self,
        count: int,
        machine: Machine,
        seconds: Sequence[float],
        expensive: Sequence[bool],
        seed: int,
    ) -> None:
        self._machine = machine
        self._expensive = expensive
        self._random = Random(seed)
        chances = np.random.default_rng(seed)
        expected = np.asarray(seconds, dtype=np.float64)
        # Equal durations are off by the same factor: that of their kind of kernel.
        kinds, kind = np.unique(expected, return_inverse=True)
        self._seconds = (expected * chances.lognormal(0.0, SPREAD, len(kinds))[kind]).tolist()
        widths = np.where(chances.random(_CHANCES) < RARE, RARE_SPREAD, RUN_SPREAD)
        self._chances = cycle(chances.lognormal(0.0, widths).tolist())
        self._inline: list[deque[Task]] = [deque() for _ in range(count)]
        self._own: list[deque[Sequence[Task]]] = [deque() for _ in range(count)]
        self._idle: set[int] = set()
        self._spinner, self._spins_until = -1, 0.0
        self._events: list[tuple[float, int, int, tuple[Task, Any, list[int]] | None]] = []
        self._number = 0

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
        """
        self._node_of = node_of
        self._idle = set(range(1, len(self._own)))
        self._schedule(0, 0.0, roots)
        self._go_on(0, 0.0, begin, end)
        while self._events:
            now, _, worker, running = heapq.heappop(self._events)
            if running is not None:
                task, outputs, in_use = running
                for buffer in in_use:
                    self._machine.release(buffer)
                self._schedule(worker, now, end(task, outputs))
            self._go_on(worker, now, begin, end)

    def _go_on(
        self,
        worker: int,
        now: float,
        begin: Callable[[Task], Any],
        end: Callable[[Task, Any], Sequence[Task]],
    ) -> None:
        """Run a thread's tasks until something happens elsewhere, or there are none."""
        events, machine = self._events, self._machine
        while True:
            taken = self._take(worker, now)
            if taken is None:
                self._idle.add(worker)
                if now >= self._spins_until or self._spinner not in self._idle:
                    self._spinner, self._spins_until = worker, now + SPIN_SECONDS
                return
            (task,) = taken
            outputs = begin(task)
            in_use = machine.take()
            node = self._node_of(task)
            if node >= 0:
                now += self._seconds[node] * next(self._chances)
            if events and events[0][0] <= now:
                self._push(now, worker, (task, outputs, in_use))
                return
            for buffer in in_use:
                machine.release(buffer)
            self._schedule(worker, now, end(task, outputs))

    def _take(self, worker: int, now: float) -> tuple[Task] | None:
        """Return the thread's next task: of its own the newest, of another's the oldest."""
        if self._inline[worker]:
            return (self._inline[worker].popleft(),)
        own = self._own[worker]
        while True:
            if own:
                found = own.popleft()
            else:
                others = [k for k, tasks in enumerate(self._own) if tasks]
                if not others:
                    return None
                found = self._own[self._random.choice(others)].pop()
            if len(found) == 1:
                return (found[0],)
            for task in found:
                own.appendleft((task,))
                self._wake(now)

    def _schedule(self, worker: int, now: float, ready: Sequence[Task]) -> None:
        queue = self._inline[worker]
        expensive: list[Task] = []
        for task in ready:
            (queue if self._is_cheap(task) else expensive).append(task)
        if expensive and not queue:
            queue.append(expensive.pop())
        size = _CHUNK if len(expensive) >= _CHUNK else 1
        for start in range(0, len(expensive), size):
            self._own[worker].appendleft(expensive[start : start + size])
            self._wake(now)

    def _is_cheap(self, task: Task) -> bool:
        node = self._node_of(task)
        return node < 0 or not self._expensive[node]

    def _wake(self, now: float) -> None:
        if not self._idle:
            return
        if self._spinner in self._idle and now < self._spins_until:
            woken, delay = self._spinner, NOTICE_SECONDS
        else:
            woken = self._random.choice(sorted(self._idle))
            delay = self._random.lognormvariate(0.0, WAKE_SPREAD) * WAKE_SECONDS
        self._idle.remove(woken)
        self._push(now + delay, woken, None)

    def _push(self, time: float, worker: int, running: tuple[Task, Any, list[int]] | None) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, worker, running))
