"""Several threads that run a step's ops side by side, in simulated time.

The executor's rules are those of ``sequential``; what differs is that
each thread has a deque of its own and takes from the other end of another's when it has nothing to do
(Eigen's ``ThreadPoolTempl``), and that a kernel takes time, in which its inputs and temporaries live on
while the other threads' kernels allocate theirs. How long is only known roughly
(``op_cost``, ``card_timing``), so each draw
stretches every kind of op and every run by chance. A node that is waited for (a copy to a card) gives
its thread free at once; one more thread, outside the pool, learns that it is over and hands what
follows it to the pool. It is one for all of them (``EventMgr`` in ``device_event_mgr.cc``: of its two
threads one polls, and one calls back), so that copies that are over while it sleeps or is busy go on
one after the other, all as late as it is. They lie in two deques, that of the thread and that of the one
that polls, at whose end they are put by chance; its own it empties from the front, the other from the
back.

Left out: a deque that is full (1,024 tasks) runs a task at once; here it grows.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle
from random import Random
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np

from analyzer.simulate.predict.executor.measured_rates import measured

Task = TypeVar("Task")

_Waiting = tuple[Task, Any, list[int]]
"""A task that has begun, its outputs, and the buffers that it uses until it ends."""

WAKE_SECONDS: Final = measured("wake_s")
WAKE_SPREAD: Final = measured("wake_spread")
SPIN_SECONDS: Final = measured("spin_s")
NOTICE_SECONDS: Final = measured("notice_s")
TRIAL_SECONDS: Final = measured("trial_s")
COMPILE_SECONDS: Final = measured("kernel_compile_s")
COMPILE_SPREAD: Final = measured("kernel_compile_spread")
CALLER_SECONDS: Final = measured("copy_s")
CALLER_SPREAD: Final = measured("copy_spread")
CALL_BACK_SECONDS: Final = measured("call_back_s")
KIND_SPREAD: Final = measured("kind_spread")
RUN_SPREAD: Final = measured("run_spread")
RARE_SHARE: Final = measured("rare_share")
RARE_SPREAD: Final = measured("rare_spread")

_OUTSIDE: Final = -1
"""Stands for a thread that is none of the pool's."""

_CHUNK: Final = 500
"""Ready expensive nodes from which on they are handed over in chunks (``executor.cc``:
``kInlineScheduleReadyThreshold``)."""
_CHANCES: Final = 4096
"""Factors drawn for the runs of ops and used in turn; a step of more runs uses them again."""


