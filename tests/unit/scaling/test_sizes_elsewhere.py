"""Bytes of an order's buffers at another size are those that a play there asks for."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from analyzer.contract.graph_note import Op, TensorSpec
from analyzer.contract.run_note import Input, ThreadsNote
from analyzer.contract.step_config import StepConfig
from analyzer.parse.run_folder import RunNote
from analyzer.scaling import order_playing
from analyzer.scaling.order_playing import DRAWS, STARTS, _Asked, _usual_start, play_orders
from analyzer.scaling.scaled_orders import ScaledOrders
from analyzer.scaling.sizes_elsewhere import other_size
from analyzer.scaling.step_family import NotOneFamily, family_of

SIZES = (16, 24, 32)


def op(name: str, kind: str, *inputs: str, shape: tuple[int, ...]) -> Op:
    return Op(name=name, type=kind, inputs=inputs, outputs=(TensorSpec("float32", shape),))


def note(size: int) -> RunNote:
    """A step with branches side by side, the batch against itself and a softmax's temporary."""
    x = replace(op("x", "_Arg", shape=(size, 256)), attrs={"index": 0})
    ops = [x]
    for name in "abc":
        ops.append(op(name, "Tanh", "x:0", shape=(size, 256)))
        ops.append(op(f"{name}_soft", "Softmax", f"{name}:0", shape=(size, 256)))
    square = op("square", "MatMul", "a_soft:0", "b_soft:0", shape=(size, size))
    ops.append(replace(square, attrs={"transpose_a": False, "transpose_b": True}))
    ops.append(op("last", "MatMul", "square:0", "c_soft:0", shape=(size, 256)))
    ops.append(Op(name="result", type="_Retval", inputs=("last:0",), attrs={"index": 0}))
    return RunNote(
        kind="static",
        ops=tuple(ops),
        step=StepConfig(mode="infer", batch_size=size),
        inputs=(Input(name="x", dtype="float32", shape=(size, 256)),),
        threads=ThreadsNote(intra_op=2, inter_op=2, inter_op_fixed=False),
    )


def orders() -> ScaledOrders:
    return play_orders(family_of({8: note(8), 12: note(12)}), SIZES)


def test_what_the_kernels_say_is_what_a_play_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told = orders()
    monkeypatch.setattr(order_playing, "other_size", lambda first, here: None)
    played = orders()
    for one, same in zip(told.every, played.every, strict=True):
        for size in (*SIZES, 100):
            assert np.array_equal(one.forms.at(size), same.forms.at(size))
            assert one.least_bytes(size) == same.least_bytes(size)
    assert told.inexact > 0  # the square


def test_the_kernels_are_asked_and_nothing_is_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def told(first: object, here: object) -> object:
        asked.append(other_size(first, here))  # type: ignore[arg-type]
        return asked[-1]

    monkeypatch.setattr(order_playing, "other_size", told)
    monkeypatch.setattr(order_playing, "_played_bytes", None)
    assert len(orders().every) > 2
    assert len(asked) == 2
    assert None not in asked


def test_other_constants_are_another_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_playing, "prepare_alike", lambda *given, **named: None)
    with pytest.raises(NotOneFamily, match="at 24"):
        orders()


def test_a_rare_order_is_no_start_for_all() -> None:
    peaks = [900, 500, 501, 502, 503, 504, 900]
    first_steps = {3: 900, 4: 501, 5: 502}

    class First:
        draws = len(peaks)

        def play_once(self, seed: int, threads: int) -> SimpleNamespace:
            return SimpleNamespace(seed=seed, steps=((0, 9),), peak_bytes=peaks[seed])

        def play(self, seed: int, threads: int) -> SimpleNamespace:
            live = np.array([first_steps[seed], 0, peaks[seed]])
            return SimpleNamespace(
                seed=seed,
                steps=(SimpleNamespace(first=0), SimpleNamespace(first=2)),
                sequence=lambda: SimpleNamespace(live_rounded_bytes=lambda: live),
            )

    assert _usual_start(First(), 1).seed == 5  # type: ignore[arg-type,attr-defined]


def test_orders_begin_with_first_steps_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunks that a first step leaves decide under which limit a run comes to its end."""
    starts = []
    order = order_playing._order

    def noted(sizes: object, first: object, others: object, asked: _Asked) -> object:
        starts.append((asked.draw.threads, asked.start.draw.seed))
        return order(sizes, first, others, asked)  # type: ignore[arg-type]

    monkeypatch.setattr(order_playing, "_order", noted)
    for threads, found in orders().kinds.items():
        assert len(found) == DRAWS
        assert len({seed for number, seed in starts if number == threads}) == STARTS
