"""A process's steps played together with the allocator, under a memory limit.

An order that is drawn without a limit and laid out under one fails where the process's threads would
wait for each other's memory (``waiting_workers``). Here each request is
placed when it is made, so that a thread without room stops there, and what the others do next follows.
Up to the first request without room it is the order of ``play``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analyzer.simulate.allocator import BfcAllocator, BfcOptions
from analyzer.simulate.predict.buffers.reference_counts import Ledger, Running
from analyzer.simulate.predict.executor.scalar_values import Value
from analyzer.simulate.predict.executor.waiting_workers import Asked, NoRoomError, WaitingWorkers
from analyzer.simulate.predict.graph.edge_addresses import Arena
from analyzer.simulate.predict.graph.successor_order import FanOut
from analyzer.simulate.predict.played_step import (
    Owner,
    Prepared,
    before_steps,
    executor_of,
    ledger_of,
)
from analyzer.simulate.predict.process_table import build_up_of, origins_of
from analyzer.simulate.predict.startup import BuildUp
from analyzer.tracing.parse.run_folder import RunNote


class TellingLedger(Ledger):
    """The machine that the executor drives, which tells each request and each free.

    Attributes:
        asked: What was asked for and freed since it was last emptied.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.asked: list[Asked] = []
        super().__init__(*arguments, **options)
        self.asked.clear()  # what is there before the steps

    def allocate(self, node: int, size_bytes: int, output: int, region: str) -> int:
        """Ask for a buffer and return it, with one reference.

        Args:
            node: Number of the node that asks.
            size_bytes: Bytes asked for.
            output: Index of the node's output that it is for.
            region: TensorFlow's type of the request: ``output`` or ``temp``.
        """
        buffer = super().allocate(node, size_bytes, output, region)
        if size_bytes:
            self.asked.append((buffer, size_bytes))
        return buffer

    def release(self, buffer: int) -> None:
        """Drop a reference; without any left the buffer is freed."""
        super().release(buffer)
        if not self.references[buffer] and self.buffers.size_bytes[buffer]:
            self.asked.append((buffer, 0))


class AllocatorRoom:
    """The allocator's pool, with the buffers that lie in it.

    Args:
        options: The allocator, with its limit.
        asked: Where requests and frees are told; emptied as they are done.
    """

    def __init__(self, options: BfcOptions, asked: list[Asked]) -> None:
        self._allocator = BfcAllocator(options)
        self._asked = asked
        self._address: dict[int, int] = {}
        self._gone: set[int] = set()
        self.frees = 0

    def fill(self, grown: BuildUp, origin: Mapping[int, int]) -> bool:
        """Place what is there before the first step; say whether there is room for it.

        Args:
            grown: It.
            origin: The steps' buffer -> that of the build-up which it is.
        """
        events = [(made.born, number, made.size_bytes) for number, made in enumerate(grown.made)]
        events += [
            (made.dies, number, 0)
            for number, made in enumerate(grown.made)
            if made.dies is not None
        ]
        address: dict[int, int] = {}
        for _, number, size_bytes in sorted(events):
            if size_bytes:
                found = self._allocator.allocate(size_bytes)
                if found is None:
                    return False
                address[number] = found
            elif number in address:
                self._allocator.free(address.pop(number))
        self._address = {
            buffer: address[number] for buffer, number in origin.items() if number in address
        }
        return True

    def place(self) -> Sequence[Asked]:
        """Do what was asked for since the last call; return the rest from the first without room on."""
        if not self._asked:
            return ()
        asked = self._asked.copy()
        self._asked.clear()
        return self.place_again(asked)

    def place_again(self, left: Sequence[Asked]) -> Sequence[Asked]:
        """Go on with what was left; return what still is."""
        allocator, address = self._allocator, self._address
        for number, (buffer, size_bytes) in enumerate(left):
            if not size_bytes:
                if buffer in address:
                    allocator.free(address.pop(buffer))
                    self.frees += 1
                else:  # another op replaced a variable's value that is still waited for
                    self._gone.add(buffer)
            elif buffer not in self._gone:
                found = allocator.allocate(size_bytes)
                if found is None:
                    return left[number:]
                address[buffer] = found
        return ()


def runs_under(
    note: RunNote,
    prepared: Prepared,
    owners: Mapping[int, Owner],
    at: tuple[int, int],
    options: BfcOptions,
) -> bool:
    """Say whether a process's steps come to their end under a limit.

    Args:
        note: The run note.
        prepared: The graph.
        owners: Index of a variable -> the op that owns it.
        at: Seed of the draw, and inter-op threads: more than one.
        options: The allocator, with its limit.
    """
    seed, threads = at
    ledger = ledger_of(prepared, shares=True, ran_before=False, kind=TellingLedger)
    assert isinstance(ledger, TellingLedger)
    grown = build_up_of(note, prepared)
    room = AllocatorRoom(options, ledger.asked)
    if not room.fill(grown, origins_of(note, prepared, before_steps(ledger), grown, owners)):
        return False
    wiring = prepared.wirings[seed % len(prepared.wirings)]
    fan_out = FanOut(wiring, Arena(seed))
    counters: dict[int, Value] = dict.fromkeys(prepared.counters, (0,))
    running = Running(ledger)
    for number in range(prepared.steps):
        chance = seed * (prepared.steps + 1) + number
        seconds = prepared.seconds if number else prepared.first_seconds
        workers = WaitingWorkers[Any](threads, running, seconds, wiring.expensive, chance, room)
        try:
            executor_of(prepared, wiring, fan_out, running, counters).run_on(workers)
        except NoRoomError:
            return False
        ledger.end_step()
        room.place()
    return True
