"""Bytes of an order's buffers at another size are those that a play there asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analyzer.fitting.scaling import order_playing
from analyzer.fitting.scaling.order_playing import PLAYED_ANEW, _AtSize, play_orders
from analyzer.fitting.scaling.scaled_orders import ScaledOrders
from analyzer.fitting.scaling.sizes_elsewhere import other_size
from analyzer.fitting.scaling.step_family import NotOneFamily, family_of
from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.contract.run_note import Input, StepConfig, ThreadsNote
from analyzer.model.recording.records import Step
from analyzer.simulate.allocator import Sequence
from analyzer.simulate.allocator.minimum_limit import safe_limit
from analyzer.simulate.predict import representative
from analyzer.simulate.predict.predicted_device import target_of
from analyzer.simulate.predict.predicted_recording import predict_note
from analyzer.tracing.parse.run_folder import RunNote

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
    monkeypatch.setattr(order_playing, "PLAYED_ANEW", len(told.every))
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


def test_the_orders_are_those_that_an_estimate_at_that_size_looks_at() -> None:
    """One figure is worked out once: what a limit holds does not depend on which command is asked."""
    here = note(SIZES[0])
    options = target_of(here).options
    looked_at: list[Sequence] = []
    history = representative._history

    def noted(*given: Any) -> tuple[Sequence, Step]:
        sequence, step = history(*given)
        looked_at.append(sequence)
        return sequence, step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(representative, "_history", noted)
        predict_note(here)
    found = orders()
    assert len(found.every) == len(looked_at) > 2
    for one, same in zip(found.main, looked_at, strict=False):
        here_too = one.at(SIZES[0])
        assert np.array_equal(here_too.request[: len(same)], same.request)
        assert safe_limit(here_too, options) == safe_limit(same, options)


def test_few_evenly_spread_orders_are_played_again() -> None:
    follows = {(seed, 2): None for seed in range(40)} | {(7, 1): None}
    at = _AtSize(
        size=8,
        note=note(8),
        prepared=None,  # type: ignore[arg-type]
        owners={},
        made=(),
        follows=follows,  # type: ignore[arg-type]
    )
    assert at.chosen(is_told=True) == list(follows)
    few = at.chosen(is_told=False)
    assert len(few) == PLAYED_ANEW + 1
    assert few[0] == (0, 2)
    assert few[-2:] == [(39, 2), (7, 1)]