class BufferHolder(Protocol):
    """What the ops of several threads need beside the executor's own."""

    @property
    def has_tried(self) -> bool:
        """Whether the op started last tried a library's algorithms."""

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
        waits: Whether each node is waited for after its kernel returned.
        compiles: The kernel of each node that is compiled where it has not run before; "" for most.
    """

    def __init__(
        self,
        count: int,
        machine: BufferHolder,
        seconds: Sequence[float],
        expensive: Sequence[bool],
        seed: int,
        waits: Sequence[bool] = (),
        compiles: Sequence[str] = (),
    ) -> None:
        self._machine = machine
        self._expensive = expensive
        self._waits = waits if any(waits) else [False] * len(seconds)
        self._compiles = compiles
        self._compiled: dict[str, float] = {}
        self._random = Random(seed)
        chances = np.random.default_rng(seed)
        expected = np.asarray(seconds, dtype=np.float64)
        # Equal durations are off by the same factor: that of their kind of kernel.
        kinds, kind = np.unique(expected, return_inverse=True)
        self._seconds = (expected * chances.lognormal(0.0, KIND_SPREAD, len(kinds))[kind]).tolist()
        widths = np.where(chances.random(_CHANCES) < RARE_SHARE, RARE_SPREAD, RUN_SPREAD)
        self._chances = cycle(chances.lognormal(0.0, widths).tolist())
        self._inline: list[deque[Task]] = [deque() for _ in range(count)]
        self._own: list[deque[Sequence[Task]]] = [deque() for _ in range(count)]
        self._idle: set[int] = set()
        self._spinner, self._spins_until = -1, 0.0
        self._over: tuple[deque[_Waiting[Task]], ...] = (deque(), deque())
        self._caller_sleeps, self._caller_spins_until = True, 0.0
        self._events: list[tuple[float, int, int, _Waiting[Task] | None]] = []
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
                ready = end(task, outputs)
                if worker == _OUTSIDE:
                    self._hand_over(now, ready)
                else:
                    self._schedule(worker, now, ready)
            if worker == _OUTSIDE:
                self._call_back(now)
            else:
                self._go_on(worker, now, begin, end)

    def _go_on(
        self,
        worker: int,
        now: float,
        begin: Callable[[Task], Any],
        end: Callable[[Task, Any], Sequence[Task]],
    ) -> None:
        """Run a thread's tasks until something happens elsewhere, or there are none."""
        events, machine, inline = self._events, self._machine, self._inline[worker]
        node_of, seconds, chances, waits = (
            self._node_of,
            self._seconds,
            self._chances,
            self._waits,
        )
        while True:
            if inline:
                task = inline.popleft()
            else:
                taken = self._take(worker, now)
                if taken is None:
                    self._begin_idling(worker, now)
                    return
                (task,) = taken
            if self._compiles and self._is_held_up(worker, now, task):
                return
            outputs = begin(task)
            in_use = machine.take()
            node = node_of(task)
            if node >= 0:
                now += seconds[node] * next(chances)
                if machine.has_tried:
                    now += TRIAL_SECONDS * next(chances)
                if waits[node]:
                    self._is_over(now, (task, outputs, in_use))
                    if events and events[0][0] <= now:
                        self._push(now, worker, None)
                        return
                    continue
            if events and events[0][0] <= now:
                self._push(now, worker, (task, outputs, in_use))
                return
            for buffer in in_use:
                machine.release(buffer)
            self._schedule(worker, now, end(task, outputs))

    def _is_held_up(self, worker: int, now: float, task: Task) -> bool:
        """Say whether a thread has to compile the task's kernel first; then it comes back to it.

        Threads that need one kernel at a time each compile it (``JITCache::LookupOrCompile``).
        """
        node = self._node_of(task)
        kernel = self._compiles[node] if node >= 0 else ""
        if not kernel or self._compiled.get(kernel, math.inf) <= now:
            return False
        ready = now + COMPILE_SECONDS * self._random.lognormvariate(0.0, COMPILE_SPREAD)
        self._compiled[kernel] = min(ready, self._compiled.get(kernel, ready))
        self._inline[worker].appendleft(task)
        self._push(ready, worker, None)
        return True

    def _begin_idling(self, worker: int, now: float) -> None:
        """Note that a thread has nothing to do; one of them spins for a while before it sleeps."""
        self._idle.add(worker)
        if now >= self._spins_until or self._spinner not in self._idle:
            self._spinner, self._spins_until = worker, now + SPIN_SECONDS

    def _take(self, worker: int, now: float) -> tuple[Task] | None:
        """Return the thread's next task of a deque: of its own the newest, of another's the oldest."""
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
        if not ready:
            return
        queue, is_expensive, node_of = self._inline[worker], self._expensive, self._node_of
        expensive: list[Task] = []
        for task in ready:
            node = node_of(task)
            (expensive if node >= 0 and is_expensive[node] else queue).append(task)
        if not expensive:
            return
        if not queue:
            queue.append(expensive.pop())
        size = _CHUNK if len(expensive) >= _CHUNK else 1
        for start in range(0, len(expensive), size):
            self._own[worker].appendleft(expensive[start : start + size])
            self._wake(now)

    def _is_over(self, now: float, waiting: _Waiting[Task]) -> None:
        """Leave it to the thread that calls back to go on with what was waited for."""
        self._random.choice(self._over).append(waiting)
        if not self._caller_sleeps:
            return
        self._caller_sleeps = False
        delay = NOTICE_SECONDS
        if now >= self._caller_spins_until:
            delay = self._random.lognormvariate(0.0, CALLER_SPREAD) * CALLER_SECONDS
        self._push(now + delay, _OUTSIDE, None)

    def _call_back(self, now: float) -> None:
        """Begin with the next of what was waited for; without any the thread sleeps soon."""
        own, other = self._over
        if own or other:
            next_one = own.popleft() if own else other.pop()
            self._push(now + CALL_BACK_SECONDS, _OUTSIDE, next_one)
            return
        self._caller_sleeps, self._caller_spins_until = True, now + SPIN_SECONDS

    def _hand_over(self, now: float, ready: Sequence[Task]) -> None:
        """Put tasks at the end of any deque, as a thread outside the pool does."""
        for task in ready:
            self._own[self._random.randrange(len(self._own))].append((task,))
            self._wake(now)

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

    def _push(self, time: float, worker: int, running: _Waiting[Task] | None) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, worker, running))
