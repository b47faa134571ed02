"""Several threads that run a step's ops side by side, in simulated time.

The executor's rules are those of ``sequential``. In addition each thread has a deque of its own and
steals from the back of another's when it is idle (Eigen's ``ThreadPoolTempl``), and a kernel takes time:
its inputs and temporaries live while other threads allocate. Durations are known roughly
(``op_duration``), so each schedule scales every kind of op and every run by chance.

A node that the executor waits for (a copy to or from a card) frees its thread at once. One thread
outside the pool notices that it is over and hands its successors to the pool (``EventMgr`` in
``device_event_mgr.cc``: of its two threads one polls and one calls back). Nodes that end while it
sleeps or is busy therefore continue one after the other. They lie in two deques, of the calling and
of the polling thread. The calling thread takes from the front of its own and from the back of the
other.

Not modelled: a full deque (1,024 tasks) runs a task at once.
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

Task = TypeVar("Task")

_Running = tuple[Task, Any, list[int]]
"""A task that has begun, its outputs, and the buffers that it uses until it ends."""

OVERLAPPED: Final = 0
"""Number of threads that stands for one thread per ready op."""

WAKE_SECONDS: Final = 2.2e-5
"""Median time until a sleeping thread begins a task: a futex call and a context switch. 880 in traced
steps: half between 9 and 49 microseconds, one in ten above 120."""
WAKE_SPREAD: Final = 1.3
"""Standard deviation of its natural logarithm."""
TRIAL_SECONDS: Final = 5e-4
"""A convolution on a card that tries cuDNN's algorithms: 165 in first steps of six networks on a
simulated card, half between 0.4 and 0.7 milliseconds."""
COMPILE_SECONDS: Final = 0.2
"""A kernel that TensorFlow compiles at its first run on a card: 40 in first steps of seven
networks, half between 0.1 and 0.4 seconds."""
COMPILE_SPREAD: Final = 0.8
"""Standard deviation of its natural logarithm."""
CALLER_SECONDS: Final = 6e-5
"""Median time from the end of a copy until the sleeping callback thread begins: 60 copies in steps with
many dropouts, half between 70 and 105 microseconds to the card, 113 to 210 to the host."""
CALLER_SPREAD: Final = 1.3
"""Standard deviation of its natural logarithm."""
CALL_BACK_SECONDS: Final = 5e-6
"""Time that the callback thread takes for each node; an estimate."""
KIND_SPREAD: Final = 1.0
"""Standard deviation of the natural logarithm of the factor between expected and real duration, equal
for all ops of one kind. Calibrated, not held out: on 21 steps of the accuracy list, traced twice each
on a busy machine, 40 of 42 requested peaks lie inside the range; with 0.3 (0.25 for a run), 35 of 42."""
RUN_SPREAD: Final = 1.0
"""The same for a single run of an op. On a quiet machine nine runs in ten are within a factor of
2 ** 0.9; other programs on the same cores stretch them further."""

_OUTSIDE: Final = -1
"""Stands for the callback thread, which is not one of the pool's."""

_CHUNK: Final = 500
"""Ready expensive nodes above which the executor hands them over in chunks
(``kInlineScheduleReadyThreshold`` in ``executor.cc``)."""

_CHANCES: Final = 4096
"""Random factors for runs of ops; they are used in turn and repeat in longer steps."""


class BufferHolder(Protocol):
    """Holds the buffers of running ops."""

    @property
    def has_tried(self) -> bool:
        """Whether the last op tried a library's algorithms."""

    def take(self) -> list[int]:
        """Return the buffers that the last op uses until it ends."""

    def release(self, buffer: int) -> None:
        """Drop a reference."""


