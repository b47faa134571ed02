"""Steps played together with the allocator: a thread without room waits for what others free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.contract.run_note import Input, StepConfig, ThreadsNote
from analyzer.simulate.allocator import BfcOptions
from analyzer.simulate.predict.executor.waiting_workers import Asked, NoRoomError, WaitingWorkers
from analyzer.simulate.predict.limited_steps import AllocatorRoom, runs_under
from analyzer.simulate.predict.played_step import Owner, play, prepare
from analyzer.simulate.predict.predicted_recording import predict_note
from analyzer.tracing.parse.run_folder import RunNote

MIB = 1 << 20


def side_by_side(size: int) -> RunNote:
    """A step with branches that several threads run, and their sum."""

    def op(name: str, kind: str, *inputs: str) -> Op:
        outputs = (TensorSpec("float32", (size, 256)),)
        attrs = {"index": 0} if kind == "_Arg" else {}
        return Op(name=name, type=kind, inputs=inputs, outputs=outputs, attrs=attrs)

    ops = [op("x", "_Arg")]
    for name in "abcdef":
        ops.append(op(name, "Tanh", "x:0"))
        ops.append(op(f"{name}_soft", "Softmax", f"{name}:0"))
    ops.append(op("all", "AddN", *(f"{name}_soft:0" for name in "abcdef")))
    ops.append(Op(name="result", type="_Retval", inputs=("all:0",), attrs={"index": 0}))
    return RunNote(
        kind="static",
        ops=tuple(ops),
        step=StepConfig(mode="infer", batch_size=size),
        inputs=(Input(name="x", dtype="float32", shape=(size, 256)),),
        threads=ThreadsNote(intra_op=2, inter_op=2, inter_op_fixed=False),
    )


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


@pytest.mark.parametrize("seed", range(4))
def test_with_enough_room_the_steps_are_those_that_are_played_without_a_limit(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = side_by_side(32)
    owners: dict[int, Owner] = {}
    prepared = prepare(here.ops, [], threads=2)
    asked: list[Asked] = []

    def place(room: AllocatorRoom) -> Sequence[Asked]:
        asked.extend(room._asked)
        room._asked.clear()
        return ()

    monkeypatch.setattr(AllocatorRoom, "place", place)
    assert runs_under(here, prepared, owners, (seed, 2), BfcOptions())
    buffers = play(prepared, seed, threads=2, steps=prepared.steps).buffers
    born = [(at, k, buffers.size_bytes[k]) for k, at in enumerate(buffers.born) if at >= 0]
    dies = [(at, k, 0) for k, at in enumerate(buffers.dies) if at >= 0]
    assert asked == [(k, size) for _, k, size in sorted(born + dies)]


def test_an_estimate_that_is_asked_about_a_limit_counts_on_ops_that_wait() -> None:
    """Large results that are summed up at once: two side by side are more than one."""
    big = (3000, 256)

    def op(name: str, kind: str, *inputs: str, shape: tuple[int, ...] = big) -> Op:
        attrs = {"index": 0} if kind == "_Arg" else {}
        outputs = (TensorSpec("float32", shape),)
        return Op(name=name, type=kind, inputs=inputs, outputs=outputs, attrs=attrs)

    ops = [op("x", "_Arg")]
    for name in "abcdef":
        ops.append(op(name, "Pack", *["x:0"] * 8, shape=(8, *big)))
        ops.append(op(f"{name}_loss", "L2Loss", f"{name}:0", shape=()))
    ops.append(op("all", "AddN", *(f"{name}_loss:0" for name in "abcdef"), shape=()))
    ops.append(Op(name="result", type="_Retval", inputs=("all:0",), attrs={"index": 0}))
    here = replace(
        side_by_side(3000),
        ops=tuple(ops),
        threads=ThreadsNote(intra_op=2, inter_op=2, inter_op_fixed=True),
    )

    def stated(asked_bytes: int | None) -> tuple[int, int]:
        made = predict_note(here, search=True, asked_bytes=asked_bytes).recording.uncertainty
        assert made is not None
        assert made.limit_low_bytes is not None
        assert made.limit_high_bytes is not None
        return made.limit_low_bytes, made.limit_high_bytes

    low, high = stated(None)
    assert stated(2 * high) == (low, high), "each order runs there without waiting"
    waiting, same = stated(low - MIB)
    assert same == high
    one = 8 * 3000 * 256 * 4
    assert low > 2 * one
    assert waiting < 2 * one
