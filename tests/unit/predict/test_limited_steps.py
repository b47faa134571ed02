"""Steps played together with the allocator: a thread without room waits for what others free."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from analyzer.allocator import BfcOptions
from analyzer.predict.executor.waiting_workers import Asked, NoRoomError, WaitingWorkers
from analyzer.predict.limited_steps import AllocatorRoom

MIB = 1 << 20


class _Machine:
    """Ops that hold a buffer each while they run; 0 bytes for none."""

    has_tried = False

    def __init__(self, sizes: Sequence[int]) -> None:
        self.asked: list[Asked] = []
        self.begun: list[int] = []
        self._sizes = sizes
        self._in_use: list[int] = []

    def begin(self, node: int) -> list[int]:
        self.begun.append(node)
        if self._sizes[node]:
            self.asked.append((node, self._sizes[node]))
            self._in_use = [node]
        return []

    def take(self) -> list[int]:
        in_use, self._in_use = self._in_use, []
        return in_use

    def release(self, buffer: int) -> None:
        self.asked.append((buffer, 0))


def _run(sizes: Sequence[int], limit: int, threads: int, seed: int = 1) -> list[int]:
    """Run independent ops of a millisecond each under a limit; return those that ended, in order."""
    machine = _Machine(sizes)
    room = AllocatorRoom(BfcOptions(memory_limit_bytes=limit), machine.asked)
    count = len(sizes)
    ended: list[int] = []

    def end(node: int, outputs: list[int]) -> list[int]:
        ended.append(node)
        return []

    workers = WaitingWorkers[int](threads, machine, [1e-3] * count, [True] * count, seed, room)
    workers.run(range(count), machine.begin, end, lambda node: node)
    return ended


@pytest.mark.parametrize("threads", [2, 4])
def test_ops_that_do_not_fit_side_by_side_run_one_after_another(threads: int) -> None:
    assert sorted(_run([3 * MIB] * 6, 4 * MIB, threads)) == list(range(6))


@pytest.mark.parametrize("seed", range(8))
def test_small_ops_go_on_beside_one_that_waits(seed: int) -> None:
    ended = _run([3 * MIB, 3 * MIB, 0, 0, 0, 0], 4 * MIB, 2, seed)
    assert sorted(ended) == list(range(6))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_request_that_nobody_can_make_room_for_fails(threads: int) -> None:
    with pytest.raises(NoRoomError):
        _run([MIB, 5 * MIB, MIB], 4 * MIB, threads)


def test_two_ops_that_hold_what_the_other_needs_fail() -> None:
    """Each has its output and waits for its temporary: nothing is freed any more."""
    asked: list[Asked] = []
    room = AllocatorRoom(BfcOptions(memory_limit_bytes=4 * MIB), asked)
    asked += [(0, 2 * MIB), (1, 2 * MIB), (2, 2 * MIB)]
    left = room.place()
    assert list(left) == [(2, 2 * MIB)]
    assert list(room.place_again(left)) == list(left)
    asked.append((0, 0))
    assert not room.place()
    assert room.frees == 1
    assert not room.place_again(left)


def test_what_is_freed_before_it_found_room_is_never_placed() -> None:
    asked: list[Asked] = [(0, 3 * MIB), (1, 3 * MIB)]
    room = AllocatorRoom(BfcOptions(memory_limit_bytes=4 * MIB), asked)
    left = room.place()
    asked.append((1, 0))
    room.place()
    assert not room.place_again(left)
    asked += [(0, 0), (2, 4 * MIB)]
    assert not room.place()