class Workers(Generic[Task]):
    """Threads of one executor.

    Args:
        count: Number of threads.
        machine: Holds the buffers of running ops.
        seconds: Expected duration of each node.
        expensive: For each node, whether it is dispatched instead of run inline.
        seed: Seed of the random factors.
        waits: For each node, whether the executor waits for it after its kernel returned.
        compiles: For each node, the kernel that is compiled at its first run; "" for most.
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
        # Equal durations are of one kind of kernel and share their error.
        kinds, kind = np.unique(expected, return_inverse=True)
        self._seconds = (expected * chances.lognormal(0.0, KIND_SPREAD, len(kinds))[kind]).tolist()
        self._chances = cycle(chances.lognormal(0.0, RUN_SPREAD, _CHANCES).tolist())
        self._inline: list[deque[Task]] = [deque() for _ in range(count)]
        self._own: list[deque[Sequence[Task]]] = [deque() for _ in range(count)]
        self._idle: set[int] = set()
        self._over: tuple[deque[_Running[Task]], ...] = (deque(), deque())
        self._caller_sleeps = True
        self._events: list[tuple[float, int, int, _Running[Task] | None]] = []
        self._number = 0

    def run(
        self,
        roots: Sequence[Task],
        begin: Callable[[Task], Any],
        end: Callable[[Task, Any], Sequence[Task]],
        node_of: Callable[[Task], int],
    ) -> None:
        """Run the roots and everything that becomes ready after them.

        Args:
            roots: Tasks that are ready at the start; the first thread takes them.
            begin: Starts a task and returns its outputs.
            end: Ends a task, given its outputs, and returns the tasks that became ready.
            node_of: Returns the node that a task runs; -1 for a dead task.
        """
        self._node_of = node_of
        self._idle = set(range(1, len(self._own)))
        self._schedule(0, 0.0, roots)
        self._work(0, 0.0, begin, end)
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
                self._work(worker, now, begin, end)

    def _work(
        self,
        worker: int,
        now: float,
        begin: Callable[[Task], Any],
        end: Callable[[Task, Any], Sequence[Task]],
    ) -> None:
        """Run a thread's tasks until another thread has an event, or no task is left."""
        events, machine, inline = self._events, self._machine, self._inline[worker]
        node_of, seconds, chances = self._node_of, self._seconds, self._chances
        while True:
            if inline:
                task = inline.popleft()
            else:
                stolen = self._take(worker, now)
                if stolen is None:
                    self._idle.add(worker)
                    return
                (task,) = stolen
            if self._compiles and self._compile_first(worker, now, task):
                return
            outputs = begin(task)
            in_use = machine.take()
            node = node_of(task)
            if node >= 0:
                now += seconds[node] * next(chances)
                if machine.has_tried:
                    now += TRIAL_SECONDS * next(chances)
                if self._waits[node]:
                    self._finish_outside(now, (task, outputs, in_use))
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

    def _compile_first(self, worker: int, now: float, task: Task) -> bool:
        """Let a thread compile the task's kernel and return True if it has to.

        Threads that need one kernel at the same time each compile it (``JITCache::LookupOrCompile``).
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

    def _take(self, worker: int, now: float) -> tuple[Task] | None:
        """Return the newest task of the thread's own deque, else the oldest of another's."""
        own = self._own[worker]
        while True:
            if own:
                tasks = own.popleft()
            else:
                others = [k for k, waiting in enumerate(self._own) if waiting]
                if not others:
                    return None
                tasks = self._own[self._random.choice(others)].pop()
            if len(tasks) == 1:
                return (tasks[0],)
            for task in tasks:
                own.appendleft((task,))
                self._wake(now)

    def _schedule(self, worker: int, now: float, ready: Sequence[Task]) -> None:
        """Queue inexpensive tasks on the thread, and hand expensive ones over to the pool."""
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

    def _finish_outside(self, now: float, running: _Running[Task]) -> None:
        """Let the callback thread end a node that the executor waits for."""
        self._random.choice(self._over).append(running)
        if self._caller_sleeps:
            self._caller_sleeps = False
            delay = self._random.lognormvariate(0.0, CALLER_SPREAD) * CALLER_SECONDS
            self._push(now + delay, _OUTSIDE, None)

    def _call_back(self, now: float) -> None:
        """End the next waiting node; without one the callback thread goes to sleep."""
        own, other = self._over
        if own or other:
            following = own.popleft() if own else other.pop()
            self._push(now + CALL_BACK_SECONDS, _OUTSIDE, following)
        else:
            self._caller_sleeps = True

    def _hand_over(self, now: float, ready: Sequence[Task]) -> None:
        """Append tasks to random deques, as a thread outside the pool does."""
        for task in ready:
            self._own[self._random.randrange(len(self._own))].append((task,))
            self._wake(now)

    def _wake(self, now: float) -> None:
        """Wake one idle thread."""
        if self._idle:
            worker = self._random.choice(sorted(self._idle))
            self._idle.remove(worker)
            delay = self._random.lognormvariate(0.0, WAKE_SPREAD) * WAKE_SECONDS
            self._push(now + delay, worker, None)

    def _push(self, time: float, worker: int, running: _Running[Task] | None) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, worker, running))


class OverlappedWorkers(Workers[Task]):
    """Threads without limit: all ready expensive ops run at the same time and end together."""

    def __init__(self, machine: BufferHolder, expensive: Sequence[bool]) -> None:
        super().__init__(1, machine, (), expensive, 0)

    def run(
        self,
        roots: Sequence[Task],
        begin: Callable[[Task], Any],
        end: Callable[[Task, Any], Sequence[Task]],
        node_of: Callable[[Task], int],
    ) -> None:
        """Run the roots and everything that becomes ready after them, in rounds."""
        ready: list[Task] = list(roots)
        while ready:
            inline, expensive = deque(ready), []
            while inline:
                task = inline.popleft()
                if node_of(task) >= 0 and self._expensive[node_of(task)]:
                    expensive.append(task)
                    continue
                outputs = begin(task)
                for buffer in self._machine.take():
                    self._machine.release(buffer)
                inline.extend(end(task, outputs))
            started = [(task, begin(task), self._machine.take()) for task in expensive]
            ready = []
            for task, outputs, in_use in started:
                for buffer in in_use:
                    self._machine.release(buffer)
                ready += end(task, outputs)
